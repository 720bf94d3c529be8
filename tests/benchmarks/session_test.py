"""The protocol: what is answered, and what happens when it is not."""

import json
import pathlib
import time
from unittest import mock

import hypothesis
import numpy as np
from absl.testing import absltest, parameterized

from benchmarks.harness import processes, session
from tests import mutations
from tests.benchmarks import fakes


class ParseTest(parameterized.TestCase):
  def test_fields(self):
    line = json.dumps({'event': 'rounds', 'seconds': [0.5, 1], 'loss': 2})
    found = session.parse(line, 'rounds', seconds=list, loss=float)
    self.assertEqual(found['seconds'], [0.5, 1])
    self.assertEqual(found['loss'], 2)

  @parameterized.parameters(
    'Loading data ...',
    '',
    '[]',
    '{}',
    '{"event": "ready"}',
    '{"event": "rounds"}',
    '{"event": "rounds", "seconds": 1}',
    '{"event": "rounds", "seconds": [1, "2"]}',
    '{"event": "rounds", "seconds": [true]}',
    '{"event": "rounds", "seconds": [NaN]}',
    '{"event": "rounds", "seconds": [1, Infinity]}',
    '{"event": "rounds", "seconds": [1' + '0' * 400 + ']}',
    '[' * 100_000,
  )
  def test_garbage(self, line):
    with self.assertRaises(ValueError):
      session.parse(line, 'rounds', seconds=list)

  @parameterized.parameters('null', '"1"', 'true', 'NaN', '[1]')
  def test_no_number(self, value):
    with self.assertRaisesRegex(ValueError, 'field loss is no float'):
      session.parse(f'{{"event": "e", "loss": {value}}}', 'e', loss=float)


class WeightsTest(absltest.TestCase):
  def test_any_damage_is_a_value_error_or_gives_arrays(self):
    path = self.create_tempfile().full_path
    np.savez(path + '.npz', np.ones([3, 2], np.float32), np.zeros(4))
    whole = pathlib.Path(path + '.npz').read_bytes()
    self.assertLen(session.read_weights(path + '.npz'), 2)

    @mutations.quick(300)
    @hypothesis.given(mutations.damaged(whole))
    def check(content):
      pathlib.Path(path).write_bytes(content)
      try:
        weights = session.read_weights(path)
      except ValueError:
        return
      for array in weights:
        self.assertIn(array.dtype.kind, 'f')

    check()


class SessionTest(parameterized.TestCase):
  def open(self, form, **kwargs):
    made = session.Session(
      fakes.contender(form), fakes.WORK, fakes.ROOT, **kwargs
    )
    self.addCleanup(made.close)
    return made

  def test_rounds_check_and_memory(self):
    program = self.open('same')
    self.assertIn('numpy', program.start.versions)
    self.assertGreater(program.start.seconds, program.start.build_seconds)
    self.assertLen(program.run(3), 3)
    first = program.check(2)
    self.assertLen(program.run(1), 1)
    second = program.check(2)
    # Without noise, and from the beginning.
    self.assertEqual(first.loss, second.loss)
    np.testing.assert_array_equal(first.weights[0], second.weights[0])
    self.assertLessEqual(
      first.parameter_norm, (fakes.WORK.l2_norm_clip or 0) + 1e-9
    )
    self.assertBetween(program.peak_bytes(), 10 * 2**20, 2**30)

  def test_garbage(self):
    with self.assertRaisesRegex(
      session.ProgramError,
      "numpy/garbage was to answer with 'ready', got 'Loading data ...'",
    ):
      self.open('garbage')

  def test_dead(self):
    program = self.open('dead')
    with self.assertRaisesRegex(
      session.ProgramError,
      'numpy/dead ended with exit status 1; its last line: it has had enough',
    ):
      program.run(1)

  def test_killed_between_commands(self):
    program = self.open('same')
    processes.kill([program._process.pid])
    program._process.wait()
    with self.assertRaisesRegex(session.ProgramError, 'exit status -9'):
      program.run(1)

  def test_nothing_of_it_runs_after_the_end(self):
    program = self.open('same')
    members = processes.tree(program._process.pid)
    program.close()
    self.assertFalse(any(map(processes._is_running, members)))

  def test_a_process_that_outlives_the_patience(self):
    started = time.monotonic()
    with mock.patch.object(processes, '_is_running', return_value=True):
      processes.kill([2**22 + 1], patience_s=0.1)
    self.assertBetween(time.monotonic() - started, 0.1, 10)

  def test_silent(self):
    with self.assertRaisesRegex(session.ProgramError, 'no answer in 0.5 s'):
      self.open('silent', timeout_s=0.5)

  def test_no_form(self):
    with self.assertRaisesRegex(session.ProgramError, 'No module named'):
      session.Session(
        fakes.contenders.Contender('a', 'b', 'c', 'tests.nothing'),
        fakes.WORK,
        fakes.ROOT,
      )

  def test_close_ends_the_children(self):
    program = self.open('child')
    members = processes.tree(program._process.pid)
    self.assertLen(members, 2)
    program.close()
    deadline = time.monotonic() + 10
    while any(processes.tree(pid) for pid in members):
      self.assertLess(time.monotonic(), deadline, 'a process is left')
      time.sleep(0.05)
    program.close()  # Again.


if __name__ == '__main__':
  absltest.main()
