"""Tests of how a worker starts and ends: none outlives its parent."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import time
import unittest
from unittest import mock

import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.runtimes.worker import worker_checks
from tvdp_tf.runtimes.worker import _worker_process, worker_launcher

_WORKER_BINARY = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class BadStartTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'refuses',
      '#!/bin/sh\necho hello; echo no such model >&2; exit 3\n',
      r'ended before it listened \(exit status 3\): no such model$',
    ),
    ('exits_in_order', '#!/bin/sh\n', r'\(exit status 0\): .*wrote nothing'),
    ('cannot_run', 'no program', r'cannot execute .*worker'),
  )
  def test_worker_that_ends(self, text, message):
    before = worker_checks.threads_and_descriptors()
    with worker_checks.script(text) as path:
      with self.assertRaisesRegex(
        _worker_process.WorkerError, message
      ) as raised:
        _worker_process.WorkerProcess(path, [], startup_timeout_s=600.0)
      self.assertIn(path, '\n'.join(raised.exception.__notes__))
    after = worker_checks.threads_and_descriptors()
    self.assertEqual(after[0], before[0])
    self.assertLessEqual(after[2], before[2])

  def test_worker_that_never_listens(self):
    with (
      worker_checks.script('#!/bin/sh\necho pid $$\nexec sleep 600\n') as path,
      self.assertRaisesRegex(
        _worker_process.WorkerError, r'within 1\.5 s'
      ) as raised,
    ):
      _worker_process.WorkerProcess(path, [], startup_timeout_s=1.5)
    pid = int(str(raised.exception).rpartition('pid ')[2])
    self.assertTrue(worker_checks.ends(pid))

  def test_other_systems_are_refused(self):
    with (
      mock.patch.object(sys, 'platform', 'darwin'),
      self.assertRaisesRegex(_worker_process.WorkerError, 'needs Linux'),
    ):
      _worker_process.WorkerProcess(str(_WORKER_BINARY), [], 60.0)


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class SurvivalTest(parameterized.TestCase):
  """Ends a parent in every way and looks for its worker."""

  @parameterized.named_parameters(
    ('end_of_script', 'start()', 0),
    ('exception', 'start(); raise KeyError', 1),
    ('os_exit', 'start(); os._exit(4)', 4),
    ('sigterm', 'start(); os.kill(os.getpid(), 15); time.sleep(60)', -15),
    ('sigkill', 'start(); os.kill(os.getpid(), 9); time.sleep(60)', -9),
    ('sigint', 'start(); os.kill(os.getpid(), 2); time.sleep(60)', -2),
    (
      'started_in_a_thread_that_ended',
      """
      thread = threading.Thread(target=start); thread.start(); thread.join()
      os._exit(0 if not worker.wait_for_exit(1.0) else 5)
      """,
      0,
    ),
    (
      'fork_that_ends_in_order',
      """
      start()
      if os.fork() == 0:
        sys.exit(0)
      os.wait()
      os._exit(0 if not worker.wait_for_exit(1.0) else 5)
      """,
      0,
    ),
    ('stopped', 'start(); worker.stop(); worker.stop()', 0),
    (
      'sigkill_with_an_open_port',
      'start(contained=False); os.kill(os.getpid(), 9); time.sleep(60)',
      -9,
    ),
  )
  def test_no_worker_survives(self, ending, status):
    code = worker_checks.START_WORKER + textwrap.dedent(ending)
    child = worker_checks.start_child(self, code, str(_WORKER_BINARY))
    processes = worker_checks.first_line(child).split()
    self.assertLen(processes, 1 if 'contained=False' in ending else 2)
    child.wait(worker_checks.PATIENCE_S)
    for process in map(int, processes):
      self.assertTrue(worker_checks.ends(process))
    self.assertEqual(child.returncode, status)

  def test_a_survivor_would_be_seen(self):
    code = """
    import os, subprocess, sys
    worker = subprocess.Popen(
      [sys.argv[1], '--port=0'],
      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(worker.pid, flush=True)
    os._exit(0)
    """
    child = worker_checks.start_child(self, code, str(_WORKER_BINARY))
    pid = int(worker_checks.first_line(child))
    child.wait(worker_checks.PATIENCE_S)
    self.assertFalse(worker_checks.ends(pid, timeout_s=2.0))

  def test_parent_that_died_before_the_protection(self):
    # The launcher compares the parent that it has with the one that forked it.
    launcher = [sys.executable, '-I', '-S', worker_launcher.__file__]
    launcher += ['--open_port=1', '--parent_pid']
    for parent, output in ((os.getpid(), 'ran --port=1\n'), (os.getppid(), '')):
      done = subprocess.run(
        [*launcher, str(parent), '--', '/bin/echo', 'ran'],
        capture_output=True,
        text=True,
        check=False,
      )
      self.assertEqual(done.stdout, output)
    self.assertIn('parent process has ended', done.stderr)


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class WholeProgramTest(absltest.TestCase):
  """Programs with TFF: slow to start, so few of them."""

  def test_program_is_silent_and_leaves_no_worker(self):
    child = worker_checks.start_child(
      self,
      """
      from tvdp_tf.runtimes.worker.worker_runtime import local_runtime
      import numpy as np, tensorflow_federated as tff

      @tff.tensorflow.computation(np.int32)
      def increment(x):
        return x + 1

      with local_runtime() as context:
        print(context.worker_pid, increment(1))
      never_left = local_runtime()
      with_context = never_left.__enter__()
      print(with_context.worker_pid, increment(2))
    """,
    )
    output, errors = child.communicate(timeout=180)
    self.assertEqual((child.returncode, errors), (0, ''))
    (left, two), (never_left, three) = map(str.split, output.splitlines())
    self.assertEqual((two, three), ('2', '3'))
    self.assertTrue(worker_checks.ends(int(left)))
    self.assertTrue(worker_checks.ends(int(never_left)))

  def test_program_killed_in_a_computation(self):
    child = worker_checks.start_child(
      self,
      """
      from tvdp_tf.runtimes.worker.worker_runtime import local_runtime
      import numpy as np, tensorflow as tf, tensorflow_federated as tff

      @tff.tensorflow.computation(np.int64)
      def count_up_to(n):
        zero = tf.constant(0, tf.int64)
        return tf.while_loop(lambda i: i < n, lambda i: (i + 1,), [zero])[0]

      with local_runtime() as context:
        count_up_to(1)
        print(context.worker_pid, flush=True)
        count_up_to(10 ** 13)
    """,
    )
    pid = int(worker_checks.first_line(child))
    time.sleep(0.5)
    self.assertTrue(worker_checks.process_lives(pid))
    child.send_signal(signal.SIGKILL)
    child.wait(worker_checks.PATIENCE_S)
    self.assertTrue(worker_checks.ends(pid))


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class PortTest(absltest.TestCase):
  def _bound(self, port: int = 0) -> socket.socket:
    bound = socket.socket()
    self.addCleanup(bound.close)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(('', port))
    return bound

  def test_listening_is_seen(self):
    server = self._bound()
    port = server.getsockname()[1]
    self.assertFalse(_worker_process._listens(os.getpid(), port))
    server.listen()
    self.assertTrue(_worker_process._listens(os.getpid(), port))
    self.assertFalse(_worker_process._listens(os.getppid(), port))

  def test_port_shared_with_another_process_is_refused(self):
    server = self._bound()
    port = server.getsockname()[1]
    server.listen()
    child = worker_checks.start_child(
      self,
      """
      import signal, socket, sys
      server = socket.socket()
      server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      server.bind(('', int(sys.argv[1])))
      server.listen()
      print('listens', flush=True)
      signal.pause()
      """,
      str(port),
    )
    self.assertEqual(worker_checks.first_line(child), 'listens\n')
    self.assertFalse(_worker_process._listens(os.getpid(), port))
    self.assertFalse(_worker_process._listens(child.pid, port))

  def test_reserved_port_is_the_workers_alone(self):
    with contextlib.closing(_worker_process.OpenPort()) as entrance:
      port = entrance.port
      with self.assertRaises(OSError), socket.socket() as other:
        other.bind(('', port))
      worker = self._bound(port)  # As gRPC binds, with SO_REUSEPORT.
      worker.listen()
      for _ in range(20):  # The reservation takes none of them.
        socket.create_connection(('127.0.0.1', port), 5).close()
        worker.settimeout(5)
        worker.accept()[0].close()


if __name__ == '__main__':
  absltest.main()
