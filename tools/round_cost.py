"""Measures the cost of a round under each mechanism, with either noise.

  python -m tools.round_cost --output_dir=results/round_cost

There are ten clients with 600 generated examples of 28 x 28 pixels and five
local steps, on the compiled runtime of a CPU. The rounds of all kinds take
turns, so that other load on the machine affects all of them. It takes two
minutes on two cores.
"""

import pathlib
import statistics
import time
from collections.abc import Callable, Collection
from typing import Any

from absl import flags

from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/round_cost', 'Where rounds.csv and README.md go.'
)
_ROUNDS = flags.DEFINE_integer(
  'rounds', 40, 'Rounds of each kind that are measured.', lower_bound=1
)

_CLIENTS, _EXAMPLES, _LOCAL_STEPS = 10, 600, 5
_WARM_UP = 4


def _kinds() -> dict[str, Any]:
  """Returns the mechanisms by their names in the table."""
  from tvdp_tf import mechanisms, privacy  # noqa: PLC0415

  multipliers = privacy.GeometricSchedule(0.95, 10_000, 3.0)
  stddevs = privacy.GeometricSchedule(0.95, 10_000, 0.01)
  kinds: dict[str, Any] = {'paper': mechanisms.PaperMechanism(stddevs, 5.0)}
  for noise in ('continuous', 'discrete'):
    kinds[f'gradient, {noise}'] = mechanisms.GradientMechanism(
      multipliers, 1.0, noise=noise
    )
    kinds[f'central, {noise}'] = mechanisms.CentralMechanism(
      multipliers, 1.0, _CLIENTS, noise=noise
    )
  return kinds


def _rounds(mechanism: Any) -> Callable[[], None]:
  """Returns a function that runs one more round of a separate process."""
  import numpy as np  # noqa: PLC0415

  from tvdp_tf import federated  # noqa: PLC0415
  from tvdp_tf.federated import client_data  # noqa: PLC0415
  from tvdp_tf.learning import models, noise  # noqa: PLC0415

  spec, shape = models.MODELS['mlp'], (28, 28, 1)
  rng = np.random.default_rng(0)
  users = [
    (
      rng.random([_EXAMPLES, *shape], np.float32),
      rng.integers(10, size=_EXAMPLES).astype(np.int32),
    )
    for _ in range(_CLIENTS)
  ]
  for user in users:
    for array in user:
      array.flags.writeable = False  # It stays on the device.
  process = federated.build_learning_process(
    federated.functional_model(spec, spec.build(shape, 10, 0)),
    mechanism,
    local_steps=_LOCAL_STEPS,
    learning_rate=0.1,
  )
  state = process.initialize()

  def run() -> None:
    nonlocal state
    data = [
      client_data.client_sequence(*user, noise.fresh_noise_key(), 1 / _EXAMPLES)
      for user in users
    ]
    state = process.next(state, data).state

  return run


def measure(
  rounds: int, wanted: Collection[str] = ()
) -> dict[str, list[float]]:
  """Measures the seconds of rounds of each kind, or only of those wanted."""
  from tvdp_tf import runtimes  # noqa: PLC0415

  with runtimes.compiled_runtime('cpu'):
    runs = {
      name: _rounds(kind)
      for name, kind in _kinds().items()
      if name in (wanted or _kinds())
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(_WARM_UP + rounds):
      for name, run in runs.items():
        started = time.perf_counter()
        run()
        if turn >= _WARM_UP:
          seconds[name].append(time.perf_counter() - started)
  return seconds


def _write(seconds: dict[str, list[float]], folder: pathlib.Path) -> None:
  from tvdp_tf.output import files, layout, machine  # noqa: PLC0415

  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'rounds.csv',
    list(seconds),
    zip(*seconds.values(), strict=True),
    end='\r\n',
  )
  paper = statistics.median(seconds['paper'])
  host = machine.describe()
  rows = []
  for name, values in seconds.items():
    median = statistics.median(values)
    rows.append((name, f'{1000 * median:.1f}', f'{median / paper:.2f}'))
  lines = [
    '# What a round costs',
    '',
    f'By `python -m tools.round_cost`, on {machine.in_words(host)}, at a load '
    f'of {host["load_average"]:.1f}: the MLP of 25,450 weights, {_CLIENTS} '
    f'clients of {_EXAMPLES} examples, {_LOCAL_STEPS} local steps. Medians of '
    f'{len(seconds["paper"])} rounds, which took turns.',
    '',
    layout.markdown_table(('', 'milliseconds', "times the paper's"), rows),
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')


def main() -> None:
  """Measures the costs, and writes the results."""
  from tvdp_tf import runtimes  # noqa: PLC0415

  runtimes.configure('cpu', _CLIENTS)  # As train.py does for `gradient`.
  seconds = measure(_ROUNDS.value)
  _write(seconds, pathlib.Path(_OUTPUT_DIR.value))
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
