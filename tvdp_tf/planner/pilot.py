"""A pilot run without noise, from which A and Theta are measured.

A pilot hides nothing: it must have run on public data. Only its `metrics.csv`
is needed; `config.json` beside it, where there is one, tells how it was run.
"""

import csv
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from tvdp_tf import _validate
from tvdp_tf.planner import contraction_estimate
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.training import run_folder

_ROUND, _NOISE, _LOSS = _COLUMNS = ('round', 'noise_stddev', 'test_loss')
# What A depends on, of what a plan and a run both have.
_DECISIVE = (
  *('users', 'users_per_round', 'local_steps', 'learning_rate'),
  'l2_norm_clip',
)


@dataclasses.dataclass(frozen=True)
class Pilot:
  """A pilot run and what it says.

  Attributes:
    path: Its `metrics.csv`.
    rounds: Numbers of its rounds.
    losses: The test loss after each.
    estimate: A and Theta.
    settings: How it was run; None if unknown.
  """

  path: str
  rounds: tuple[int, ...]
  losses: tuple[float, ...]
  estimate: contraction_estimate.ContractionEstimate
  settings: Mapping[str, Any] | None

  def differences(
    self, settings: planning_settings.PlanSettings
  ) -> dict[str, tuple[Any, Any]]:
    """What A depends on and differs: name -> (in the pilot, in the plan)."""
    known = self.settings or {}
    pairs = {
      name: (known[name], getattr(settings, name))
      for name in _DECISIVE
      if name in known
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

  def to_json_dict(self) -> dict[str, object]:
    """The measurement, for `plan.json`."""
    return {
      'source': self.path,
      **dataclasses.asdict(self.estimate),
      'pilot_settings': self.settings and dict(self.settings),
    }


def _number(row: Mapping[str, str], name: str, line: int) -> float:
  try:
    return float(row[name])
  except ValueError:
    raise ValueError(
      f'line {line}: {name} is {_validate.quoted(row[name])}, not a number'
    ) from None


def _round(row: Mapping[str, str], line: int, last: int) -> int:
  try:
    number = int(row[_ROUND])
  except ValueError:
    number = 0
  if number <= last:
    raise ValueError(
      f'line {line}: {_ROUND} is {_validate.quoted(row[_ROUND])}, not an'
      f' integer above {last}'
    )
  return number


def _parse(reader: csv.DictReader) -> tuple[list[int], list[float]]:
  """(rounds, losses)."""
  names = list(reader.fieldnames or ())
  missing = [name for name in _COLUMNS if names.count(name) != 1]
  if missing:
    raise ValueError(
      f'line 1: {", ".join(missing)} must each be the name of one column'
    )
  rounds: list[int] = []
  losses: list[float] = []
  for row in reader:
    line = reader.line_num
    if None in row or None in row.values():
      raise ValueError(f'line {line}: there must be {len(names)} fields')
    rounds.append(_round(row, line, rounds[-1] if rounds else 0))
    stddev = _number(row, _NOISE, line)
    if stddev != 0:
      raise ValueError(
        f'{_NOISE} is {stddev!r} in round {rounds[-1]}, but a pilot must have'
        ' none'
      )
    losses.append(_number(row, _LOSS, line))
  return rounds, losses


def _is_plain(value: Any) -> bool:
  if isinstance(value, float):
    return math.isfinite(value)
  return value is None or isinstance(value, int | str)


def _settings(path: pathlib.Path) -> Mapping[str, Any] | None:
  """What the run of a `metrics.csv` was set to, as far as it makes sense."""
  try:
    text = path.with_name(run_folder.CONFIG).read_text(encoding='utf-8')
    config = json.loads(text)
  except (OSError, ValueError, RecursionError):
    return None
  settings = config.get('settings') if isinstance(config, dict) else None
  if not isinstance(settings, dict):
    return None
  return {name: value for name, value in settings.items() if _is_plain(value)}


def read(path: str) -> Pilot:
  """Reads a pilot and measures A and Theta.

  Args:
    path: The folder of a run, or a `metrics.csv`.

  Returns:
    The pilot.

  Raises:
    ValueError: If the file cannot be read or is no metrics of a run, if the run
      had noise, or if its losses do not determine A; one line.
  """
  file_path = pathlib.Path(path)
  if file_path.is_dir():
    file_path = file_path / run_folder.METRICS
  try:
    with open(file_path, newline='', encoding='utf-8-sig') as file:
      rounds, losses = _parse(csv.DictReader(file, strict=True))
    estimate = contraction_estimate.estimate(rounds, losses)
  except OSError as error:
    raise _refusal(path, error.strerror or str(error)) from error
  except UnicodeDecodeError as error:
    raise _refusal(path, 'it is not text in UTF-8') from error
  except (csv.Error, ValueError) as error:
    raise _refusal(path, str(error)) from error
  return Pilot(
    path=str(file_path),
    rounds=tuple(rounds),
    losses=tuple(losses),
    estimate=estimate,
    settings=_settings(file_path),
  )


def _refusal(path: str, reason: str) -> ValueError:
  return ValueError(
    'estimate_contraction must be the folder or metrics.csv of a run without'
    f' noise, got {path!r}: {reason}'
  )
