"""Breaks each line that the guarantee depends on, to see if a test notices.

  python -m tools.mutants --output_dir=results/mutants

Every mutant is a copy of the code with one change that weakens the guarantee,
such as a norm without its square root, or a filter that lets everything pass.
Its tests are run on the copy. If they do not notice the mutant, it has
survived, and the exit code is 1. It takes half an hour on two cores. With
`--only` or `--new`, the folder's results of the other mutants are kept.
"""

import concurrent.futures
import csv
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import tqdm
from absl import flags

from tools import mutant_cases
from tvdp_tf import errors
from tvdp_tf.cli import program
from tvdp_tf.output import files

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/mutants', 'Where mutants.csv and README.md go.'
)
_ONLY = flags.DEFINE_string(
  'only', '', 'Run only mutants of files whose path contains this text.'
)
_NEW = flags.DEFINE_bool(
  'new', False, 'Run only mutants that the folder does not hold as noticed.'
)
_JOBS = flags.DEFINE_integer('jobs', 2, 'Mutants at a time.')

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_COPIED = (
  'benchmarks',
  'binaries',
  'examples',
  'reproduction',
  'tests',
  'tools',
  'tvdp_tf',
)
_SECONDS = 600


class Result(NamedTuple):
  """The outcome of a mutant.

  Attributes:
    path: The file that was changed.
    before: The original text.
    after: The replacement.
    noticed: Whether a test failed.
    noticed_by: The first test that failed.
    seconds: The duration of the tests.
  """

  path: str
  before: str
  after: str
  noticed: bool
  noticed_by: str
  seconds: float


def _copy(folder: pathlib.Path) -> None:
  for name in _COPIED:
    shutil.copytree(
      _ROOT / name,
      folder / name,
      ignore=shutil.ignore_patterns('__pycache__'),
    )
  for name in ('setup.cfg', 'pyproject.toml'):
    shutil.copy(_ROOT / name, folder / name)


def run(mutant: mutant_cases.Mutant) -> Result:
  """Runs the tests of one mutant on a copy of the code."""
  started = time.monotonic()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    _copy(folder)
    path = folder / mutant.path
    path.write_text(mutant_cases.mutated(mutant, path.read_text()))
    command = [
      sys.executable,
      '-m',
      'pytest',
      '-x',
      '-q',
      '-p',
      'no:cacheprovider',
    ]
    # Like `make test`: a test that it leaves out must not be the one to notice.
    command += ['-m', 'not long', '--no-header', '--tb=no', *mutant.tests]
    try:
      done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {'PYTHONPATH': str(folder)},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
      )
      failed = [
        line.removeprefix('FAILED ').removeprefix('ERROR ').split(' - ')[0]
        for line in done.stdout.splitlines()
        if line.startswith(('FAILED ', 'ERROR '))
      ]
      noticed = done.returncode == 1
      by = failed[0] if failed else ''
      # 5: all tests are long.
      if done.returncode not in (0, 1, 5):
        raise errors.TrainingFailedError(
          f'pytest ended with {done.returncode}: {done.stdout[-300:]!r}'
        )
    except subprocess.TimeoutExpired:
      noticed, by = True, 'the time limit'
  seconds = time.monotonic() - started
  return Result(mutant.path, mutant.before, mutant.after, noticed, by, seconds)


# A mutant's (path, before, after).
_Key = tuple[str, str, str]


def _earlier(folder: pathlib.Path) -> dict[_Key, Result]:
  """Reads the results in the folder."""
  path = folder / 'mutants.csv'
  found: dict[_Key, Result] = {}
  if path.exists():
    with path.open(newline='') as file:
      for row in csv.DictReader(file):
        kept = Result(
          *(row['path'], row['before'], row['after']),
          noticed=row['noticed'] == 'True',
          noticed_by=row['noticed_by'],
          seconds=float(row['seconds']),
        )
        found[kept[:3]] = kept
  return found


def _with_earlier(results: list[Result], folder: pathlib.Path) -> list[Result]:
  """Returns all results: these, and the folder's for the other mutants."""
  found = _earlier(folder)
  found |= {result[:3]: result for result in results}
  keys = (mutant[:3] for mutant in mutant_cases.MUTANTS)
  return [found[key] for key in keys if key in found]


def _write(results: list[Result], folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'mutants.csv',
    Result._fields,
    (row._replace(seconds=round(row.seconds)) for row in results),
  )
  noticed = sum(row.noticed for row in results)
  lines = [
    '# Mutants',
    '',
    'Lines that carry the guarantee, broken on purpose, one at a time; and',
    'whether a test notices. `mutants.csv` has the changes, and the first test',
    'that failed.',
    '',
    '```',
    'python -m tools.mutants',
    '```',
    '',
    f'{noticed} of {len(results)} were noticed.',
    '',
    '| file | mutants | noticed |',
    '| --- | --- | --- |',
  ]
  for path in sorted({row.path for row in results}):
    rows = [row for row in results if row.path == path]
    lines.append(f'| {path} | {len(rows)} | {sum(r.noticed for r in rows)} |')
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')


def main() -> None:
  """Runs all mutants.

  Raises:
    TrainingFailedError: If a mutant survives.
  """
  folder = pathlib.Path(_OUTPUT_DIR.value)
  known = {key for key, row in _earlier(folder).items() if row.noticed}
  mutants = [
    mutant
    for mutant in mutant_cases.MUTANTS
    if _ONLY.value in mutant.path and not (_NEW.value and mutant[:3] in known)
  ]
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
    results = list(
      tqdm.tqdm(pool.map(run, mutants), total=len(mutants), unit='mutant')
    )
  _write(_with_earlier(results, folder), folder)
  survived = [row for row in results if not row.noticed]
  for row in survived:
    print(f'SURVIVED: {row.path}: {row.before!r} -> {row.after!r}')
  print(
    f'{len(results) - len(survived)} of {len(results)} mutants were noticed'
  )
  if survived:
    raise errors.TrainingFailedError(f'{len(survived)} mutants survived')


if __name__ == '__main__':
  program.run(main)
