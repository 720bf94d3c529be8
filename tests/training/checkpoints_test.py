import asyncio
import collections
import io
import os
import pathlib
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf.output import files
from tvdp_tf.training import checkpoints


class State(NamedTuple):
  """Of as many kinds as a learning process's state has."""

  weights: Any
  schedule: Any
  event: Any


def state(value=1.0):
  return State(
    weights=(np.full([3, 2], value, np.float32), tf.constant([value])),
    schedule=collections.OrderedDict(
      round=np.int32(value), variance=np.float64(value)
    ),
    event=(tf.constant('GaussianDpEvent'), ()),
  )


def parsed(completed, host):
  return {'completed': completed, **host}


class CheckpointsTestCase(parameterized.TestCase):
  """A folder for checkpoints."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path, 'checkpoints')
    self.checkpoints = self.open()

  def open(self, digest=b'd' * 32, like=None):
    return checkpoints.Checkpoints(self.folder, like or state(), digest)

  def save(self, completed, saved, **host):
    self.checkpoints.save(completed, saved, host)

  def load(self, opened=None, parse=parsed):
    opened = opened or self.open()
    return asyncio.run(opened.load_latest(parse))

  def assert_same(self, actual, expected):
    tf.nest.assert_same_structure(actual, expected)
    for a, b in zip(
      map(np.asarray, tf.nest.flatten(actual)),
      map(np.asarray, tf.nest.flatten(expected)),
      strict=True,
    ):
      self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
      self.assertEqual(a.tolist(), b.tolist())


class CheckpointsTest(CheckpointsTestCase):
  def test_round_trip(self):
    for completed in (1, 2, 3):
      self.save(
        completed,
        state(completed / 3),
        empty=np.zeros([0]),
        numbers=np.array([0.1, np.inf]),
      )
    self.assertCountEqual(os.listdir(self.folder), ['round_2', 'round_3'])
    loaded = self.load()
    self.assertEqual(loaded.completed, 3)
    self.assert_same(loaded.state, state(1.0))
    self.assertEqual(loaded.host['completed'], 3)
    self.assertEqual(loaded.host['numbers'].tolist(), [0.1, np.inf])
    self.assertEqual(loaded.host['empty'].shape, (0,))

  def test_python_numbers_keep_all_their_digits(self):
    # As the host puts them into a schedule's state.
    refined = state()._replace(
      schedule=collections.OrderedDict(round=7, variance=1 / 3)
    )
    self.save(1, refined)
    loaded = self.load().state.schedule
    self.assertEqual(loaded['variance'], 1 / 3)
    self.assertEqual(loaded['round'].dtype, np.int32)

  def test_nothing_saved(self):
    self.assertIsNone(self.load())

  def test_of_another_configuration_shape_or_round(self):
    self.save(4, state())
    for opened, reason in (
      (self.open(digest=b'e' * 32), 'to another run or configuration'),
      (
        self.open(like=state()._replace(weights=(np.ones([3, 2]), np.ones(1)))),
        'instead of float64',
      ),
      (
        self.open(
          like=state()._replace(
            weights=(np.ones([2, 3], np.float32), np.ones([1], np.float32))
          )
        ),
        'instead of float32',
      ),
    ):
      with self.assertLogs('absl', 'WARNING') as logs:
        self.assertIsNone(self.load(opened))
      self.assertIn(reason, logs.output[0])
      (aside,) = os.listdir(self.folder)
      self.assertEqual(aside, 'round_4.unusable')
      os.rename(self.folder / aside, self.folder / 'round_4')
    os.rename(self.folder / 'round_4', self.folder / 'round_5')
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertIsNone(self.load())
    self.assertIn('it is the checkpoint of round 4', logs.output[0])

  def test_what_cannot_be_parsed_is_set_aside_beside_earlier_ones(self):
    def parse(completed, host):
      if completed == 2:
        raise KeyError('total')
      return host

    self.save(1, state())
    (self.folder / 'round_2.unusable').mkdir()
    self.save(2, state())
    with self.assertLogs('absl', 'WARNING') as logs:
      self.assertEqual(self.load(parse=parse).completed, 1)
    self.assertIn("renamed to round_2.unusable: 'total'", logs.output[0])
    self.assertCountEqual(
      os.listdir(self.folder),
      ['round_1', 'round_2.unusable', 'round_2.unusable2'],
    )

  def test_errors_of_the_disk_are_one_line(self):
    for error, reason in (
      (OSError(28, 'No space left on device'), 'No space left on device'),
      (OSError(30, 'Read-only file system'), 'Read-only file system'),
    ):
      with (
        mock.patch.object(os, 'fsync', side_effect=error),
        self.assertRaisesRegex(
          files.NotWrittenError,
          f'checkpoints cannot be written: {reason}; nothing is lost, ',
        ),
      ):
        self.save(1, state())
      self.assertEmpty(os.listdir(self.folder))


class SavedModelTest(CheckpointsTestCase):
  """Checkpoints as they were before they became one file."""

  def save_as_before(self, completed, saved):
    host = io.BytesIO()
    np.savez(host, losses=np.array([0.1, np.inf]))
    leaves = map(np.asarray, tf.nest.flatten(saved))
    values = collections.OrderedDict(
      digest=np.frombuffer(b'd' * 32, np.uint8),
      completed=np.int64(completed),
      **{f'state_{i}': leaf for i, leaf in enumerate(leaves)},
      host=np.array(host.getvalue(), object),
    )
    manager = tff.program.FileProgramStateManager(
      self.folder, prefix='round_', keep_total=2, keep_first=False
    )
    asyncio.run(manager.save(values, completed))

  def test_is_read_and_replaced_by_files(self):
    for completed in (1, 2):
      self.save_as_before(completed, state(float(completed)))
    with mock.patch.object(tf.saved_model, 'load', side_effect=AssertionError):
      loaded = self.load()
    self.assertEqual(loaded.completed, 2)
    self.assert_same(loaded.state, state(2.0))
    self.assertEqual(loaded.host['losses'].tolist(), [0.1, np.inf])
    self.save(3, state())
    self.save(4, state())
    self.assertCountEqual(os.listdir(self.folder), ['round_3', 'round_4'])

  @parameterized.parameters(
    ('variables/variables.data-00000-of-00001', lambda c: c[:-100]),
    ('variables/variables.data-00000-of-00001', lambda c: b'x' + c[1:]),
    ('variables/variables.index', lambda c: b''),
    ('saved_model.pb', lambda c: b''),
  )
  def test_damaged_is_set_aside(self, name, change):
    self.save(1, state())
    self.save_as_before(2, state())
    path = self.folder / 'round_2' / name
    path.write_bytes(change(path.read_bytes()))
    with self.assertLogs('absl', 'WARNING'):
      self.assertEqual(self.load().completed, 1)
    self.assertCountEqual(
      os.listdir(self.folder), ['round_1', 'round_2.unusable']
    )


if __name__ == '__main__':
  absltest.main()
