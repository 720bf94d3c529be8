"""What a measurement says of its machine."""

import os
import pathlib
from unittest import mock

from absl.testing import absltest

from tvdp_tf.output import machine


class MachineTest(absltest.TestCase):
  def test_describes(self):
    found = machine.describe()
    self.assertGreater(found['memory_gib'], 0.1)
    self.assertGreaterEqual(found['cores'], 1)

  def test_no_proc(self):
    with mock.patch.object(
      pathlib.Path, 'read_text', side_effect=FileNotFoundError
    ):
      found = machine.describe()
    self.assertNotEmpty(found['processor'])

  def test_gpus(self):
    folder = self.create_tempdir()
    program = folder.create_file('nvidia-smi', '#!/bin/sh\necho NVIDIA H200\n')
    os.chmod(program.full_path, 0o755)
    with mock.patch.dict('os.environ', PATH=f'{folder.full_path}:/bin'):
      found = machine.describe()
    self.assertEqual(found['gpus'], ['NVIDIA H200'])
    self.assertIn(' GiB, NVIDIA H200, ', machine.in_words(found))
    with mock.patch.dict('os.environ', PATH=''):
      self.assertNotIn('gpus', machine.describe())

  def test_no_git(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    with mock.patch.dict(
      'os.environ', GIT_CEILING_DIRECTORIES=str(folder.parent)
    ):
      self.assertIsNone(machine.commit(folder))


if __name__ == '__main__':
  absltest.main()
