"""Measures the size of the code, and how its parts depend on each other.

  python -m tools.structure --column=after
  git worktree add DIR 546c476
  python -m tools.structure --column=before --checkout=DIR

It writes the figures of a checkout to `<structure_dir>/<column>.json`, a
picture of its packages to `<column>.png`, and a table of all results in the
folder to `README.md`. It trains the digits for two rounds, to see which modules
a run uses. It takes half a minute.
"""

import ast
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from tools import import_graph
from tvdp_tf import errors
from tvdp_tf.cli import program
from tvdp_tf.output import files, layout, plots

_HERE = pathlib.Path(__file__).resolve().parents[1]
_CHECKOUT = flags.DEFINE_string(
  'checkout', str(_HERE), 'Folder of the checkout to measure.'
)
_COLUMN = flags.DEFINE_string(
  'column', 'after', 'Name of its column in the table.'
)
_STRUCTURE_DIR = flags.DEFINE_string(
  'structure_dir', str(_HERE / 'results' / 'structure'), 'Where to write.'
)

PACKAGE = 'tvdp_tf'
# Strings that always refer to a mechanism.
_MECHANISMS = frozenset({'gradient', 'laplace'})
_MECHANISMS_ROOM = f'{PACKAGE}/mechanisms'
# It re-exports names of all rooms.
_DOOR = f'{PACKAGE}/__init__.py'
# This many equal lines in a row count as repeated.
_REPEATED_LINES = 6
_ROUNDS = 2
# Counts the functions of the package that a program runs, by file.
_PROFILED = """
import atexit, json, runpy, sys, threading
root, output, program, *arguments = sys.argv[1:]
inside, seen = root + '/tvdp_tf/', set()
def note(frame, event, argument):
  code = frame.f_code
  if event == 'call' and code.co_filename.startswith(inside):
    if not code.co_name.startswith('<'):
      seen.add((code.co_filename[len(root) + 1:], code.co_qualname))
def write():  # At exit: a program leaves without ending its interpreter.
  sys.setprofile(None)
  with open(output, 'w') as file:
    json.dump(sorted(seen), file)
atexit.register(write)
sys.path[:0] = [root + '/binaries', root]
sys.argv = [program, *arguments]
threading.setprofile(note)
sys.setprofile(note)
runpy.run_path(program, run_name='__main__')
"""


def _lines(path: pathlib.Path) -> list[str]:
  return path.read_text(encoding='utf-8').splitlines()


def _repeated(texts: Mapping[str, Sequence[str]]) -> int:
  """Counts lines in runs of `_REPEATED_LINES` that occur elsewhere, too."""
  places: dict[tuple[str, ...], list[tuple[str, list[int]]]] = {}
  for path, lines in texts.items():
    full = [(n, line.strip()) for n, line in enumerate(lines) if line.strip()]
    for i in range(len(full) - _REPEATED_LINES + 1):
      window = full[i : i + _REPEATED_LINES]
      key = tuple(line for _, line in window)
      if not all(line.startswith(('import ', 'from ')) for line in key):
        places.setdefault(key, []).append((path, [n for n, _ in window]))
  return len(
    {
      (path, number)
      for found in places.values()
      if len(found) > 1
      for path, numbers in found
      for number in numbers
    }
  )


def _knows_a_mechanism(path: pathlib.Path) -> bool:
  """Whether the code of a file contains the name of a mechanism."""
  tree = ast.parse(path.read_text(encoding='utf-8'))
  return any(
    isinstance(node, ast.Constant) and node.value in _MECHANISMS
    for node in ast.walk(tree)
    if isinstance(getattr(node, 'value', None), str)
  )


def _passed(root: pathlib.Path) -> list[list[str]]:
  """Returns [file, function] of the package that a training run executes."""
  with tempfile.TemporaryDirectory() as folder:
    output = os.path.join(folder, 'seen.json')
    done = subprocess.run(
      [
        *(sys.executable, '-c', _PROFILED, str(root), output),
        *('binaries/train.py', f'--output_dir={folder}/run'),
        *('--mechanism=gradient', f'--rounds={_ROUNDS}', '--users=4'),
        *('--users_per_round=2', '--noprogress'),
      ],
      cwd=root,
      env={**os.environ, 'PYTHONPATH': str(root)},
      capture_output=True,
      text=True,
      check=False,
    )
    if done.returncode:
      raise errors.UsageError(
        f'checkout must hold a program that trains, got {str(root)!r}: '
        f'{done.stderr.strip().splitlines()[-1:]}'
      )
    return json.loads(pathlib.Path(output).read_text())


def _room(path: str) -> str:
  """Returns a module's folder; within the package, its sub-folder."""
  parts = path.split('/')[:-1]
  if parts[0] == PACKAGE and len(parts) > 1:
    return '/'.join(parts[:2])
  return parts[0]


def _arrows(
  repository: import_graph.Repository,
) -> collections.Counter[tuple[str, str]]:
  """Counts the imports from modules of one room to those of another."""
  found: collections.Counter[tuple[str, str]] = collections.Counter()
  for module in repository.modules:
    if module.path == _DOOR:
      continue
    for other in repository.dependencies(module):
      ends = _room(module.path), _room(other.path)
      if ends[0] != ends[1] and 'tests' not in ends:
        found[ends] += 1
  return found


