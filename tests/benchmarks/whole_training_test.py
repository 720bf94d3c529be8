"""Whole trainings: timed, complete, as accurate as ours; and their data."""

import dataclasses
import pathlib
from unittest import mock

import numpy as np
import psutil
from absl.testing import absltest, parameterized

from benchmarks.harness import contenders, session, training, whole_training
from benchmarks.harness import work as work_lib
from tests.benchmarks import fakes


class MeasureTest(parameterized.TestCase):
  def measure(self, *forms, repeats=1, smoke=True):
    self.enter_context(
      mock.patch.object(
        whole_training, '_DATASETS', dict.fromkeys((True, False), 'digits')
      )
    )
    return whole_training.measure(
      fakes.WORK,
      [fakes.trainer(form) for form in forms],
      fakes.ROOT,
      repeats,
      smoke=smoke,
    )

  def test_turns(self):
    found = self.measure('same', 'other', repeats=2)
    names = ['numpy/same', 'numpy/other']
    self.assertEqual([one.contender for one in found[:2]], names)
    self.assertCountEqual([one.contender for one in found[2:]], names)
    self.assertEqual([one.number for one in found], [1, 1, 2, 2])
    for one in found:
      self.assertBetween(one.seconds, 1e-3, 300)
      self.assertEqual(one.accuracy, 1.0 if 'same' in one.contender else 0.5)

  @parameterized.parameters(
    ('dead', 'exit status 1; its last line: it has had enough'),
    ('half', 'was to evaluate rounds 1 to 3, it has evaluated 1'),
    ('unsaved', 'has left no checkpoint of round 3'),
  )
  def test_incomplete(self, form, message):
    with self.assertRaisesRegex(session.ProgramError, message):
      self.measure(form)

  def test_another_accuracy(self):
    with self.assertRaisesRegex(
      session.ProgramError,
      'numpy/other come to a test accuracy of 0.500 in the median, ours to '
      '1.000',
    ):
      self.measure('same', 'other', smoke=False)

  @parameterized.parameters(
    ((0.7, 0.6, 0.71), (0.72, 0.8, 0.73), True),
    ((0.7, 0.6, 0.71), (0.7, 0.8, 0.77), False),
  )
  def test_medians_are_compared(self, ours, theirs, is_same):
    trainings = [
      whole_training.WholeTraining(name, number + 1, 1.0, accuracy)
      for number in range(3)
      for name, accuracy in (('ours', ours[number]), ('theirs', theirs[number]))
    ]
    if is_same:
      whole_training.check_accuracies(trainings)
    else:
      with self.assertRaisesRegex(session.ProgramError, 'theirs .*0.77'):
        whole_training.check_accuracies(trainings)

  def test_what_is_left_behind_is_ended(self):
    seen = set()
    real = whole_training.processes.tree

    def tree(pid):
      found = real(pid)
      seen.update(found)
      return found

    with (
      mock.patch.object(whole_training.processes, 'tree', tree),
      mock.patch.object(whole_training, '_LOOK_S', 0.001),
    ):
      self.measure('child')
    self.assertGreater(len(seen), 1)
    for pid in seen:
      self.assertFalse(
        psutil.pid_exists(pid)
        and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
      )


class DataTest(absltest.TestCase):
  def test_users_have_the_examples_of_the_data_set(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    examples = whole_training.write_data(folder, 'generated_mnist', None)
    work = dataclasses.replace(fakes.WORK, examples_per_user=examples // 4)
    made = training.Training(work, 'same', 3, folder, folder)
    indices = made.indices()
    self.assertEqual(indices.shape, (4, examples // 4))
    self.assertLen(np.unique(indices), examples)
    self.assertEqual(made.features.shape, (4, examples // 4, 784))
    self.assertEqual(made.features.dtype, np.float32)
    self.assertBetween(made.features.max(), 0.9, 1.0)
    features, labels = made.user(indices[2])
    np.testing.assert_array_equal(features, made.features[2])
    np.testing.assert_array_equal(labels, made.labels[2])
    self.assertEqual(labels.dtype, np.int32)
    test_features, test_labels = made.test()
    self.assertEqual(test_features.shape, (len(test_labels), 784))


class WhoTest(absltest.TestCase):
  def test_who_trains(self):
    for name, peers in (
      ('mlp-round', {'pfl/process', 'flower/simulation'}),
      ('private-mlp-round', {'opacus/loop', 'opacus/threads'}),
    ):
      able = {
        contender.name
        for contender in contenders.CONTENDERS.values()
        if whole_training.trains(contender, work_lib.WORKS[name])
      }
      self.assertEqual(able, {contenders.OURS.name, *peers})
    self.assertFalse(
      whole_training.trains(contenders.OURS, work_lib.WORKS['cnn-round'])
    )


if __name__ == '__main__':
  absltest.main()
