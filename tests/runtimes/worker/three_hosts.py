"""Three hosts and a trainer on a network; run by `three_hosts_test`.

It runs in a network namespace of its own, where it may set up what it likes:
each host is another namespace, on one cable to the trainer's bridge.
"""

import pathlib
import signal
import subprocess
import time

import numpy as np
import tensorflow as tf
from absl.testing import absltest

from tests.runtimes.worker import remote_workers, worker_checks
from tvdp_tf import mechanisms, privacy
from tvdp_tf.runtimes.worker import distributed_runtime

_TIMEOUT_S = 3.0


def _run(command: str) -> None:
  subprocess.run(command.split(), check=True)


class _Host:
  """A host with a worker; a child of this process holds its network."""

  def __init__(self, test: absltest.TestCase, number: int):
    self._number = number
    self._holder = subprocess.Popen(
      ['unshare', '--net', 'sh', '-c', 'echo; exec sleep 1000'],
      stdout=subprocess.PIPE,
    )
    test.addCleanup(self._holder.communicate)
    test.addCleanup(self._holder.kill)
    assert self._holder.stdout is not None
    self._holder.stdout.readline()
    prefix = f'nsenter --target={self._holder.pid} --net'
    address = f'10.77.0.{number + 2}'
    cable = f'cable{number}'
    _run(f'ip link add {cable} type veth peer name eth0')
    test.addCleanup(_run, f'ip link delete {cable}')
    _run(f'ip link set eth0 netns {self._holder.pid}')
    _run(f'ip link set {cable} master bridge up')
    _run(f'{prefix} ip address add {address}/24 dev eth0')
    _run(f'{prefix} ip link set eth0 up')
    path = pathlib.Path(test.create_tempdir().full_path, 'worker')
    self.worker = remote_workers.Worker(test, path, prefix.split(), address)

  def plug(self, state: str) -> None:
    """Pulls the cable, 'down', or puts it in again, 'up'; nobody is told."""
    _run(f'ip link set cable{self._number} {state}')


class ThreeHostsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    _run('ip link add bridge type bridge')
    _run('ip address add 10.77.0.1/24 dev bridge')
    _run('ip link set bridge up')

  def setUp(self):
    super().setUp()
    self.hosts = [_Host(self, number) for number in range(3)]
    self.workers = [host.worker for host in self.hosts]

  def _runtime(self):
    return distributed_runtime.remote_runtime(
      [worker.target for worker in self.workers],
      insecure=True,
      timeout_s=_TIMEOUT_S,
    )

  def _begin(self, context):
    """Starts a round of three clients; returns when all hosts work on it."""
    remote_workers.powers_of_ten(0, [])  # Compiled now, so that it is fast.
    call = remote_workers.in_background(
      lambda: remote_workers.powers_of_ten(
        0, remote_workers.clients(range(3), sleep_s=1.0)
      )
    )
    for number, worker in enumerate(self.workers):
      remote_workers.wait_until(worker.begun)
      self.assertEqual(worker.begun(), [number])
    self.started = time.monotonic()
    return call

  def _assert_used_again(self, worker):
    begun = worker.begun()

    def is_used():
      remote_workers.powers_of_ten(0, remote_workers.clients(range(3)))
      return worker.begun() != begun

    remote_workers.wait_until(is_used)

  def test_all_are_well(self):
    with self._runtime() as context:
      self.assertEqual(self._begin(context)()[0], 111)
      self.assertEmpty(context.lost_workers)

  def test_one_dies(self):
    with self._runtime() as context:
      call = self._begin(context)
      self.workers[0].kill()
      self.assertEqual(call()[0], 111)
      # Its host says so.
      self.assertLess(time.monotonic() - self.started, _TIMEOUT_S)
      self.assertEqual(list(context.lost_workers), [self.workers[0].target])
      self.assertEqual(
        [worker.begun() for worker in self.workers], [[0], [0, 1], [2]]
      )
      self.workers[0].start()
      self._assert_used_again(self.workers[0])

  def test_one_is_slow(self):
    with self._runtime() as context:
      call = self._begin(context)
      self.workers[1].signal(signal.SIGSTOP)
      time.sleep(_TIMEOUT_S / 2)
      self.workers[1].signal(signal.SIGCONT)
      self.assertEqual(call()[0], 111)
      self.assertEmpty(context.lost_workers)
    self.assertEqual(
      [worker.begun() for worker in self.workers], [[0], [1], [2]]
    )

  def test_one_is_cut_off(self):
    with self._runtime() as context:
      call = self._begin(context)
      self.hosts[2].plug('down')
      self.assertEqual(call()[0], 111)
      self.assertBetween(
        time.monotonic() - self.started, _TIMEOUT_S - 1, 3 * _TIMEOUT_S
      )
      self.assertEqual(
        context.lost_workers,
        {self.workers[2].target: f'no answer within {_TIMEOUT_S:g} s'},
      )
      self.hosts[2].plug('up')
      self._assert_used_again(self.workers[2])

  def test_all_are_cut_off(self):
    with self._runtime() as context:
      remote_workers.powers_of_ten(0, [])
      for host in self.hosts:
        host.plug('down')
      started = time.monotonic()
      error = worker_checks.error_of(lambda: context.invoke(*_ONE_CLIENT))
      self.assertIsInstance(error, distributed_runtime.WorkerError)
      self.assertEqual(str(error).count('no answer within'), 3)
      # One after the other, and then the wait for the first to come back.
      self.assertLess(time.monotonic() - started, 5 * _TIMEOUT_S)

  def test_the_model_does_not_depend_on_it(self):
    process = remote_workers.build_process(
      mechanisms.PaperMechanism(privacy.GeometricSchedule(0.9, 2, 0.02), 4.0)
    )
    with self._runtime() as context:
      expected, _ = remote_workers.train(process)
      self.hosts[1].plug('down')
      actual, _ = remote_workers.train(process)
      self.assertEqual(list(context.lost_workers), [self.workers[1].target])
    for one, other in zip(
      tf.nest.flatten(actual.global_model_weights),
      tf.nest.flatten(expected.global_model_weights),
      strict=True,
    ):
      np.testing.assert_array_equal(one, other)


_ONE_CLIENT = (
  remote_workers.powers_of_ten,
  remote_workers.argument(remote_workers.clients([0])),
)


if __name__ == '__main__':
  absltest.main()
