"""Tests of what the local runtime computes, and of a worker that is lost."""

import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest
from typing import Any
from unittest import mock

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests.runtimes.worker import worker_checks
from tvdp_tf import errors
from tvdp_tf.runtimes.worker import worker_runtime


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


@tff.tensorflow.computation(np.str_)
def _content(path):
  return tf.io.read_file(path)


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


@unittest.skipUnless(sys.platform == 'linux', 'workers run on Linux only')
class LocalRuntimeTest(parameterized.TestCase):
  def test_computes_inside_the_block_and_restores_the_context(self):
    before = _current_context()
    with worker_runtime.local_runtime(
      max_concurrent_computation_calls=2
    ) as context:
      self.assertIs(_current_context(), context)
      self.assertEqual(_increment(3), 4)
      self.assertEqual(_sum([1, 2, 3]), 6)
      self.assertTrue(worker_checks.process_lives(context.worker_pid))
    self.assertIs(_current_context(), before)
    self.assertFalse(worker_checks.process_lives(context.worker_pid))

  def test_error_leaves_the_block_and_no_worker(self):
    before = _current_context()
    with (
      self.assertRaisesRegex(KeyError, 'from the block'),
      worker_runtime.local_runtime() as context,
    ):
      raise KeyError('from the block')
    self.assertIs(_current_context(), before)
    self.assertFalse(worker_checks.process_lives(context.worker_pid))

  def test_runtimes_nest(self):
    with worker_runtime.local_runtime() as outer:
      with worker_runtime.local_runtime() as inner:
        self.assertNotEqual(outer.worker_pid, inner.worker_pid)
        self.assertIs(_current_context(), inner)
        self.assertEqual(_increment(1), 2)
      self.assertIs(_current_context(), outer)
      self.assertEqual(_increment(2), 3)

  def test_worker_killed_in_a_call(self):
    with worker_runtime.local_runtime() as context:
      kill = threading.Timer(1.0, os.kill, [context.worker_pid, signal.SIGKILL])
      kill.start()
      error = worker_checks.error_of(
        lambda: context.invoke(_count_up_to, _HOURS_OF_COUNTING)
      )
      self.assertIsInstance(error, worker_runtime.WorkerError)
      self.assertIsInstance(error, errors.TvdpError)
      self.assertIn('killed by signal 9', str(error))
      # Later calls fail too, those for a new number of clients included.
      for call in (lambda: _increment(1), lambda: _sum([1, 2])):
        with self.assertRaisesRegex(
          worker_runtime.WorkerError, 'the worker is gone'
        ):
          call()
    self.assertFalse(worker_checks.process_lives(context.worker_pid))
    with worker_runtime.local_runtime():  # The failure is that runtime's alone.
      self.assertEqual(_increment(1), 2)

  def test_leaving_the_block_ends_a_call_of_another_thread(self):
    with worker_runtime.local_runtime() as context:
      closing = threading.Timer(1.0, context.close)
      closing.start()
      error = worker_checks.error_of(
        lambda: context.invoke(_count_up_to, _HOURS_OF_COUNTING)
      )
    self.assertIsInstance(error, worker_runtime.WorkerError)

  def test_closed_context_refuses(self):
    with worker_runtime.local_runtime() as context:
      pass
    with self.assertRaisesRegex(worker_runtime.WorkerError, 'closed'):
      context.invoke(_increment, 1)

  def test_failing_computation_is_no_worker_error(self):
    with worker_runtime.local_runtime():
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
      worker_runtime.local_runtime() as context,
    ):
      error = worker_checks.error_of(lambda: context.invoke(_increment, 1))
    self.assertIsInstance(error, worker_runtime.WorkerError)
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

    with worker_runtime.local_runtime() as context:
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
    with worker_runtime.local_runtime():
      _increment(1)
      # The keeper and the event loop. A third is gRPC's watch of the channel,
      # which prints an exception if the channel is closed at the wrong time.
      self.assertEqual(threading.active_count(), before + 2)

  def test_http_proxy_is_not_asked(self):
    nobody = 'http://127.0.0.1:9'
    with (
      mock.patch.dict(os.environ, http_proxy=nobody, no_proxy=''),
      worker_runtime.local_runtime() as context,
    ):
      outcome: list[Any] = []
      error = worker_checks.error_of(
        lambda: outcome.append(context.invoke(_increment, 1))
      )
    self.assertEqual(outcome, [2], error)

  def test_cycles_leave_no_threads_and_no_descriptors(self):
    def cycle():
      with worker_runtime.local_runtime():
        self.assertEqual(_increment(1), 2)

    worker_checks.assert_cycles_leave_nothing(self, cycle, 15)

  def test_cohorts_of_many_sizes_do_not_pile_up_threads(self):
    with worker_runtime.local_runtime() as context:
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
    with worker_runtime.local_runtime():
      self.assertEqual(np.sum(_double(eight_megabytes)), 4_000_000)
    with worker_runtime.local_runtime(max_message_megabytes=1):
      with self.assertRaisesRegex(grpc.RpcError, 'larger than max'):
        _double(eight_megabytes)
      self.assertEqual(_increment(1), 2)

  def test_worker_log_holds_what_a_computation_prints(self):
    with worker_runtime.local_runtime() as context:
      self.assertEqual(_print(17), 17)
      self.assertIn('the value is 17', context.worker_log())
    self.assertIn('the value is 17', context.worker_log())

  def test_worker_is_contained_by_default(self):
    with worker_runtime.local_runtime() as context:
      self.assertEmpty(worker_checks.listening(context.worker_pid))
    with worker_runtime.local_runtime(contained=False) as context:
      self.assertEqual(worker_checks.listening(context.worker_pid), {'::'})
      self.assertEqual(_increment(1), 2)

  def test_worker_opens_a_file_of_this_process(self):
    with tempfile.TemporaryFile() as file:
      file.write(b'its content')
      file.flush()
      for contained in (True, False):
        with worker_runtime.local_runtime(contained=contained) as context:
          path = context.path_in_worker(file.fileno())
          self.assertEqual(_content(path), b'its content')

  def test_worker_inherits_the_environment(self):
    with (
      mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL='3'),
      worker_runtime.local_runtime() as context,
    ):
      environ = pathlib.Path(f'/proc/{context.worker_pid}/environ')
      self.assertIn(
        b'TF_CPP_MIN_LOG_LEVEL=3', environ.read_bytes().split(b'\0')
      )

  def test_worker_that_does_not_start(self):
    before = _current_context()
    with (
      self.assertRaisesRegex(worker_runtime.WorkerError, 'exit status 1'),
      worker_runtime.local_runtime(worker_binary='/bin/false'),
    ):
      self.fail('the block was entered')
    self.assertIs(_current_context(), before)

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
      worker_runtime.local_runtime(**arguments)  # Before the entry.


class DropStockDefaultContextTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.addCleanup(tff.framework.set_default_context, _current_context())

  def test_drops_a_context_that_starts_a_worker_of_its_own(self):
    tff.backends.native.set_sync_local_cpp_execution_context()
    self.assertIsInstance(
      _current_context(), tff.framework.SyncExecutionContext
    )
    worker_runtime.drop_stock_default_context()
    with self.assertRaisesRegex(RuntimeError, 'local_runtime'):
      _increment(1)

  def test_leaves_other_contexts(self):
    def stack_fn(cardinalities):
      raise NotImplementedError

    factory = tff.framework.ResourceManagingExecutorFactory(stack_fn)
    context = tff.framework.SyncExecutionContext(factory)
    tff.framework.set_default_context(context)
    worker_runtime.drop_stock_default_context()
    self.assertIs(_current_context(), context)


if __name__ == '__main__':
  absltest.main()
