"""The folder of a run: what is written, where, and never half.

Text files appear whole or not at all: they are written beside their place,
flushed to the disk and renamed.
"""

import json
import os
import pathlib
from typing import Any

from tvdp_tf import errors
from tvdp_tf.experiments import output_folder

CONFIG = 'config.json'
PRIVACY = 'privacy.json'
METRICS = 'metrics.csv'
CURVES = 'curves.png'
CHECKPOINTS = 'checkpoints'
MODEL = 'model'
LEDGER = 'ledger.jsonl'
TENSORBOARD = 'tensorboard'
# The first columns, in this order; further ones follow.
METRICS_COLUMNS = (
  'round',
  'noise_stddev',
  'test_loss',
  'test_accuracy',
  'delivered_epsilon',
  'seconds',
)


def write_text(path: pathlib.Path, text: str) -> None:
  """Writes a text file atomically."""
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  with open(temporary, 'w', encoding='utf-8', newline='') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes a JSON file atomically; a NaN or an infinity is an error."""
  write_text(path, json.dumps(value, indent=2, allow_nan=False) + '\n')


def check_absent(path: pathlib.Path) -> None:
  """Raises `UsageError` if the folder exists or could not be created."""
  try:
    output_folder.check(path)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error


def create(path: pathlib.Path, config: dict[str, Any]) -> None:
  """Creates the folder with its `config.json` and an empty `metrics.csv`.

  Raises:
    UsageError: If it exists or cannot be written.
  """
  check_absent(path)
  try:
    path.mkdir(parents=True)
    write_json(path / CONFIG, config)
    write_text(path / METRICS, ','.join(METRICS_COLUMNS) + '\r\n')
  except OSError as error:
    raise errors.UsageError(
      f'output_dir must be writable, got {str(path)!r}: {error.strerror}'
    ) from error


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads `config.json` of an existing run.

  Raises:
    UsageError: If the folder is not that of a run.
  """
  try:
    config = json.loads((path / CONFIG).read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise errors.UsageError(
      f'output_dir must be the folder of a run to resume, got {str(path)!r}'
    ) from error
  if not isinstance(config, dict):
    raise errors.UsageError(f'{path / CONFIG} must hold a JSON object')
  return config
