"""What a measurement says of its machine."""

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

  def test_no_git(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    with mock.patch.dict(
      'os.environ', GIT_CEILING_DIRECTORIES=str(folder.parent)
    ):
      self.assertIsNone(machine.commit(folder))


if __name__ == '__main__':
  absltest.main()
