"""Tests of the local runtime: what it computes and what it leaves behind."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf.federated import _worker_process

# Names, not the module: the package may export the function under its name.
from tvdp_tf.federated.local_runtime import (
  WorkerError,
  drop_stock_default_context,
  local_runtime,
)

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_WORKER_BINARY = pathlib.Path(tff.__file__).parent / 'data' / 'worker_binary'
# For what takes milliseconds to seconds, on a machine with other work.
_PATIENCE_S = 30.0


@tff.tensorflow.computation(np.int32)
def _increment(x):
  return x + 1


@tff.tensorflow.computation(np.int64)
def _count_up_to(n):
  zero = tf.constant(0, tf.int64)
  return tf.while_loop(lambda i: i < n, lambda i: (i + 1,), [zero])[0]


@tff.tensorflow.computation(np.int32)
def _require_five(x):
  with tf.control_dependencies([tf.debugging.assert_equal(x, 5)]):
    return x + 1


@tff.tensorflow.computation(np.int32)
def _print(x):
  with tf.control_dependencies([tf.print('the value is', x)]):
    return tf.identity(x)


@tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
def _double(x):
  return 2 * x


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _sum(x):
  return tff.federated_sum(x)


@tff.federated_computation(
  tff.FederatedType(np.int32, tff.CLIENTS),
  tff.FederatedType(np.int32, tff.SERVER),
)
def _sum_and_server_value(x, y):
  return tff.federated_sum(x), y


@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def _require_fives(x):
  return tff.federated_map(_require_five, x)


_HOURS_OF_COUNTING = 10**13


def _current_context() -> Any:
  return tff.framework.get_context_stack().current


def _process_lives(pid: int) -> bool:
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False
  return stat.rpartition(')')[2].split()[0] != 'Z'


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
  deadline = time.monotonic() + timeout_s
  while not condition():
    if time.monotonic() > deadline:
      return False
    time.sleep(0.01)
  return True


def _ends(pid: int, timeout_s: float = 5.0) -> bool:
  """Whether the process ends in time; a survivor is killed after the answer."""
  if _wait_until(lambda: not _process_lives(pid), timeout_s):
    return True
  os.kill(pid, signal.SIGKILL)
  return False


def _error_of(function: Callable[[], Any]) -> Any:
  """What the call raises; a failure, not a hang, if it does not return."""
  outcome: list[Any] = []

  def call() -> None:
    try:
      outcome.append(f'no error but {function()!r}')
    except BaseException as error:
      outcome.append(error)

  thread = threading.Thread(target=call, daemon=True)
  thread.start()
  thread.join(_PATIENCE_S)
  return outcome[0] if outcome else 'no end'


def _threads_and_descriptors() -> tuple[int, int, int]:
  return (
    threading.active_count(),
    len(os.listdir('/proc/self/task')),
    len(os.listdir('/proc/self/fd')),
  )


@contextlib.contextmanager
def _script(text: str) -> Iterator[str]:
  """The path of an executable file."""
  with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory, 'worker')
    path.write_text(text)
    path.chmod(0o755)
    yield str(path)


def _start_child(
  test: absltest.TestCase, code: str, *arguments: str
) -> subprocess.Popen[str]:
  """Starts Python on the code; the end of the test ends it."""
  environment = {
    **os.environ,
    'PYTHONPATH': str(_ROOT),
    'TF_CPP_MIN_LOG_LEVEL': '3',
  }
  child = subprocess.Popen(
    [sys.executable, '-c', textwrap.dedent(code), *arguments],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=environment,
  )
  test.addCleanup(child.communicate)
  test.addCleanup(child.kill)
  return child


def _first_line(child: subprocess.Popen[str]) -> str:
  """What the child prints first; its errors if it ends without a line."""
  assert child.stdout is not None
  assert child.stderr is not None
  return child.stdout.readline() or child.stderr.read()


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class LocalRuntimeTest(parameterized.TestCase):
  def test_computes_inside_the_block_and_restores_the_context(self):
    before = _current_context()
    with local_runtime(max_concurrent_computation_calls=2) as context:
      self.assertIs(_current_context(), context)
      self.assertEqual(_increment(3), 4)
      self.assertEqual(_sum([1, 2, 3]), 6)
      self.assertTrue(_process_lives(context.worker_pid))
    self.assertIs(_current_context(), before)
    self.assertFalse(_process_lives(context.worker_pid))

  def test_error_leaves_the_block_and_no_worker(self):
    before = _current_context()
    with (
      self.assertRaisesRegex(KeyError, 'from the block'),
      local_runtime() as context,
    ):
      raise KeyError('from the block')
    self.assertIs(_current_context(), before)
    self.assertFalse(_process_lives(context.worker_pid))

  def test_runtimes_nest(self):
    with local_runtime() as outer:
      with local_runtime() as inner:
        self.assertNotEqual(outer.worker_pid, inner.worker_pid)
        self.assertIs(_current_context(), inner)
        self.assertEqual(_increment(1), 2)
      self.assertIs(_current_context(), outer)
      self.assertEqual(_increment(2), 3)

  def test_worker_killed_in_a_call(self):
    with local_runtime() as context:
      kill = threading.Timer(1.0, os.kill, [context.worker_pid, signal.SIGKILL])
      kill.start()
      error = _error_of(
        lambda: context.invoke(_count_up_to, _HOURS_OF_COUNTING)
      )
      self.assertIsInstance(error, WorkerError)
      self.assertIn('killed by signal 9', str(error))
      # Later calls fail too, those for a new number of clients included.
      for call in (lambda: _increment(1), lambda: _sum([1, 2])):
        with self.assertRaisesRegex(WorkerError, 'the worker is gone'):
          call()
    self.assertFalse(_process_lives(context.worker_pid))
    with local_runtime():  # The failure is that runtime's alone.
      self.assertEqual(_increment(1), 2)

  def test_leaving_the_block_ends_a_call_of_another_thread(self):
    with local_runtime() as context:
      closing = threading.Timer(1.0, context.close)
      closing.start()
      error = _error_of(
        lambda: context.invoke(_count_up_to, _HOURS_OF_COUNTING)
      )
    self.assertIsInstance(error, WorkerError)

  def test_closed_context_refuses(self):
    with local_runtime() as context:
      pass
    with self.assertRaisesRegex(WorkerError, 'closed'):
      context.invoke(_increment, 1)

  def test_failing_computation_is_no_worker_error(self):
    with local_runtime():
      with self.assertRaisesRegex(grpc.RpcError, 'did not hold'):
        _require_five(4)
      self.assertEqual(_require_five(5), 6)

  def test_call_that_tff_would_repeat_for_ever(self):
    class ForgetfulStub(tff.framework.RemoteExecutorGrpcStub):
      def create_call(self, request):
        request.executor.id = 'an executor that the worker does not have'
        return super().create_call(request)

    with (
      mock.patch.object(tff.framework, 'RemoteExecutorGrpcStub', ForgetfulStub),
      local_runtime() as context,
    ):
      error = _error_of(lambda: context.invoke(_increment, 1))
    self.assertIsInstance(error, WorkerError)
    self.assertIn('refused', str(error))

  def test_threads_share_a_context(self):
    sums, failures = [], []

    def compute(context, k):
      with tff.framework.get_context_stack().install(context):
        for _ in range(20):
          # Both for two clients, so on one executor, which a failure closes.
          if k % 2:
            sums.append(_sum_and_server_value([1, k], 3))
          else:
            with contextlib.suppress(grpc.RpcError):
              _require_fives([1, k])
              failures.append('no error')

    with local_runtime() as context:
      threads = [
        threading.Thread(target=compute, args=(context, k)) for k in range(4)
      ]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
    self.assertCountEqual(sums, [(2, 3)] * 20 + [(4, 3)] * 20)
    self.assertEmpty(failures)

  def test_two_threads_while_it_runs(self):
    before = threading.active_count()
    with local_runtime():
      _increment(1)
      # The keeper and the event loop. A third is gRPC's watch of the channel,
      # which prints an exception if the channel is closed at the wrong time.
      self.assertEqual(threading.active_count(), before + 2)

  def test_http_proxy_is_not_asked(self):
    nobody = 'http://127.0.0.1:9'
    with (
      mock.patch.dict(os.environ, http_proxy=nobody, no_proxy=''),
      local_runtime() as context,
    ):
      outcome: list[Any] = []
      error = _error_of(lambda: outcome.append(context.invoke(_increment, 1)))
    self.assertEqual(outcome, [2], error)

  def test_cycles_leave_no_threads_and_no_descriptors(self):
    cycles = 15

    def cycle():
      with local_runtime():
        self.assertEqual(_increment(1), 2)

    cycle()  # gRPC keeps a few threads from the first use on.
    before = _threads_and_descriptors()
    for _ in range(cycles):
      cycle()
    growth = np.subtract(_threads_and_descriptors(), before)
    self.assertEqual(growth[0], 0, 'threads of Python')
    # gRPC's own threads come and go; one leak a cycle would be 15 or more.
    self.assertLess(growth[1], cycles // 2, 'threads of the system')
    self.assertLess(growth[2], cycles // 2, 'descriptors')

  def test_cohorts_of_many_sizes_do_not_pile_up_threads(self):
    with local_runtime() as context:
      tasks = pathlib.Path(f'/proc/{context.worker_pid}/task')
      for size in range(1, 13):
        _sum([1] * size)
      after_12_sizes = len(list(tasks.iterdir()))
      for size in range(13, 61):
        self.assertEqual(_sum([1] * size), size)
      after_60_sizes = len(list(tasks.iterdir()))
    # A leak of one executor a size, with its 8 threads, would add 384.
    self.assertLess(after_60_sizes, after_12_sizes + 48)

  def test_message_limit(self):
    eight_megabytes = np.ones(2_000_000, np.float32)  # gRPC's default is 4.
    with local_runtime():
      self.assertEqual(np.sum(_double(eight_megabytes)), 4_000_000)
    with local_runtime(max_message_megabytes=1):
      with self.assertRaisesRegex(grpc.RpcError, 'larger than max'):
        _double(eight_megabytes)
      self.assertEqual(_increment(1), 2)

  def test_worker_log_holds_what_a_computation_prints(self):
    with local_runtime() as context:
      self.assertEqual(_print(17), 17)
      self.assertIn('the value is 17', context.worker_log())
    self.assertIn('the value is 17', context.worker_log())

  def test_worker_inherits_the_environment(self):
    with (
      mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3'),
      local_runtime() as context,
    ):
      environ = pathlib.Path(f'/proc/{context.worker_pid}/environ')
      self.assertIn(
        b'TF_CPP_MIN_LOG_LEVEL=3', environ.read_bytes().split(b'\0')
      )

  @parameterized.named_parameters(
    (
      'refuses',
      '#!/bin/sh\necho no such model >&2; exit 3\n',
      r'ended before it listened \(exit status 3\)(?s:.*)no such model',
    ),
    ('exits_in_order', '#!/bin/sh\n', r'exit status 0'),
    ('cannot_run', 'no program', r'cannot execute .*worker'),
  )
  def test_worker_that_ends_at_the_start(self, text, message):
    before = _current_context()
    threads, _, descriptors = _threads_and_descriptors()
    with (
      _script(text) as path,
      self.assertRaisesRegex(WorkerError, message),
      local_runtime(worker_binary=path, startup_timeout_s=600),
    ):
      self.fail('the block was entered')
    self.assertIs(_current_context(), before)
    self.assertEqual(_threads_and_descriptors()[0], threads)
    self.assertLessEqual(_threads_and_descriptors()[2], descriptors)

  def test_worker_that_never_listens(self):
    with (
      _script('#!/bin/sh\necho pid $$\nexec sleep 600\n') as path,
      self.assertRaisesRegex(WorkerError, r'within 1\.5 s') as raised,
      local_runtime(worker_binary=path, startup_timeout_s=1.5),
    ):
      self.fail('the block was entered')
    pid = int(str(raised.exception).rpartition('pid ')[2])
    self.assertTrue(_ends(pid))

  @parameterized.named_parameters(
    ('no_calls', {'max_concurrent_computation_calls': 0}),
    ('half_a_call', {'max_concurrent_computation_calls': 1.5}),
    ('no_time', {'startup_timeout_s': 0.0}),
    ('no_number', {'startup_timeout_s': float('nan')}),
    ('empty_messages', {'max_message_megabytes': 0}),
    ('beyond_protocol_buffers', {'max_message_megabytes': 2001}),
  )
  def test_bad_argument(self, arguments):
    (name,) = arguments
    with self.assertRaisesRegex(ValueError, name):
      local_runtime(**arguments)  # Before the entry.

  def test_other_systems_are_refused(self):
    with (
      mock.patch.object(sys, 'platform', 'darwin'),
      self.assertRaisesRegex(WorkerError, 'needs Linux'),
      local_runtime(),
    ):
      self.fail('the block was entered')


class DropStockDefaultContextTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.addCleanup(tff.framework.set_default_context, _current_context())

  def test_drops_a_context_that_starts_a_worker_of_its_own(self):
    tff.backends.native.set_sync_local_cpp_execution_context()
    self.assertIsInstance(
      _current_context(), tff.framework.SyncExecutionContext
    )
    drop_stock_default_context()
    with self.assertRaisesRegex(RuntimeError, 'local_runtime'):
      _increment(1)

  def test_leaves_other_contexts(self):
    def stack_fn(cardinalities):
      raise NotImplementedError

    factory = tff.framework.ResourceManagingExecutorFactory(stack_fn)
    context = tff.framework.SyncExecutionContext(factory)
    tff.framework.set_default_context(context)
    drop_stock_default_context()
    self.assertIs(_current_context(), context)


# Loads the module from its file: its package would load TensorFlow Federated,
# for seconds in every child.
_LOAD_WORKER_PROCESS = f"""
import importlib.util, os, signal, sys, threading, time
spec = importlib.util.spec_from_file_location(
  'worker_process', {_worker_process.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def start():
  global worker
  worker = module.WorkerProcess(sys.argv[1], [], 60.0)
  print(worker.pid, flush=True)
"""


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class SurvivalTest(parameterized.TestCase):
  """Ends a parent in every way and looks for its worker."""

  @parameterized.named_parameters(
    ('end_of_script', 'start()', 0),
    ('exception', 'start(); raise KeyError', 1),
    ('sys_exit', 'start(); sys.exit(3)', 3),
    ('os_exit', 'start(); os._exit(4)', 4),
    ('abort', 'start(); os.abort()', -signal.SIGABRT),
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
  )
  def test_no_worker_survives(self, ending, status):
    code = _LOAD_WORKER_PROCESS + textwrap.dedent(ending)
    child = _start_child(self, code, str(_WORKER_BINARY))
    pid = int(_first_line(child))
    child.wait(_PATIENCE_S)
    self.assertTrue(_ends(pid))
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
    child = _start_child(self, code, str(_WORKER_BINARY))
    pid = int(_first_line(child))
    child.wait(_PATIENCE_S)
    self.assertFalse(_ends(pid, timeout_s=2.0))

  def test_parent_that_died_before_the_protection(self):
    # The shim compares the parent that it has with the one that forked it.
    shim = [sys.executable, '-I', '-S', '-c', _worker_process._SHIM]
    for parent, output in ((os.getpid(), 'ran'), (os.getppid(), '')):
      done = subprocess.run(
        [*shim, str(parent), '/bin/echo', '-n', 'ran'],
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
    child = _start_child(
      self,
      """
      from tvdp_tf.federated.local_runtime import local_runtime
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
    self.assertTrue(_ends(int(left)))
    self.assertTrue(_ends(int(never_left)))

  def test_program_killed_in_a_computation(self):
    child = _start_child(
      self,
      """
      from tvdp_tf.federated.local_runtime import local_runtime
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
    pid = int(_first_line(child))
    time.sleep(0.5)
    self.assertTrue(_process_lives(pid))
    child.send_signal(signal.SIGKILL)
    child.wait(_PATIENCE_S)
    self.assertTrue(_ends(pid))


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
    child = _start_child(
      self,
      """
      import socket, sys
      server = socket.socket()
      server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
      server.bind(('', int(sys.argv[1])))
      server.listen()
      print('listens', flush=True)
      sys.stdin.read()
      """,
      str(port),
    )
    self.assertEqual(_first_line(child), 'listens\n')
    self.assertFalse(_worker_process._listens(os.getpid(), port))
    self.assertFalse(_worker_process._listens(child.pid, port))

  def test_reserved_port_is_the_workers_alone(self):
    with _worker_process._reserve_port() as reserved:
      port = reserved.getsockname()[1]
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
