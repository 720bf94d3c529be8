"""Tests of computations on several workers, of which some fail."""

import contextlib
import signal
import sys
import threading
import time
import unittest
from unittest import mock

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.runtimes.worker import remote_workers, worker_checks
from tvdp_tf import mechanisms, privacy
from tvdp_tf.runtimes.worker import (
  _worker_client,
  distributed_runtime,
  worker_runtime,
)

_SCHEDULE = privacy.GeometricSchedule(theta=0.9, rounds=3, initial_stddev=0.02)


@tff.tensorflow.computation(np.int64)
def _require_five(x):
  with tf.control_dependencies([tf.debugging.assert_equal(x, np.int64(5))]):
    return tf.identity(x)


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def _sum_of_fives(x):
  return tff.federated_sum(tff.federated_map(_require_five, x))


@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def _fives(x):
  return tff.federated_map(_require_five, x)


@contextlib.contextmanager
def _on(workers, timeout_s=20.0):
  with distributed_runtime.remote_runtime(
    [worker.target for worker in workers],
    insecure=True,
    timeout_s=timeout_s,
  ) as context:
    # Compiled now, so that what comes is fast.
    remote_workers.powers_of_ten(0, [])
    yield context


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class SpreadTest(parameterized.TestCase):
  def test_every_worker_has_its_share(self):
    workers = remote_workers.start(self, 3)
    with _on(workers):
      total = remote_workers.powers_of_ten(
        7, remote_workers.clients(range(7), sleep_s=0.4)
      )
    self.assertEqual(total, (1111111 + 7 * 7, 7))
    self.assertEqual(
      [worker.begun() for worker in workers], [[0, 1], [2, 3], [4, 5, 6]]
    )

  def test_workers_work_at_the_same_time(self):
    workers = remote_workers.start(self, 3)
    with _on(workers):
      call = remote_workers.in_background(
        lambda: remote_workers.powers_of_ten(
          0, remote_workers.clients(range(3), sleep_s=1.0)
        )
      )
      for i, worker in enumerate(workers):
        remote_workers.wait_until(worker.begun)
        self.assertEqual(worker.begun(), [i])
      self.assertFalse(any(worker.ended() for worker in workers))
      self.assertEqual(call()[0], 111)

  def test_cohorts_of_any_size(self):
    with _on(remote_workers.start(self, 2)):
      for size in (0, 1, 2, 3):
        total, _ = remote_workers.powers_of_ten(
          0, remote_workers.clients(range(size))
        )
        self.assertEqual(total, sum(10**i for i in range(size)))

  def test_results_at_the_clients(self):
    with _on(remote_workers.start(self, 2)):
      self.assertEqual(list(_fives([5, 5, 5])), [5, 5, 5])

  @parameterized.named_parameters(
    ('paper', mechanisms.PaperMechanism(_SCHEDULE, 4.0)),
    ('central', mechanisms.CentralMechanism(_SCHEDULE, 0.5, 3.0, seed=4)),
  )
  def test_equals_one_worker(self, mechanism):
    process = remote_workers.build_process(mechanism)
    with worker_runtime.local_runtime():
      expected = remote_workers.train(process)
    workers = remote_workers.start(self, 3)
    with _on(workers) as context:
      actual = remote_workers.train(process)
      workers[1].kill()
      with_a_loss = remote_workers.train(process)
      self.assertIn(workers[1].target, context.lost_workers)
      other_noise = remote_workers.train(process, seed=2)
    tf.nest.assert_same_structure(actual, expected)
    for one, other, third in zip(
      *map(tf.nest.flatten, (actual, expected, with_a_loss)), strict=True
    ):
      if np.array(one).dtype.kind in 'iuf':
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
      else:
        self.assertEqual(np.array(one), np.array(other))
      # The shares are the same, and so are the noise and the order of the sums.
      np.testing.assert_array_equal(np.array(third), np.array(one))
    if isinstance(mechanism, mechanisms.PaperMechanism):
      weights, others = (
        state.global_model_weights.trainable[0]
        for state, _ in (actual, other_noise)
      )
      self.assertGreater(np.abs(weights - others).max(), 1e-3)


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class LossTest(absltest.TestCase):
  def _call(self, count, sleep_s):
    return remote_workers.in_background(
      lambda: remote_workers.powers_of_ten(
        0, remote_workers.clients(range(count), sleep_s)
      )
    )

  def test_killed_in_its_work(self):
    workers = remote_workers.start(self, 3)
    with _on(workers, timeout_s=60.0) as context:
      call = self._call(3, 1.0)
      remote_workers.wait_until(workers[1].begun)
      started = time.monotonic()
      workers[1].kill()
      self.assertEqual(call()[0], 111)
      self.assertLess(time.monotonic() - started, 20.0)  # Seen at once.
      self.assertEqual(list(context.lost_workers), [workers[1].target])
      # Its share, and no more, was repeated.
      self.assertEqual(
        [worker.begun() for worker in workers], [[0], [1], [1, 2]]
      )
      # It does without the worker, and with it once it is back.
      self.assertEqual(self._call(3, 0.0)()[0], 111)
      self.assertEqual(workers[1].begun(), [1])
      workers[1].start()

      def is_back():
        remote_workers.powers_of_ten(0, remote_workers.clients(range(3)))
        return workers[1].begun() != [1]

      remote_workers.wait_until(is_back)
      self.assertEmpty(context.lost_workers)

  def test_the_only_one_is_restarted(self):
    workers = remote_workers.start(self, 1)
    with self.assertLogs('absl', 'WARNING') as log, _on(workers):
      call = self._call(1, 1.0)
      remote_workers.wait_until(workers[0].begun)
      workers[0].kill()
      time.sleep(0.5)
      workers[0].start()
      self.assertEqual(call()[0], 1)
      self.assertEqual(workers[0].begun(), [0, 0])
    self.assertRegex(
      log.output[-1],
      'no worker is left: waiting for one to answer again, at most .* s; '
      f'Ctrl-C ends the wait .{workers[0].target}: ',
    )

  def test_restarted_between_two_rounds(self):
    workers = remote_workers.start(self, 1)
    with _on(workers):
      workers[0].kill()
      workers[0].start()
      self.assertEqual(self._call(2, 0.0)()[0], 11)

  def test_hung(self):
    workers = remote_workers.start(self, 2)
    with _on(workers, timeout_s=2.0) as context:
      call = self._call(2, 0.5)
      remote_workers.wait_until(workers[0].begun)
      started = time.monotonic()
      workers[0].signal(signal.SIGSTOP)
      self.assertEqual(call()[0], 11)
      self.assertBetween(time.monotonic() - started, 1.5, 15.0)
      self.assertEqual(
        context.lost_workers, {workers[0].target: 'no answer within 2 s'}
      )
      # The second time nobody waits for it.
      started = time.monotonic()
      self.assertEqual(self._call(2, 0.0)()[0], 11)
      self.assertLess(time.monotonic() - started, 1.5)
      workers[0].signal(signal.SIGCONT)
      begun = workers[0].begun()

      def is_back():
        remote_workers.powers_of_ten(0, remote_workers.clients(range(2)))
        return workers[0].begun() != begun

      remote_workers.wait_until(is_back)

  def test_slow_but_in_time(self):
    workers = remote_workers.start(self, 2)
    with _on(workers, timeout_s=15.0) as context:
      call = self._call(2, 0.5)
      remote_workers.wait_until(workers[0].begun)
      workers[0].signal(signal.SIGSTOP)
      time.sleep(1.0)
      workers[0].signal(signal.SIGCONT)
      self.assertEqual(call()[0], 11)
      self.assertEmpty(context.lost_workers)
    self.assertEqual([worker.begun() for worker in workers], [[0], [1]])

  def test_nobody_is_left(self):
    workers = remote_workers.start(self, 2)
    with _on(workers, timeout_s=1.5) as context:
      for worker in workers:
        worker.kill()
      started = time.monotonic()
      error = worker_checks.error_of(
        lambda: context.invoke(_sum_of_fives, [np.int64(5)] * 2)
      )
      self.assertLess(time.monotonic() - started, 10.0)
    self.assertIsInstance(error, distributed_runtime.WorkerError)
    self.assertRegex(str(error), r'^no worker is left: unix:.*; unix:.*$')

  def test_work_that_nobody_finishes_is_given_up(self):
    workers = remote_workers.start(self, 2)
    with _on(workers, timeout_s=0.8) as context:
      error = worker_checks.error_of(
        lambda: context.invoke(
          remote_workers.powers_of_ten,
          remote_workers.argument(remote_workers.clients([0], sleep_s=60.0)),
        )
      )
    self.assertIsInstance(error, distributed_runtime.WorkerError)
    self.assertEqual(str(error).count('no answer within 0.8 s'), 2)
    self.assertEqual([worker.begun() for worker in workers], [[0, 0], [0, 0]])

  def test_failing_computation_is_no_loss(self):
    with _on(remote_workers.start(self, 2)) as context:
      with self.assertRaisesRegex(grpc.RpcError, 'did not hold'):
        _sum_of_fives([5, 4, 5])
      self.assertEqual(_sum_of_fives([5, 5, 5]), 15)
      self.assertEmpty(context.lost_workers)

  def test_leaving_the_block_ends_a_call_of_another_thread(self):
    workers = remote_workers.start(self, 2)
    with _on(workers) as context:
      closing = threading.Timer(0.5, context.close)
      closing.start()
      error = worker_checks.error_of(
        lambda: context.invoke(
          remote_workers.powers_of_ten,
          remote_workers.argument(remote_workers.clients([0, 1], sleep_s=60.0)),
        )
      )
      closing.join()
    self.assertIsInstance(error, distributed_runtime.WorkerError)
    self.assertIn('closed', str(error))


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class EntryTest(parameterized.TestCase):
  def test_none_is_there(self):
    before = worker_checks.threads_and_descriptors()
    with (
      self.assertRaisesRegex(
        distributed_runtime.WorkerError,
        r'^no worker is left: localhost:1: .*Connection refused.*$',
      ),
      distributed_runtime.remote_runtime(
        ['localhost:1'], insecure=True, startup_timeout_s=0.5
      ),
    ):
      self.fail('the block was entered')
    self.assertEqual(worker_checks.threads_and_descriptors()[0], before[0])
    self.assertEmpty(_worker_client._open_channels)

  def test_what_an_interrupt_leaves_open_is_closed_at_the_end(self):
    """Or Python's end might wait for ever for a call."""
    left = _worker_client._open_channels
    before = {*left}
    with (
      mock.patch.object(
        distributed_runtime, 'RemoteContext', side_effect=KeyboardInterrupt
      ),
      self.assertRaises(KeyboardInterrupt),
      distributed_runtime.remote_runtime(['localhost:1'], insecure=True),
    ):
      self.fail('the block was entered')
    (channel,) = left - before
    with mock.patch.object(
      _worker_client, '_open_channels', {channel}
    ) as open_:
      _worker_client._close_channels()
      self.assertEmpty(open_)
    left.discard(channel)
    with self.assertRaisesRegex(ValueError, 'closed'):
      channel.unary_unary('/tvdp_tf/AreYouThere')(b'')

  def test_one_is_missing(self):
    (worker,) = remote_workers.start(self, 1)
    with (
      self.assertLogs(level='WARNING') as logs,
      distributed_runtime.remote_runtime(
        ['localhost:1', worker.target], insecure=True, startup_timeout_s=1.0
      ) as context,
    ):
      self.assertEqual(_sum_of_fives([5, 5]), 10)
      self.assertEqual(list(context.lost_workers), ['localhost:1'])
    self.assertIn('localhost:1', logs.output[0])

  def test_cycles_leave_no_threads_and_no_descriptors(self):
    workers = remote_workers.start(self, 2)

    def cycle():
      with distributed_runtime.remote_runtime(
        [worker.target for worker in workers], insecure=True
      ):
        self.assertEqual(_sum_of_fives([5, 5]), 10)

    worker_checks.assert_cycles_leave_nothing(self, cycle, 20)

  def test_closed_context_refuses(self):
    with _on(remote_workers.start(self, 1)) as context:
      pass
    with self.assertRaisesRegex(distributed_runtime.WorkerError, 'closed'):
      context.invoke(_sum_of_fives, [np.int64(5)])

  @parameterized.named_parameters(
    ('one_string', 'localhost:1', {'insecure': True}, 'targets'),
    ('none', [], {'insecure': True}, 'targets'),
    ('twice', ['a:1', 'a:1'], {'insecure': True}, 'targets'),
    ('no_credentials', ['a:1'], {}, 'insecure'),
    (
      'both',
      ['a:1'],
      {
        'insecure': True,
        'credentials': grpc.ssl_channel_credentials(),
      },
      'insecure',
    ),
    ('no_time', ['a:1'], {'insecure': True, 'timeout_s': 0}, 'timeout_s'),
    (
      'no_start',
      ['a:1'],
      {'insecure': True, 'startup_timeout_s': -1},
      'startup_timeout_s',
    ),
    (
      'empty_messages',
      ['a:1'],
      {'insecure': True, 'max_message_megabytes': 0},
      'max_message_megabytes',
    ),
  )
  def test_bad_argument(self, targets, arguments, name):
    with self.assertRaisesRegex(ValueError, f'^{name} must be'):
      distributed_runtime.remote_runtime(
        targets, **arguments
      )  # Before the entry.


if __name__ == '__main__':
  absltest.main()
