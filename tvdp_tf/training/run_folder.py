"""The files in the folder of a run; every write is atomic.

Files are written atomically (`output.files`), and so is the folder itself: if
it exists, it contains the configuration and a ledger.

A folder may come from someone else. Only JSON and CSV are read from it, never
code. Links are refused, because they could point out of the folder.
"""

import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

from tvdp_tf import _validate, errors
from tvdp_tf.output import files, report
from tvdp_tf.privacy import ledger

CONFIG = 'config.json'
PRIVACY = 'privacy.json'
METRICS = 'metrics.csv'
CURVES = 'curves.png'
CHECKPOINTS = 'checkpoints'
MODEL = 'model'
LEDGER = 'ledger.jsonl'
REPORT = report.REPORT
TENSORBOARD = 'tensorboard'
# The first columns, in this order; additional ones follow.
METRICS_COLUMNS = (
  'round',
  'noise_stddev',
  'test_loss',
  'test_accuracy',
  'delivered_epsilon',
)
_FINISHED = 'finished'
_PARTS = ('settings', 'versions', 'resolved')
_DIGEST = 'sha256'
_RUN_ID = re.compile('[0-9a-f]{32}')
# Names that must not be links, which could lead out of the folder.
_OWN = re.compile(
  r'(config\.json|privacy\.json|metrics\.csv|curves\.png|ledger\.jsonl.*'
  r'|report\.html|checkpoints|model|tensorboard)'
)
# Leftovers of interrupted writes: ours, then those of TFF's managers.
_LEFTOVER = re.compile(
  r'\.(config\.json|privacy\.json|metrics\.csv|curves\.png|report\.html|model)'
  r'\.[0-9]+'
  r'|metrics\.csv_temp[0-9]+'
)
_LEFTOVER_CHECKPOINT = re.compile(r'\.round_[0-9]+\.[0-9]+|.*_temp[0-9]+')


def new_name(prefix: str = '') -> pathlib.Path:
  """Returns a folder for a run; of two in one second, it is not the same."""
  return pathlib.Path(
    'runs', f'{prefix}{datetime.datetime.now():%Y%m%d-%H%M%S-%f}'
  )


def interrupted(path: pathlib.Path, again: str) -> str:
  """What is said of a run that was interrupted; `again` is how to go on."""
  if not path.exists():
    return 'interrupted before anything was released: nothing was written'
  return f'interrupted: to continue, {again}'


def check_absent(path: pathlib.Path) -> None:
  """Raises `UsageError` if the folder exists or could not be created."""
  try:
    files.check_folder(path)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error


def digest(config: Mapping[str, Any]) -> bytes:
  """SHA-256 of a configuration, 32 bytes; it never changes during a run."""
  parts = {name: config[name] for name in _PARTS}
  return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).digest()


def create(
  path: pathlib.Path,
  config: Mapping[str, Any],
  header: ledger.LedgerHeader,
  run: ledger.LedgerRun,
  join: pathlib.Path | None = None,
) -> None:
  """Creates the folder, and starts the run in its ledger.

  The folder contains `config.json`, an empty `metrics.csv`, and, unless the run
  joins a shared one, a ledger. With secret sampling, only the owner may open
  the folder.

  Args:
    path: The folder.
    config: The content of `config.json`.
    header: The header of the ledger.
    run: What the ledger records about the run.
    join: The ledger that the run shares with others. It is created if it does
      not exist.

  Raises:
    UsageError: If the folder exists or cannot be written.
    LedgerError: If the ledger cannot be written, or has another header.
  """
  try:
    with files.create_folder(path) as folder:
      if header.sampling != 'none':
        # Times in the folder reveal how many clients were drawn.
        (path if path.is_dir() else folder).chmod(0o700)
      files.write_json(
        folder / CONFIG, {**config, _DIGEST: digest(config).hex()}
      )
      files.write_text(folder / METRICS, ','.join(METRICS_COLUMNS) + '\r\n')
      # Last, so that an earlier interrupt leaves nothing in a shared ledger.
      if join is None:
        ledger.PrivacyLedger.create(folder / LEDGER, header, run).close()
      elif not join.exists():
        ledger.PrivacyLedger.create(join, header, run, shared=True).close()
      else:
        with ledger.PrivacyLedger.open(join, header, shared=True) as shared:
          shared.join(run)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
  """Keeps other processes from continuing the run in the folder.

  Raises:
    UsageError: If another process is running it.
  """
  descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise errors.UsageError(
        'output_dir must be the folder of a run that no other process is'
        f' continuing, got {str(path)!r}'
      ) from None
    yield
  finally:
    os.close(descriptor)


