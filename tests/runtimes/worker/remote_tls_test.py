"""Tests of the deployment: mutual TLS in front of a contained worker."""

import csv
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

import grpc
from absl.testing import absltest, parameterized

from tests.binaries import program_runner
from tests.runtimes.worker import remote_workers, worker_checks
from tvdp_tf import errors
from tvdp_tf.runtimes.worker import distributed_runtime

_DEPLOY = pathlib.Path(__file__).resolve().parents[3] / 'deploy'
_MISSING = [
  name for name in ('haproxy', 'openssl') if shutil.which(name) is None
]


def _certificates(folder: pathlib.Path, *names: str) -> pathlib.Path:
  subprocess.run(
    [_DEPLOY / 'tls/certificates.sh', folder, *names],
    check=True,
    stderr=subprocess.PIPE,
  )
  return folder


def _credentials(ca, client=None) -> grpc.ChannelCredentials:
  """Of somebody who trusts one authority and has what is in a folder."""
  if client is None:
    return grpc.ssl_channel_credentials((ca / 'ca.crt').read_bytes())
  return grpc.ssl_channel_credentials(
    (ca / 'ca.crt').read_bytes(),
    (client / 'tls.key').read_bytes(),
    (client / 'tls.crt').read_bytes(),
  )


@unittest.skipIf(_MISSING, f'not installed: {", ".join(_MISSING)}')
class MutualTlsTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
    cls.ours = _certificates(folder / 'ours', '127.0.0.1', 'localhost')
    cls.others = _certificates(folder / 'others', '127.0.0.1')
    cls.elsewhere = _certificates(folder / 'elsewhere', 'elsewhere')

  def setUp(self):
    super().setUp()
    (self.worker,) = remote_workers.start(self, 1)
    self.target = self._start_proxy(self.ours)

  def _start_proxy(self, certificates: pathlib.Path) -> str:
    with socket.create_server(('127.0.0.1', 0)) as listener:
      self.proxy = subprocess.Popen(
        ['haproxy', '-db', '-f', _DEPLOY / 'tls/haproxy.cfg'],
        env={
          **os.environ,
          'TVDP_TF_LISTEN': f'fd@{listener.fileno()}',
          'TVDP_TF_WORKER': f'unix@{self.worker.socket}',
          'TVDP_TF_TLS': str(certificates / 'worker'),
        },
        pass_fds=[listener.fileno()],
        stderr=subprocess.DEVNULL,
      )
      self.addCleanup(self.proxy.wait)
      self.addCleanup(self.proxy.kill)
      return f'127.0.0.1:{listener.getsockname()[1]}'

  def _refused(self, **arguments) -> str:
    """The error of a trainer that does not get through."""
    with (
      self.assertRaises(distributed_runtime.WorkerError) as raised,
      distributed_runtime.remote_runtime(
        [self.target], startup_timeout_s=0.7, **arguments
      ),
    ):
      remote_workers.powers_of_ten(0, remote_workers.clients([0]))
    self.assertEmpty(self.worker.begun())
    return str(raised.exception)

  def test_the_right_certificate_trains(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    result = program_runner.run(
      'train.py',
      *('--mechanism=gradient', '--rounds=3', '--local_steps=1'),
      *('--runtime=remote', f'--workers={self.target}', '--noprogress'),
      *(f'--worker_tls={self.ours / "trainer"}', f'--output_dir={folder}'),
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertNotIn('lost', result.stderr)
    with open(folder / 'metrics.csv', newline='') as file:
      stddevs = [float(row['noise_stddev']) for row in csv.DictReader(file)]
    self.assertLen(stddevs, 3)
    self.assertGreater(min(stddevs), 0)
    # The way through the proxy is the only one.
    self.assertEqual(worker_checks.listening(self.proxy.pid), {'127.0.0.1'})
    self.assertEmpty(worker_checks.listening(self.worker.pid))

  def test_names_of_the_cluster(self):
    # As docs/DISTRIBUTED.md makes it and deploy/kubernetes uses it.
    folder = pathlib.Path(self.create_tempdir().full_path)
    _certificates(folder, '*.tvdp-tf-workers.tvdp-tf.svc')
    channel = grpc.secure_channel(
      self._start_proxy(folder),
      distributed_runtime.tls_credentials(folder / 'trainer'),
      [
        (
          'grpc.ssl_target_name_override',
          'tvdp-tf-worker-0.tvdp-tf-workers.tvdp-tf.svc',
        )
      ],
    )
    with channel, self.assertRaises(grpc.RpcError) as raised:
      channel.unary_unary('/no/such')(b'', wait_for_ready=True, timeout=20)
    self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)

  def test_files_that_are_missing(self):
    with self.assertRaisesRegex(errors.UsageError, '^cannot read .*ca.crt: No'):
      distributed_runtime.tls_credentials(self.ours)

  def test_who_is_refused(self):
    ours, others = self.ours, self.others
    # Who has the right one gets through at once.
    with distributed_runtime.remote_runtime(
      [self.target],
      credentials=distributed_runtime.tls_credentials(ours / 'trainer'),
    ):
      pass
    for name, client in (
      ('no certificate', None),
      ('of another authority', others / 'trainer'),
      ("a worker's", ours / 'worker'),
    ):
      with self.subTest(name):
        self._refused(credentials=_credentials(ours / 'ca', client))
    with self.subTest('no TLS'):
      self._refused(insecure=True)

  def test_a_proxy_that_is_not_ours_gets_nothing(self):
    with self.subTest('of another authority'):
      error = self._refused(
        credentials=_credentials(self.others / 'ca', self.others / 'trainer')
      )
      self.assertIn('CERTIFICATE_VERIFY_FAILED', error)
    with self.subTest('of another host'):
      self.target = self._start_proxy(self.elsewhere)
      error = self._refused(
        credentials=_credentials(
          self.elsewhere / 'ca', self.elsewhere / 'trainer'
        )
      )
      self.assertIn('Peer name 127.0.0.1 is not in peer certificate', error)

  def test_the_socket_is_this_users_alone(self):
    remote_workers.wait_until(self.worker.socket.exists)
    self.assertEqual(self.worker.socket.stat().st_mode & 0o777, 0o600)

  def test_keys_are_this_users_alone(self):
    for key in self.ours.rglob('*.key'):
      self.assertEqual(key.stat().st_mode & 0o777, 0o600)


if __name__ == '__main__':
  absltest.main()
