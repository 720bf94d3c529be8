"""Tests that nobody but its own process reaches a worker."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.runtimes.worker import worker_checks
from tvdp_tf.runtimes.worker import _worker_process

_WORKER_BINARY = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'

# Serves the contents of files by their paths, in the place of TFF's worker.
_FILE_SERVER = f"""#!{sys.executable} -IS
import socket, sys
server = socket.create_server(
  ('', int(sys.argv[-1].rpartition('=')[2])), dualstack_ipv6=True,
  family=socket.AF_INET6)
while True:
  connection, _ = server.accept()
  try:
    answer = open(connection.recv(1000), 'rb').read()
  except OSError as error:
    answer = str(error).encode()
  connection.sendall(answer)
  connection.close()
"""

# Asks it, for a file that has no name, by several paths.
_ASK = """
import tempfile
start()
file = tempfile.TemporaryFile()
file.write(b'the content')
file.flush()
shared = worker.path_in_worker(file.fileno())
for path in (shared, f'/proc/{os.getpid()}/fd/{file.fileno()}', '/nowhere'):
  client = socket.socket(socket.AF_UNIX)
  client.connect(worker.target.removeprefix('unix:'))
  client.sendall(path.encode())
  print(client.recv(1000).decode())
with open(f'/proc/{worker.pid}/net/dev') as network:
  for line in network:
    if ':' in line:
      print(line.partition(':')[0])
"""


def _without_namespaces() -> str:
  """Why there are none here; empty if there are."""
  done = subprocess.run(
    ['unshare', '--user', '--map-root-user', '--net', 'true'],
    capture_output=True,
    text=True,
    check=False,
  )
  return done.stderr.strip()


@unittest.skipIf(_without_namespaces(), _without_namespaces())
class ContainmentTest(parameterized.TestCase):
  def _start(self, **kwargs) -> _worker_process.WorkerProcess:
    worker = _worker_process.WorkerProcess(
      str(_WORKER_BINARY), [], 60.0, **kwargs
    )
    self.addCleanup(worker.stop)
    return worker

  def test_no_port_of_this_host_is_open(self):
    contained = self._start()
    (relay,) = worker_checks.children(contained.pid)
    for pid in (contained.pid, relay, os.getpid()):
      self.assertEmpty(worker_checks.listening(pid))
    # The look would see a port that is open, to everybody.
    self.assertEqual(
      worker_checks.listening(self._start(contained=False).pid), {'::'}
    )
    with socket.create_server(('127.0.0.1', 0)):
      self.assertEqual(worker_checks.listening(os.getpid()), {'127.0.0.1'})

  def test_nothing_leads_to_the_socket(self):
    folder = self.create_tempdir().full_path
    with mock.patch.object(tempfile, 'tempdir', folder):
      worker = self._start()
    self.assertEmpty(os.listdir(folder))
    path = worker.target.removeprefix('unix:')
    child = worker_checks.start_child(
      self,
      """
      import socket, sys
      socket.socket(socket.AF_UNIX).connect(sys.argv[1])
      """,
      path,
    )
    self.assertIn('Error', child.communicate()[1])
    with socket.socket(socket.AF_UNIX) as client:
      client.connect(path)

  @parameterized.named_parameters(
    ('as_this_user', []),
    # What users lack who are not root.
    (
      'without_rights',
      ['setpriv', '--bounding-set', '-sys_admin,-sys_ptrace,-dac_override'],
    ),
  )
  def test_files_are_shared(self, prefix):
    with worker_checks.script(_FILE_SERVER) as path:
      child = worker_checks.start_child(
        self, worker_checks.START_WORKER + _ASK, path, prefix=prefix
      )
      output, errors = child.communicate(timeout=worker_checks.PATIENCE_S)
    self.assertEqual(errors, '')
    _, shared, own, nowhere, *interfaces = output.splitlines()
    self.assertEqual(shared, 'the content')
    self.assertIn('No such file', nowhere)
    self.assertEqual([name.strip() for name in interfaces], ['lo'])
    if prefix:
      self.assertIn('Permission denied', own)

  def test_relay_that_is_lost(self):
    worker = self._start()
    (relay,) = worker_checks.children(worker.pid)
    os.kill(relay, signal.SIGKILL)
    with self.assertRaisesRegex(_worker_process.WorkerError, 'takes no file'):
      worker.path_in_worker(0)

  def test_systems_without_namespaces_are_refused(self):
    none = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$0" "$@"'
    prefix = ['unshare', '--user', '--map-root-user', 'sh', '-c', none]
    prefix += ['setpriv', '--bounding-set=-all']
    child = worker_checks.start_child(
      self,
      worker_checks.START_WORKER + 'start()',
      str(_WORKER_BINARY),
      prefix=prefix,
    )
    errors = child.communicate(timeout=worker_checks.PATIENCE_S)[1]
    self.assertRegex(
      errors.splitlines()[-1],
      r'WorkerError: the worker cannot have its own network \(.*unshare: .*'
      r'pass contained=False \(train.py: --allow_open_port\) if only you '
      r'can reach this host$',
    )


if __name__ == '__main__':
  absltest.main()