def read_config(path: pathlib.Path) -> dict[str, Any]:
  """Reads `config.json` of an existing run.

  Returns:
    The configuration. Its entries 'settings', 'versions' and 'resolved' are
    objects, and in 'resolved', `public_seed`, `partition_seed`, `run_id` and
    `shared_ledger` are in their ranges.

  Raises:
    UsageError: If the folder is not that of a run, or contains links or pipes;
      or if the file was damaged or edited: with another seed or id, the
      ledger's clients would not be those of the run.
  """
  try:
    _refuse_what_misleads(path)
    config = _parsed(path / CONFIG)
    if not all(isinstance(config.get(name), dict) for name in _PARTS):
      raise ValueError(f'it has no {CONFIG} of a run')
    if config.get(_DIGEST) != digest(config).hex():
      raise ValueError(
        f'its {CONFIG} was edited after the run began, and has another'
        f' {_DIGEST}: undo the edit, and give settings as flags'
      )
    resolved = config['resolved']
    for name in ('public_seed', 'partition_seed'):
      _validate.integer(name, resolved.get(name), 0, 2**63 - 1)
    run_id = resolved.get('run_id')
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
      raise ValueError(
        f'run_id must match {_RUN_ID.pattern}, got {_validate.quoted(run_id)}'
      )
    if not isinstance(resolved.get('shared_ledger'), bool):
      raise ValueError('shared_ledger must be true or false')
  except ValueError as error:
    raise errors.UsageError(
      f'output_dir must be the folder of a run to resume, got {str(path)!r}: '
      f'{str(error)[:200]}'
    ) from error
  return config


def _parsed(path: pathlib.Path) -> dict[str, Any]:
  """Returns the object in `config.json`."""
  try:
    config = json.loads(path.read_text(encoding='utf-8'))
  except (FileNotFoundError, NotADirectoryError) as error:
    raise ValueError(f'it has no {CONFIG} of a run') from error
  except OSError as error:
    raise ValueError(
      f'its {CONFIG} cannot be read: {error.strerror}'
    ) from error
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f'its {CONFIG} is damaged and no longer JSON: restore it from a copy'
      f' ({error})'
    ) from error
  return config if isinstance(config, dict) else {}


def _refuse_what_misleads(path: pathlib.Path) -> None:
  """Refuses links and pipes among the run's files.

  The content of an old checkpoint's folder will be removed, and reading from a
  pipe waits for a writer.
  """
  try:
    own = [entry for entry in path.iterdir() if _OWN.fullmatch(entry.name)]
  except OSError:  # No such folder, so no configuration.
    return
  for entry in sorted([*own, *(path / CHECKPOINTS).rglob('*')]):
    name = repr(str(entry.relative_to(path)))
    if entry.is_symlink():
      raise ValueError(f'{name} in it is a link')
    if not (entry.is_file() or entry.is_dir()):
      raise ValueError(f'{name} in it is neither a file nor a folder')


def _entry(part: Mapping[str, Any], name: str) -> str:
  """Formats an entry as JSON, where 1 differs from 1.0 and true."""
  return repr(part[name]) if name in part else 'absent'


def check_unchanged(
  path: pathlib.Path, config: Mapping[str, Any], part: str, now: Any
) -> None:
  """Checks a part of the configuration against that of a run to resume.

  Args:
    path: The run's folder.
    config: The result of `read_config` for it.
    part: 'settings', 'versions' or 'resolved'.
    now: The current value of this part.

  Raises:
    UsageError: If they differ; the message shows the first difference.
  """
  then = config[part]
  now = json.loads(json.dumps(now))
  began = f'as when the run in {str(path)!r} began'
  # In their original order: causes come before consequences.
  for name in [*now, *sorted(then.keys() - now.keys())]:
    old, new = _entry(then, name), _entry(now, name)
    if old == new:
      continue
    old, new = old[:60], new[:60]
    shown = (name if name in now else repr(name))[:60]
    if part == 'settings':
      raise errors.UsageError(f'{shown} must be {old}, {began}, got {new}')
    what = 'version of ' if part == 'versions' else ''
    raise errors.UsageError(
      f'resume must find the {what}{shown} {began}, {old}, got {new}'
    )


def config_to_resume(
  path: pathlib.Path, settings: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the configuration of a run that these settings can resume.

  Raises:
    UsageError: If the folder holds no run, or one with other settings.
  """
  config = read_config(path)
  check_unchanged(path, config, 'settings', settings)
  return config


def is_finished(path: pathlib.Path) -> bool:
  """Whether the run in the folder is finished."""
  return files.read_json(path / PRIVACY).get(_FINISHED) is True


def write_privacy(
  path: pathlib.Path, statement: Mapping[str, Any], finished: bool
) -> None:
  """Writes `privacy.json`, the last file of a finished run."""
  files.write_json(path / PRIVACY, {**statement, _FINISHED: finished})


def remove_privacy(path: pathlib.Path) -> None:
  """Removes statement and report before releases that they do not count.

  If the run is killed, no statement is better than a wrong one.
  """
  for name in (PRIVACY, REPORT):
    (path / name).unlink(missing_ok=True)


def remove_leftovers(path: pathlib.Path) -> None:
  """Removes the incomplete files of a run that was killed.

  Only the process that has the ledger open may call it.
  """
  found = [e for e in path.iterdir() if _LEFTOVER.fullmatch(e.name)]
  if (path / CHECKPOINTS).is_dir():
    found += [
      entry
      for entry in (path / CHECKPOINTS).iterdir()
      if _LEFTOVER_CHECKPOINT.fullmatch(entry.name)
    ]
  for entry in found:
    if entry.is_dir() and not entry.is_symlink():
      shutil.rmtree(entry)
    else:
      entry.unlink()
