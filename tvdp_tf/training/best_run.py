"""Trains a random number of times and publishes only the best run."""

import contextlib
import dataclasses
import math
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable

from absl import logging

from tvdp_tf import errors
from tvdp_tf.output import files
from tvdp_tf.training import run_folder
from tvdp_tf.training import selection as selection_lib
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

# Contains all the runs, and is secret.
PRIVATE = 'private'
# One level deeper: a folder's number of subfolders is visible from outside.
_RUNS = 'runs'
# Published of the best run. Its metrics and its ledger only count that run.
_PUBLISHED = (run_folder.MODEL, run_folder.PRIVACY)


def train_best(
  settings: settings_lib.TrainingSettings,
  output_dir: pathlib.Path,
  mean: float,
  progress: bool = False,
  make_runtime: Callable[
    [], contextlib.AbstractContextManager | None
  ] = lambda: None,
) -> training.TrainingResult:
  """Trains, and keeps the best model by accuracy on the public test set.

  Args:
    settings: What to run; epsilon is the epsilon of what is published.
    output_dir: The folder to create: `model` and `privacy.json` of the best
      run, which may be published, and `private` with all runs, which must not.
    mean: Mean number of runs; the number itself is drawn at random.
    progress: Whether to draw progress bars on the standard error.
    make_runtime: Returns the runtime of each run, as for `training.train`.

  Returns:
    The result of the best run; `output_dir` is the folder created.

  Raises:
    UsageError: If selection is not possible with these settings, or as for
      `train`.
    TrainingFailedError: If every run has failed.
    TvdpError: As for `train`, if a run cannot be trained at all.
  """
  selection_lib.check(settings, mean)
  run_folder.check_absent(output_dir)
  selection = selection_lib.Selection(settings, mean, secrets.randbits(63))
  _ = selection.run_settings  # Raises errors before the folder exists.
  with files.errors_in_one_line(output_dir):
    (output_dir / PRIVATE).mkdir(mode=0o700, parents=True)
    (output_dir / PRIVATE / _RUNS).mkdir()
  best: training.TrainingResult | None = None
  for number in range(1, selection.draw() + 1):
    try:
      result = training.train(
        selection.run_settings,
        output_dir / PRIVATE / _RUNS / f'run_{number}',
        progress=progress,
        runtime=make_runtime(),
        selection=selection,
      )
    except errors.TrainingFailedError as error:
      # A failed run counts as the worst: stopping here would reveal it.
      logging.info('run %d: %s', number, error)
      continue
    if best is None or _score(result) > _score(best):
      best = result
  if best is None:
    raise errors.TrainingFailedError(
      'every run has failed: lower --learning_rate or the noise'
    )
  _publish(best.output_dir, output_dir)
  return dataclasses.replace(best, output_dir=output_dir)


def _score(result: training.TrainingResult) -> float:
  return result.accuracy if math.isfinite(result.accuracy) else -math.inf


def _publish(run: pathlib.Path, output_dir: pathlib.Path) -> None:
  """Copies what may be published; each copy is atomic."""
  for name in _PUBLISHED:
    with (
      files.errors_in_one_line(output_dir / name),
      files.replaced(output_dir / name, output_dir / PRIVATE) as temporary,
    ):
      # Without the files' times, which would reveal which run it was.
      if (run / name).is_dir():
        shutil.copytree(run / name, temporary, copy_function=shutil.copyfile)
        for folder in (temporary, *temporary.rglob('*')):
          os.utime(folder)
      else:
        shutil.copyfile(run / name, temporary)
