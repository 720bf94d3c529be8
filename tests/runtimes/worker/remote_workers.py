"""Workers as other hosts have them, and work that shows who does what."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tests.runtimes.worker import worker_checks
from tvdp_tf import federated, mechanisms
from tvdp_tf.federated import client_data
from tvdp_tf.learning import datasets, models, noise, partitions
from tvdp_tf.runtimes.worker import worker_launcher

WORKER_BINARY = str(pathlib.Path(tff.__file__).parent / 'data/worker_binary')

_PORT = 8000

# What a client brings: a number, and for how long its work takes.
_CLIENT = tff.types.StructType([('id', np.int64), ('sleep_us', np.int64)])


@tff.tensorflow.computation(np.int64, _CLIENT)
def _work(offset, client):
  begin = tf.print('begins', client['id'])
  with tf.control_dependencies([begin]):
    # Its end is an element too.
    nap = tf.raw_ops.SleepDataset(
      input_dataset=tf.data.Dataset.range(1)._variant_tensor,
      sleep_microseconds=client['sleep_us'] // 2,
      output_types=[tf.int64],
      output_shapes=[[]],
    )
  zero = tf.raw_ops.DatasetToSingleElement(
    dataset=nap, output_types=[tf.int64], output_shapes=[[]]
  )[0]
  with tf.control_dependencies([tf.print('ends', client['id'] + zero)]):
    return zero + offset + 10 ** client['id']


@tff.federated_computation(
  tff.FederatedType(np.int64, tff.SERVER),
  tff.FederatedType(_CLIENT, tff.CLIENTS),
)
def powers_of_ten(offset, clients):
  """The sum of 10**id + offset over the clients, and the offset."""
  offsets = tff.federated_broadcast(offset)
  return tff.federated_sum(tff.federated_map(_work, (offsets, clients))), offset


def clients(ids: Sequence[int], sleep_s: float = 0.0) -> list[dict]:
  """Clients whose work takes so long."""
  return [{'id': i, 'sleep_us': int(sleep_s * 1e6)} for i in ids]


def argument(cohort: list[dict]) -> tff.structure.Struct:
  """What a context is handed for `powers_of_ten(0, cohort)`."""
  return tff.structure.Struct.unnamed(np.int64(0), cohort)


class Worker:
  """A worker process, the same address after a restart.

  Attributes:
    target: gRPC's address of it.
    socket: The unix socket behind which it is contained, if it is.
  """

  def __init__(
    self,
    test: absltest.TestCase,
    path: pathlib.Path,
    prefix: Sequence[str] = (),
    address: str = '',
  ):
    """Starts it, until the end of the test.

    Args:
      test: The test.
      path: Of its files.
      prefix: What its command line begins with.
      address: Where it is on an open port; else it is contained.
    """
    self.socket = path.with_suffix('.sock')
    self.target = f'{address}:{_PORT}' if address else f'unix:{self.socket}'
    self._log = path.with_suffix('.log')
    launcher = [sys.executable, '-I', '-S', worker_launcher.__file__]
    way_in = f'--open_port={_PORT}' if address else f'--socket={self.socket}'
    self._command = [*prefix, *launcher, way_in, '--', WORKER_BINARY]
    self.start()
    test.addCleanup(self.kill)

  def start(self) -> None:
    with self._log.open('ab') as log:
      self._process = subprocess.Popen(
        self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
      )

  @property
  def pid(self) -> int:
    return self._process.pid

  def kill(self) -> None:
    self._process.kill()
    self._process.wait()

  def signal(self, number: signal.Signals) -> None:
    os.kill(self.pid, number)

  def begun(self) -> list[int]:
    """Ids of the clients whose work has begun here, in all of its lives."""
    return self._clients('begins')

  def ended(self) -> list[int]:
    """Ids of the clients whose work has ended here."""
    return self._clients('ends')

  def _clients(self, word: str) -> list[int]:
    return sorted(
      int(line.split()[1])
      for line in self._log.read_text().splitlines()
      if line.startswith(word)
    )


def start(test: absltest.TestCase, count: int) -> list[Worker]:
  """Workers that the end of the test ends."""
  folder = tempfile.TemporaryDirectory()
  test.addCleanup(folder.cleanup)
  path = pathlib.Path(folder.name)
  return [Worker(test, path / f'worker{i}') for i in range(count)]


def build_process(
  mechanism: mechanisms.GraphMechanism,
) -> tff.learning.templates.LearningProcess:
  """An MLP for the digits."""
  spec = models.MODELS['mlp']
  return federated.build_learning_process(
    federated.functional_model(spec, spec.build([8, 8, 1], 10, 1)),
    mechanism,
    local_steps=3,
    learning_rate=0.3,
  )


def train(
  process: tff.learning.templates.LearningProcess, seed: int = 1
) -> tuple[Any, Any]:
  """Two rounds of five users of unequal size.

  Args:
    process: Of `build_process`.
    seed: Of the clients' noise.

  Returns:
    The state and the metrics.
  """
  digits = datasets.load('digits')
  parts = partitions.dirichlet(digits.train_labels[:300], 5, 1.0, seed=4)
  state = process.initialize()
  for m in (1, 2):
    state, metrics = process.next(
      state,
      [
        client_data.client_sequence(
          digits.train_features[part],
          digits.train_labels[part],
          noise.seeded_noise_key(seed, m, user),
          1.0,
        )
        for user, part in enumerate(parts)
      ],
    )
  return state, metrics


def in_background(function: Callable[[], Any]) -> Callable[[], Any]:
  """Starts a call in a thread, in the same context.

  Returns:
    A function that waits for the result.
  """
  outcome: list[Any] = []
  context = tff.framework.get_context_stack().current

  def call():
    with tff.framework.get_context_stack().install(context):
      outcome.append(function())

  thread = threading.Thread(target=call)
  thread.start()

  def result():
    thread.join(worker_checks.PATIENCE_S)
    return outcome[0]

  return result


def wait_until(condition: Callable[[], object]) -> None:
  """Returns when the condition holds; fails when it does not come to."""
  deadline = time.monotonic() + worker_checks.PATIENCE_S
  while not condition():
    if time.monotonic() > deadline:
      raise AssertionError('it did not come to that')
    time.sleep(0.01)
