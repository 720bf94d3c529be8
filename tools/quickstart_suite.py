"""Measures what a private model costs with a tool, and writes the results."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

from tvdp_tf import errors

_ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = 'tvdp_tf'
# Tool -> a description of what its program protects.
PROTECTS = {
  OURS: 'an example, from a server that sees sums',
  'tff': 'a user',
  'jax_privacy': 'an example',
  'opacus': 'an example',
  'pfl': 'a user',
  'flower': 'a user',
}

COLUMNS = (
  *('tool', 'lines', 'packages', 'install_seconds', 'run_seconds'),
  *('accuracy', 'protects', 'statement'),
)


def count_lines(path: pathlib.Path) -> int:
  """Counts the lines of a program, without empty ones and its docstring."""
  _, _, code = path.read_text(encoding='utf-8').partition('"""\n')
  return sum(bool(line.strip()) for line in code.splitlines())


def parse(printed: str) -> tuple[str, float]:
  """Parses what a program printed: the statement, and the accuracy.

  Raises:
    ValueError: If it did not print these.
  """
  found = re.search(r'statement: (.*)\naccuracy: (\S+)', printed, re.DOTALL)
  if found is None:
    raise ValueError(f'no statement and accuracy in {printed!r}')
  return found[1], float(found[2])


def run(command: list[str], cwd: pathlib.Path, **environment: str) -> str:
  """Runs a program, returns its output, and ends processes it leaves behind.

  Raises:
    TvdpError: If it fails.
  """
  # Not through a pipe, which leftover processes may keep open.
  with tempfile.TemporaryFile('w+') as printed:
    process = subprocess.Popen(
      command,
      cwd=cwd,
      env={**os.environ, 'PIP_NO_CACHE_DIR': '1', **environment},
      stdout=printed,
      start_new_session=True,
    )
    try:
      code = process.wait()
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if code:
      raise errors.TvdpError(f'{" ".join(command)} failed, see above')
    printed.seek(0)
    return printed.read()


def measure(tool: str, python: str, digits: pathlib.Path) -> dict[str, Any]:
  """Installs a tool and runs its program; returns a row of the table."""
  started = time.monotonic()
  if tool == OURS:
    environment = _ROOT / '.venv-quickstart'
    shutil.rmtree(environment, ignore_errors=True)
    install = ['tools/install.sh', environment.name, 'requirements.lock']
    run(['sh', *install, python], _ROOT)
    pins = _ROOT / 'requirements.lock'
  else:
    environment = _ROOT / '.venv-peers' / tool
    shutil.rmtree(environment, ignore_errors=True)
    run(['sh', 'benchmarks/install_peers.sh', python, tool], _ROOT)
    pins = _ROOT / 'benchmarks/peers' / tool / 'requirements.txt'
  installed = time.monotonic()
  code = _ROOT / 'benchmarks/peers' / tool / 'quickstart.py'
  with tempfile.TemporaryDirectory() as folder:
    printed = run(
      [str(environment / 'bin' / 'python'), str(code), str(digits)],
      pathlib.Path(folder),
      TF_CPP_MIN_LOG_LEVEL='3',
    )
  ended = time.monotonic()
  statement, accuracy = parse(printed)
  return {
    'tool': tool,
    'lines': count_lines(code),
    'packages': pins.read_text(encoding='utf-8').count('=='),
    'install_seconds': round(installed - started, 1),
    'run_seconds': round(ended - installed, 1),
    'accuracy': accuracy,
    'protects': PROTECTS[tool],
    'statement': statement,
  }


def write(rows: list[dict[str, Any]], folder: pathlib.Path) -> None:
  """Writes `quickstart.csv` and `README.md`."""
  from tvdp_tf.output import files, layout, machine  # noqa: PLC0415

  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'quickstart.csv',
    COLUMNS,
    ([row[name] for name in COLUMNS] for row in rows),
  )
  host = machine.describe()
  table = layout.markdown_table(
    (
      *('tool', 'lines', 'packages', 'seconds to install'),
      *('seconds to run', 'accuracy', 'protects'),
    ),
    [
      (
        *(row['tool'], str(row['lines']), str(row['packages'])),
        *(f'{row[name]:.0f}' for name in ('install_seconds', 'run_seconds')),
        *(f'{row["accuracy"]:.2f}', row['protects']),
      )
      for row in rows
    ],
  )
  lines = [
    '# From nothing to a private model',
    '',
    'By `python -m tools.quickstart`, on '
    f'{machine.in_words(host)}, at a load of {host["load_average"]:.1f}. A '
    "linear model of scikit-learn's digits at about epsilon = 3, delta = 1e-4:"
    ' `benchmarks/peers/<tool>/quickstart.py`. What is protected differs, so'
    ' that accuracies are not to be compared; settings were not tuned. Installs'
    " include downloads, without pip's cache.",
    '',
    table,
    '',
    'What the tool itself says of privacy, word for word:',
  ]
  for row in rows:
    lines += ['', f'## {row["tool"]}', '', '```', row['statement'], '```']
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')
