"""What a round of a whole training costs, beside its runtime's own round.

  python -m tools.program_cost --data_dir=DIR

MNIST with every default of `train.py` on (the ledger, a checkpoint a round,
evaluation, metrics, TensorBoard), 100 users of whom 10 take part, five local
steps. The time from the start of a round to that of the next is compared with
the time in which the same process, with the same cohort's data, runs a round
and nothing else. It takes a minute on two cores.
"""

import itertools
import pathlib
import statistics
import tempfile
import time
from unittest import mock

from absl import flags

from tvdp_tf.cli import program

_DATASET = flags.DEFINE_string('dataset', 'mnist', 'As of train.py.')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'As of train.py.')
_ROUNDS = flags.DEFINE_integer(
  'measured_rounds', 200, 'Rounds of each that are measured.', lower_bound=1
)
_WARM_UP = 5


def measure(
  dataset: str, data_dir: str | None, rounds: int
) -> tuple[list[float], list[float]]:
  """Seconds of each round of a training, and of each of its runtime alone."""
  from tvdp_tf.training import rounds as rounds_lib  # noqa: PLC0415
  from tvdp_tf.training import settings as settings_lib  # noqa: PLC0415
  from tvdp_tf.training import train as training  # noqa: PLC0415

  settings = settings_lib.TrainingSettings(
    dataset=dataset,
    data_dir=data_dir,
    users=100,
    users_per_round=10,
    local_steps=5,
    rounds=rounds + _WARM_UP + 1,
  )
  run = rounds_lib.Rounds.run
  close = rounds_lib.Rounds.close
  first: list = []
  starts: list[float] = []
  alone: list[float] = []

  def noted(self, *arguments):
    first[:] = first or arguments
    starts.append(time.perf_counter())
    return run(self, *arguments)

  def measured(self):
    """The runtime's rounds, after those of the training."""
    state, *cohort = first
    for _ in range(rounds if not alone else 0):
      data = self._client_data(*cohort)
      started = time.perf_counter()
      state = self.process.next(state, data).state
      alone.append(time.perf_counter() - started)
    close(self)

  with (
    tempfile.TemporaryDirectory() as folder,
    mock.patch.object(rounds_lib.Rounds, 'run', noted),
    mock.patch.object(rounds_lib.Rounds, 'close', measured),
  ):
    training.train(settings, pathlib.Path(folder, 'run'), progress=True)
  whole = [after - before for before, after in itertools.pairwise(starts)]
  return whole[_WARM_UP:], alone


def main() -> None:
  """Measures, and prints medians, minima and their ratios."""
  whole, alone = measure(_DATASET.value, _DATA_DIR.value, _ROUNDS.value)
  for name, one, other in (
    ('median', statistics.median(whole), statistics.median(alone)),
    ('minimum', min(whole), min(alone)),
  ):
    print(
      f'{name}: a round of the training {1000 * one:.1f} ms, of its runtime '
      f'alone {1000 * other:.1f} ms, {one / other:.2f} times that'
    )


if __name__ == '__main__':
  program.run(main)