def measure(root: pathlib.Path) -> dict[str, Any]:
  """Returns the figures of a checkout."""
  repository = import_graph.Repository(root)
  texts = {m.path: _lines(root / m.path) for m in repository.modules}
  package = {p: t for p, t in texts.items() if p.startswith(f'{PACKAGE}/')}
  rooms: collections.Counter[str] = collections.Counter()
  for path, lines in texts.items():
    rooms[_room(path)] += len(lines)
  passed = _passed(root)
  return {
    'lines': sum(map(len, package.values())),
    'modules': len(package),
    'modules_in_a_run': len({path for path, _ in passed}),
    'functions_in_a_run': len(passed),
    'files_that_name_a_mechanism': sum(
      not path.startswith(_MECHANISMS_ROOM) and _knows_a_mechanism(root / path)
      for path in package
    ),
    'repeated_lines': _repeated(package),
    'longest_module': max(map(len, package.values())),
    'rooms': dict(sorted(rooms.items())),
    'arrows': [[*ends, n] for ends, n in sorted(_arrows(repository).items())],
  }


def _floors(arrows: Sequence[Sequence[Any]]) -> dict[str, int]:
  """Returns each room's height above all that it imports; cycles are flat."""
  below: dict[str, set[str]] = collections.defaultdict(set)
  for upper, lower, _ in arrows:
    below[upper].add(lower)

  def height(room: str, path: tuple[str, ...]) -> int:
    return max(
      (1 + height(b, (*path, room)) for b in below[room] if b not in path),
      default=0,
    )

  return {room: height(room, ()) for room in {*below, *(a[1] for a in arrows)}}


def draw(figures: Mapping[str, Any], path: pathlib.Path) -> None:
  """Draws the rooms, each above what it imports; areas show their lines."""
  rooms, arrows = figures['rooms'], figures['arrows']
  floors = _floors(arrows)
  by_floor: dict[int, list[str]] = collections.defaultdict(list)
  for room, floor in sorted(floors.items()):
    by_floor[floor].append(room)
  places = {
    room: ((i + 0.5) / len(names) + 0.04 * (-1) ** floor, floor)
    for floor, names in by_floor.items()
    for i, room in enumerate(names)
  }
  figure, axis = plots.plt.subplots(figsize=(9, 1 + 1.1 * len(by_floor)))
  for upper, lower, count in arrows:
    axis.annotate(
      '',
      places[lower],
      places[upper],
      arrowprops={
        'arrowstyle': '->',
        'color': 'C0' if floors[upper] > floors[lower] else 'C3',
        'alpha': 0.5,
        'linewidth': min(0.4 + count / 12, 4),
        'shrinkA': 12,
        'shrinkB': 14,
      },
    )
  for room, (x, y) in places.items():
    axis.scatter(x, y, rooms[room] / 4, marker='s', color='0.85', zorder=2)
    name = room.removeprefix(f'{PACKAGE}/')
    axis.text(
      *(x, y, f'{name}\n{rooms[room]:,}'),
      ha='center',
      va='center',
      fontsize=8,
      zorder=3,
    )
  axis.set_xlim(-0.02, 1.05)
  axis.set_ylim(-0.6, max(by_floor) + 0.6)
  axis.axis('off')
  plots.save_figure(figure, path)


_WORDS = {
  'lines': f'lines of {PACKAGE}/',
  'modules': f'modules of {PACKAGE}/',
  'longest_module': 'lines of the longest module',
  'modules_in_a_run': f'modules that a training of {_ROUNDS} rounds passes',
  'functions_in_a_run': 'functions that it calls, without nested ones',
  'files_that_name_a_mechanism': (
    'files outside of mechanisms/ with the name "gradient" or "laplace"'
  ),
  'repeated_lines': (
    f'lines that stand twice, {_REPEATED_LINES} or more in a row, without '
    'imports'
  ),
}


def report(folder: pathlib.Path) -> str:
  """Returns the table of all figures in a folder, in Markdown."""
  columns = {
    path.stem: json.loads(path.read_text())
    for path in sorted(folder.glob('*.json'), reverse=True)
  }
  table = layout.markdown_table(
    ['', *columns],
    (
      [words, *(f'{figures[key]:,}' for figures in columns.values())]
      for key, words in _WORDS.items()
    ),
  )
  pictures = '\n\n'.join(
    f'## {name}\n\n![Packages]({name}.png)' for name in columns
  )
  return (
    '# Structure\n\nPackages are drawn above what they import, their area '
    'shows their lines. A red\narrow is part of a circle.\n\n```\npython -m '
    f'tools.structure\n```\n\n{table}\n\n{pictures}\n'
  )


def main() -> None:
  """Measures a checkout, and writes figures, picture and table."""
  root = pathlib.Path(_CHECKOUT.value).resolve()
  if not (root / 'binaries' / 'train.py').is_file():
    raise errors.UsageError(
      f'checkout must be a checkout of the project, got {_CHECKOUT.value!r}'
    )
  folder = pathlib.Path(_STRUCTURE_DIR.value)
  folder.mkdir(parents=True, exist_ok=True)
  figures = measure(root)
  files.write_json(folder / f'{_COLUMN.value}.json', figures)
  draw(figures, folder / f'{_COLUMN.value}.png')
  files.write_text(folder / 'README.md', report(folder))
  print(report(folder))


if __name__ == '__main__':
  program.run(main)
