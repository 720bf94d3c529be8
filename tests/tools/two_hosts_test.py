"""Two hosts with a worker each, in small."""

import pathlib
from unittest import mock

from absl.testing import absltest

from tools import two_hosts_suite
from tvdp_tf import errors


class TwoHostsTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path, 'results')

  def test_the_table(self):
    two_hosts_suite._write(
      self.folder, {1: [3.9, 4.0, 9.0], 2: [2.0, 2.5, 1.0]}
    )
    rows = (self.folder / 'README.md').read_text().splitlines()
    self.assertIn('| 1 | 4.00 | 400 | 1.00 |', rows)
    self.assertIn('| 2 | 2.00 | 200 | 2.00 |', rows)

  def test_where_there_are_no_namespaces(self):
    with (
      mock.patch.object(two_hosts_suite, 'missing', return_value='no hosts'),
      self.assertRaisesRegex(errors.TrainingFailedError, 'no hosts'),
    ):
      two_hosts_suite.run(self.folder, 3, 1)
    self.assertFalse(self.folder.exists())

  def test_trains_and_reports(self):
    if reason := two_hosts_suite.missing():
      self.skipTest(reason)
    with mock.patch.object(two_hosts_suite, '_LOCAL_STEPS', 2):
      two_hosts_suite.run(self.folder, 3, 1)
    # One round of each kind counts.
    rows = (self.folder / 'rounds.csv').read_text().splitlines()
    self.assertEqual([row.split(',')[0] for row in rows], ['workers', '1', '2'])


if __name__ == '__main__':
  absltest.main()
