"""Rounds of TFF's own algorithms on both runtimes of a CPU, in turns.

There are ten small clients with 60 generated examples of 28 x 28 pixels, three
batches each, and an MLP with 25,450 weights. The runtimes take turns, so that
other load on the machine affects both.
"""

import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tools import turns
from tvdp_tf import federated, runtimes
from tvdp_tf.learning import models

_CLIENTS, _EXAMPLES, _BATCH = 10, 60, 20
_SHAPE = (28, 28, 1)
_WARM_UP = 3


def _keras_model() -> Any:
  return tff.learning.models.from_keras_model(
    models.MODELS['mlp'].build(_SHAPE, 10, 0),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=(
      tf.TensorSpec([None, *_SHAPE], np.float32),
      tf.TensorSpec([None], np.int32),
    ),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


def _algorithms() -> dict[str, Callable[[], Any]]:
  """Returns functions that build a process, by the algorithm's name."""
  algorithms, optimizers = tff.learning.algorithms, tff.learning.optimizers
  sgd = optimizers.build_sgdm(0.1)

  def functional():
    mlp = models.MODELS['mlp']
    return federated.functional_model(mlp, mlp.build(_SHAPE, 10, 0))

  return {
    'FedAvg, functional model': lambda: algorithms.build_weighted_fed_avg(
      functional(), client_optimizer_fn=sgd
    ),
    'FedAvg, Keras model': lambda: algorithms.build_weighted_fed_avg(
      _keras_model, client_optimizer_fn=sgd
    ),
    'FedProx, Keras model': lambda: algorithms.build_weighted_fed_prox(
      _keras_model, proximal_strength=0.1, client_optimizer_fn=sgd
    ),
    'FedSGD, Keras model': lambda: algorithms.build_fed_sgd(_keras_model),
  }


def _data_sets() -> list[Any]:
  rng = np.random.default_rng(0)
  return [
    tf.data.Dataset.from_tensor_slices(
      (
        rng.random([_EXAMPLES, *_SHAPE], np.float32),
        rng.integers(10, size=_EXAMPLES).astype(np.int32),
      )
    ).batch(_BATCH)
    for _ in range(_CLIENTS)
  ]


def measure(rounds: int, wanted: str = '') -> dict[str, dict[str, list[float]]]:
  """Measures the seconds of rounds on each runtime, by algorithm.

  Args:
    rounds: Number of rounds on each runtime.
    wanted: Prefix of the names of the algorithms to measure.
  """
  data = _data_sets()
  install = tff.framework.get_context_stack().install
  results = {}
  for name, build in _algorithms().items():
    if not name.startswith(wanted):
      continue
    process, states = build(), {}
    with (
      runtimes.compiled_runtime('cpu') as compiled,
      runtimes.local_runtime() as worker,
    ):
      contexts = {'compiled': compiled, 'worker': worker}
      seconds: dict[str, list[float]] = {runtime: [] for runtime in contexts}
      for turn in range(_WARM_UP + rounds):
        for runtime, context in contexts.items():
          with install(context):
            if not turn:
              states[runtime] = process.initialize()
            started = time.perf_counter()
            states[runtime] = process.next(states[runtime], data).state
            if turn >= _WARM_UP:
              seconds[runtime].append(time.perf_counter() - started)
    results[name] = seconds
  return results


def _write(results: turns.Seconds, folder: pathlib.Path) -> None:
  turns.write_csv(folder / 'rounds.csv', ('algorithm', 'runtime'), results)
  rows = []
  for name, seconds in results.items():
    compiled, worker = (one / _CLIENTS for one in turns.medians_ms(seconds))
    rows.append(
      (name, f'{compiled:.1f}', f'{worker:.1f}', f'{worker / compiled:.1f}')
    )
  rounds = len(next(iter(results.values()))['worker'])
  turns.write_table(
    folder / 'README.md',
    "A round of TFF's own algorithms",
    'python -m tools.tff_algorithms',
    f'the MLP of 25,450 weights, {_CLIENTS} clients of {_EXAMPLES} examples in '
    f'batches of {_BATCH}. Milliseconds a client: medians of {rounds} rounds, '
    'which took turns.',
    ('', 'compiled', 'worker', 'worker / compiled'),
    rows,
  )


def run(folder: pathlib.Path, rounds: int) -> None:
  """Measures a number of rounds of each kind, and writes the results."""
  runtimes.configure('cpu', _CLIENTS, waits=False)  # None has discrete noise.
  _write(measure(rounds), folder)
