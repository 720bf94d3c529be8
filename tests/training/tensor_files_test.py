import asyncio
import collections
import hashlib
import json
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf.training import checkpoints


class TensorFilesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path, 'states')
    self.manager = checkpoints.TensorFilesManager(self.folder, keep_total=2)

  def save(self, state, version):
    asyncio.run(self.manager.save(state, version))

  def load(self, version, structure):
    return asyncio.run(self.manager.load(version, structure))

  def test_versions(self):
    self.assertIsInstance(self.manager, tff.program.ProgramStateManager)
    self.assertIsNone(asyncio.run(self.manager.get_versions()))
    for version in (1, 9, 10):
      self.save([version], version)
    self.assertEqual(asyncio.run(self.manager.get_versions()), [9, 10])
    state, version = asyncio.run(self.manager.load_latest([0]))
    self.assertEqual((state, version), ([10], 10))
    with self.assertRaises(tff.program.ProgramStateExistsError):
      self.save([0], 10)
    with self.assertRaises(tff.program.ProgramStateNotFoundError):
      self.load(1, [0])
    asyncio.run(self.manager.remove_all())
    self.assertEmpty(os.listdir(self.folder))

  @parameterized.parameters(
    *(np.bool_, np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64),
    *(
      tf.bfloat16.as_numpy_dtype,
      tf.dtypes.experimental.float8_e5m2.as_numpy_dtype,
    ),
  )
  def test_dtypes(self, dtype):
    for shape in ((), (0,), (3, 1)):
      array = np.full(shape, 1, dtype)
      loaded = self.load_after_save(array)
      self.assertEqual((loaded.dtype, loaded.shape), (array.dtype, shape))
      self.assertEqual(loaded.tobytes(), array.tobytes())

  def load_after_save(self, array):
    asyncio.run(self.manager.remove_all())
    self.save((array,), 1)
    return self.load(1, (0,))[0]

  def test_extreme_values(self):
    for array in (
      np.array([np.nan, -np.inf, -0.0, 5e-324]),
      np.array([2**63 - 1, -(2**63)]),
      np.asfortranarray(np.arange(6.0).reshape(2, 3)),
      np.array([1.5, -2], '>f8'),
    ):
      loaded = self.load_after_save(array)
      np.testing.assert_array_equal(loaded, array)
      np.testing.assert_array_equal(np.signbit(loaded), np.signbit(array))

  @parameterized.parameters(b'', b'GaussianDpEvent', b'a\0b', b'\xff')
  def test_texts(self, text):
    self.assertEqual(self.load_after_save(tf.constant(text)).item(), text)
    self.assertEqual(
      self.load_after_save(tf.constant([text, b'long one'])).tolist(),
      [text, b'long one'],
    )

  @parameterized.parameters(
    (tf.constant(b'ends with\0'),),
    (np.array([None]),),
    (np.array([1], object),),
  )
  def test_what_would_change_is_refused(self, value):
    with self.assertRaisesRegex(TypeError, 'must consist of tensors'):
      self.save([value], 1)
    self.assertEmpty(os.listdir(self.folder))

  @parameterized.parameters('|O', 'O8')
  def test_objects_are_refused(self, dtype):
    # NumPy would take the bytes for addresses.
    head = json.dumps([['int64'], [['0', dtype, [1]]]]).encode()
    content = len(head).to_bytes(8, 'little') + head + bytes(8)
    path = self.manager.path(1)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(hashlib.sha256(content).digest() + content)
    with self.assertRaisesRegex(ValueError, 'objects'):
      self.load(1, (0,))

  def test_nesting(self):
    state = collections.OrderedDict(
      b=(tf.constant(1.0), ()), a=[np.int32(2), 3]
    )
    self.save(state, 1)
    loaded = self.load(1, state)
    tf.nest.assert_same_structure(loaded, state)
    self.assertEqual(
      [float(x) for x in tf.nest.flatten(loaded)], [2.0, 3.0, 1.0]
    )
    with self.assertRaises(ValueError):
      self.load(1, [0])

  def test_is_on_the_disk_under_its_name_or_not_at_all(self):
    self.save([1], 1)
    synced = []
    fsync = os.fsync

    def noted(descriptor):
      synced.append(os.readlink(f'/proc/self/fd/{descriptor}'))
      fsync(descriptor)

    with mock.patch.object(os, 'fsync', noted):
      self.save([2], 2)
    folder = str(self.folder)
    self.assertEqual(synced, [f'{folder}/.round_2.{os.getpid()}', folder])
    for name in ('fsync', 'replace'):
      with (
        mock.patch.object(os, name, side_effect=OSError(28, 'full')),
        self.assertRaises(OSError),
      ):
        self.save([3], 3)
      self.assertCountEqual(os.listdir(folder), ['round_1', 'round_2'])

  def test_damage(self):
    self.save([np.arange(5)], 1)
    path = self.manager.path(1)
    content = path.read_bytes()
    for damaged in (b'', content[:32], content[:-1], content + b'\0'):
      path.write_bytes(damaged)
      with self.assertRaises(ValueError):
        self.load(1, [0])


if __name__ == '__main__':
  absltest.main()
