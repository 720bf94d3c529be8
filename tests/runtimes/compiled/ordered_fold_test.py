import contextlib
import random
import threading
import time

from absl.testing import absltest, parameterized

from tvdp_tf.runtimes.compiled import ordered_fold


class OrderedFoldTest(parameterized.TestCase):
  def fold(self, threads, in_thread=contextlib.nullcontext):
    fold = ordered_fold.OrderedFold(threads, in_thread)
    self.addCleanup(fold.close)
    return fold

  @parameterized.product(
    threads=[1, 2, 5], count=[0, 1, 3, 40, 500], added_together=[1, 3, 20]
  )
  def test_adds_every_part_in_order(self, threads, count, added_together):
    rng = random.Random(0)
    pauses = [rng.random() * 2e-3 if count < 100 else 0 for _ in range(count)]

    def work(item):
      time.sleep(pauses[item])
      return 2 * item

    for _ in range(3):
      found = self.fold(threads)(
        work,
        lambda total, parts: [*total, *parts],
        [],
        range(count),
        added_together,
      )
      self.assertEqual(found, [2 * item for item in range(count)])

  @parameterized.parameters(1, 2, 3)
  def test_waits_for_several_parts(self, threads):
    sizes = self.fold(threads)(
      lambda item: item,
      lambda total, parts: [*total, len(parts)],
      [],
      range(30),
      4,
    )
    self.assertEqual(sum(sizes), 30)
    self.assertGreaterEqual(min(sizes[:-1]), 4)

  @parameterized.parameters((3, False), (2, True))
  def test_threads_work_at_the_same_time(self, threads, waits):
    together = threading.Barrier(3, timeout=30)
    names = self.fold(threads)(
      lambda item: (
        (together.wait() and None) or threading.current_thread().name
      ),
      lambda total, parts: total.union(parts),
      set(),
      range(3),
      waits=waits,
    )
    self.assertLen(names, 3)
    self.assertIn(threading.current_thread().name, names)

  def test_one_thread_is_the_callers(self):
    names = self.fold(1)(
      lambda item: threading.current_thread().name,
      lambda total, parts: total.union(parts),
      set(),
      range(9),
    )
    self.assertEqual(names, {threading.current_thread().name})

  def test_every_thread_works_in_the_context(self):
    inside = threading.local()

    @contextlib.contextmanager
    def in_thread():
      inside.here = True
      yield
      inside.here = False

    found = self.fold(4, in_thread)(
      lambda item: getattr(inside, 'here', False),
      lambda total, parts: total and all(parts),
      True,
      range(50),
    )
    self.assertTrue(found)
    self.assertFalse(inside.here)

  def test_few_parts_wait_for_an_early_one(self):
    count, threads = 1000, 3
    lock = threading.Lock()
    held = most = 0

    def work(item):
      nonlocal held, most
      with lock:
        held += 1
        most = max(most, held)
      if item == 0:
        time.sleep(0.2)
      return item

    def add(total, parts):
      nonlocal held
      with lock:
        held -= len(parts)
      return total + sum(parts)

    total = self.fold(threads)(work, add, 0, range(count))
    self.assertEqual(total, sum(range(count)))
    self.assertLessEqual(most, (2 * threads + 1) * ordered_fold.MAX_CHUNK)

  @parameterized.product(threads=[1, 2, 4], failing=['work', 'add'])
  def test_an_error_ends_the_fold_and_no_later_one(self, threads, failing):
    fold = self.fold(threads)
    at_work = 0
    lock = threading.Lock()

    def work(item):
      nonlocal at_work
      with lock:
        at_work += 1
      time.sleep(1e-3)
      with lock:
        at_work -= 1
      if failing == 'work' and item == 20:
        raise KeyError(item)
      return item

    def add(total, parts):
      if failing == 'add' and 20 in parts:
        raise KeyError(parts)
      return total + sum(parts)

    with self.assertRaises(KeyError):
      fold(work, add, 0, range(1000))
    self.assertEqual(at_work, 0)
    self.assertEqual(fold(lambda item: item, add, 0, range(5)), 10)

  def test_interrupt_of_the_caller(self):
    fold = self.fold(2)
    caller = threading.current_thread()
    done = 0

    def work(item):
      nonlocal done
      del item
      time.sleep(1e-3)
      if threading.current_thread() is caller:
        raise KeyboardInterrupt
      done += 1

    with self.assertRaises(KeyboardInterrupt):
      fold(work, lambda total, parts: None, None, range(10_000))
    self.assertLess(done, 1000)


if __name__ == '__main__':
  absltest.main()
