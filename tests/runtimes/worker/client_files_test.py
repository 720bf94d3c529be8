"""Clients' examples on disk: read back, refused, and gone with the process."""

import os
import resource
import signal
import stat
import tempfile
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.runtimes.worker import worker_checks
from tvdp_tf import runtimes
from tvdp_tf.runtimes.worker import client_files


def make_clients(sizes=(3, 1, 0, 5), shape=(2, 3), dtype=np.float32):
  rng = np.random.default_rng(0)
  return [
    (
      rng.uniform(0, 200, (size, *shape)).astype(dtype),
      rng.integers(0, 10, size).astype(np.int32),
    )
    for size in sizes
  ]


class ClientFilesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.enter_context(mock.patch.object(tempfile, 'tempdir', self.folder))

  def assert_reads(self, files, clients):
    read = tf.function(files.read)
    for index, expected in enumerate(clients):
      actual = read(tf.constant(index, tf.int64))
      for one, other in zip(actual, expected, strict=True):
        self.assertEqual(one.dtype, other.dtype.newbyteorder('='))
        np.testing.assert_array_equal(one, other)

  @parameterized.parameters(
    ((28, 28, 1), np.float32), ((), np.float64), ((3,), np.uint8), ((2,), bool)
  )
  def test_reads_what_was_written(self, shape, dtype):
    clients = make_clients(shape=shape, dtype=dtype)
    with client_files.ClientFiles(clients) as files:
      self.assertEqual(files.num_clients, 4)
      self.assert_reads(files, clients)

  def test_layout_of_the_arrays_does_not_matter(self):
    features = np.arange(24, dtype='>f4').reshape(2, 3, 4)
    clients = [(features.transpose(1, 2, 0), np.zeros((3, 2), '>i8'))]
    with client_files.ClientFiles(iter(clients)) as files:
      self.assert_reads(files, clients)

  def test_ops_may_write_over_what_was_read(self):
    # They do where nobody else needs their input; the file cannot be written.
    clients = make_clients((5, 20), (16,))
    with (
      client_files.ClientFiles(clients) as files,
      runtimes.local_runtime() as context,
    ):

      @tff.tensorflow.computation(np.int64, np.float32)
      def total(client, scale):
        features, _ = files.read(client, context.path_in_worker)
        return tf.reduce_sum(tf.sin(features * scale))

      self.assertAlmostEqual(
        total(1, 0.5), np.sin(clients[1][0] * 0.5).sum(), places=3
      )

  @parameterized.parameters(-1, 4, 5)
  def test_no_such_client(self, index):
    with (
      client_files.ClientFiles(make_clients()) as files,
      self.assertRaisesRegex(tf.errors.InvalidArgumentError, 'is not in'),
    ):
      files.read(tf.constant(index, tf.int64))

  def test_files_are_private_and_have_no_name(self):
    with client_files.ClientFiles(make_clients()):
      descriptors = worker_checks.open_files(self.folder)
      self.assertLen(descriptors, 3)
      for descriptor in descriptors:
        status = descriptor.stat()
        self.assertEqual(stat.S_IMODE(status.st_mode), 0o600)
        self.assertEqual(status.st_nlink, 0)
      self.assertEmpty(os.listdir(self.folder))

  def test_are_gone_after_the_end(self):
    files = client_files.ClientFiles(make_clients())
    files.close()
    files.close()
    self.assertEmpty(worker_checks.open_files(self.folder))

  def test_are_gone_after_an_exception(self):
    with (
      self.assertRaises(KeyError),
      client_files.ClientFiles(make_clients()),
    ):
      raise KeyError
    self.assertEmpty(worker_checks.open_files(self.folder))

  def test_are_gone_after_a_kill(self):
    child = worker_checks.start_child(
      self,
      """
      import os, sys, tempfile, time
      import numpy as np
      from tvdp_tf.runtimes.worker import client_files
      tempfile.tempdir = sys.argv[1]
      files = client_files.ClientFiles([(np.ones([1000]), np.ones([1000]))])
      targets = []
      for number in os.listdir('/proc/self/fd'):
        try:
          targets.append(os.readlink('/proc/self/fd/' + number))
        except FileNotFoundError:
          pass
      print(sum(t.startswith(sys.argv[1] + '/') for t in targets), flush=True)
      time.sleep(600)
      """,
      self.folder,
    )
    self.assertEqual(worker_checks.first_line(child), '3\n')
    self.assertEmpty(os.listdir(self.folder))
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    self.assertEmpty(os.listdir(self.folder))

  def test_no_space_is_one_clear_line(self):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, hard))
    try:
      with self.assertRaisesRegex(
        client_files.ClientFilesError,
        r"^the clients' examples cannot be written to \S+: File too large; set "
        'the environment variable TMPDIR to another folder$',
      ):
        client_files.ClientFiles(make_clients((5000,)))
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    self.assertEmpty(worker_checks.open_files(self.folder))

  def test_no_folder_is_one_clear_line(self):
    with (
      mock.patch.object(tempfile, 'tempdir', f'{self.folder}/none'),
      self.assertRaisesRegex(
        client_files.ClientFilesError, '/none: No such file or directory;'
      ),
    ):
      client_files.ClientFiles(make_clients())

  @parameterized.named_parameters(
    (
      'shape',
      make_clients((2,)) + make_clients((2,), (3,)),
      'features must be',
    ),
    ('dtype', make_clients((2,)) + make_clients((2,), dtype=int), 'the same'),
    ('strings', [(np.array(['a']), np.zeros([1]))], 'an array of numbers'),
    (
      'count',
      [(np.zeros([2]), np.zeros([3]))],
      'labels of client 0 must have 2',
    ),
    ('no_examples', make_clients((0, 0)), 'must have at least one example'),
    ('no_clients', [], 'must have at least one example'),
  )
  def test_refuses(self, clients, message):
    with self.assertRaisesRegex(ValueError, message):
      client_files.ClientFiles(clients)
    self.assertEmpty(worker_checks.open_files(self.folder))


if __name__ == '__main__':
  absltest.main()
