"""Damaged and edited files: strategies for all that a program reads back."""

import copy
import json
import os
import pathlib
import shutil
from typing import Any

import hypothesis
from hypothesis import strategies as st

# What no writer of ours puts anywhere.
_ODD_BYTES = st.sampled_from(
  [b'\0', b'\n', b'\r', b'\xff\xfe', b'\xed\xa0\x80', b'"', b',', b'\x1b[2J']
)
_ODD_NUMBERS = [
  *('NaN', 'Infinity', '-Infinity', '1e999', '-0.0', '1_0', '\u0661'),
  *('9' * 400, '9' * 5000, '0x1', '1e-400', ''),
]
_ODD_JSON = st.sampled_from(
  [
    *('null', 'true', '{}', '[]', '""', '"\\ud800"', '"\\u001b[2J\\n"'),
    *('{"a":1,"a":2}', '"' + 'x' * 5000 + '"', '[' * 990 + ']' * 990),
    *('[' * 300 + ']' * 300, '[' * 100_000, '-1', '0', '1', '1.5'),
    *(number for number in _ODD_NUMBERS if number),
  ]
)


def quick(examples: int) -> hypothesis.settings:
  """Settings for tests that share a folder between their examples.

  The profile `new` of `conftest.py` has ten times as many.
  """
  return hypothesis.settings(
    max_examples=examples * hypothesis.settings().max_examples // 100,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
  )


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
  """Bytes flipped, cut, inserted or removed; lines moved, repeated or lost."""
  kind = draw(st.sampled_from(['flip', 'cut', 'splice', 'lines', 'any']))
  place = draw(st.integers(0, max(len(content) - 1, 0)))
  if kind == 'any':
    return draw(st.binary(max_size=30))
  if kind == 'cut':
    return content[:place]
  if kind == 'flip' and content:
    changed = bytearray(content)
    changed[place] ^= draw(st.integers(1, 255))
    return bytes(changed)
  if kind == 'lines':
    lines = content.splitlines(keepends=True)
    taken = st.lists(
      st.integers(0, max(len(lines) - 1, 0)), max_size=len(lines) + 1
    )
    return b''.join(lines[i] for i in draw(taken)) if lines else b''
  end = draw(st.integers(place, min(place + 8, len(content))))
  new = draw(_ODD_BYTES | st.binary(max_size=8))
  return content[:place] + new + content[end:]


def _places(value: Any, path: tuple = ()) -> list[tuple]:
  """Where in a JSON value there is another, itself included."""
  found = [path]
  items: Any = ()
  if isinstance(value, dict):
    items = value.items()
  elif isinstance(value, list):
    items = enumerate(value)
  for key, inner in items:
    found += _places(inner, (*path, key))
  return found


@st.composite
def edited_json(draw: st.DrawFn, value: Any) -> bytes:
  """The text of a JSON value with one part replaced, added, lost or doubled."""
  value = copy.deepcopy(value)
  mark = '@@@'
  path = draw(st.sampled_from(_places(value)))
  new = draw(_ODD_JSON)
  if not path:
    return new.encode()
  above = value
  for key in path[:-1]:
    above = above[key]
  key = path[-1]
  kind = draw(st.sampled_from(['replace', 'remove', 'add', 'double']))
  if kind == 'remove':
    del above[key]
  elif kind == 'replace' or isinstance(above, list):
    above[key] = mark
  elif kind == 'add':
    above[draw(st.text(max_size=5) | st.just('\x1b[2J\n'))] = mark
  else:
    above[mark] = mark
  text = json.dumps(value, indent=2)
  if kind == 'double':
    text = text.replace(f'"{mark}": ', f'{json.dumps(key)}: ')
  return text.replace(f'"{mark}"', new).encode()


@st.composite
def edited_csv(draw: st.DrawFn, text: str) -> bytes:
  """A CSV file with one field replaced, added or lost."""
  rows = [line.split(',') for line in text.splitlines()]
  row = draw(st.sampled_from(rows))
  column = draw(st.integers(0, len(row) - 1))
  new = draw(
    st.sampled_from([*_ODD_NUMBERS, 'x', '"', 'a"b', '9' * 140_000, '-3', ' 2'])
  )
  kind = draw(st.sampled_from(['replace', 'remove', 'add']))
  if kind == 'remove':
    del row[column]
  elif kind == 'add':
    row.insert(column, new)
  else:
    row[column] = new
  end = draw(st.sampled_from(['\n', '\r\n', '\r']))
  return ''.join(','.join(row) + end for row in rows).encode()


# What there may be where a file should be.
REPLACEMENTS = ('nothing', 'folder', 'loop', 'dangling', 'unreadable')


def replace(path: pathlib.Path, kind: str) -> None:
  """Puts one of `REPLACEMENTS` in the place of a file."""
  remove(path)
  if kind == 'folder':
    path.mkdir()
  elif kind == 'loop':
    path.symlink_to(path.name)
  elif kind == 'dangling':
    path.symlink_to('nowhere')
  elif kind == 'unreadable':
    # Root reads any file, but not this one.
    path.symlink_to('/proc/self/mem')


def remove(path: pathlib.Path) -> None:
  """Removes whatever there is."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  elif os.path.lexists(path):
    path.unlink()


def is_one_line(error: Exception) -> bool:
  """Whether an error can be shown on a terminal, and is read there."""
  text = str(error)
  return text.isprintable() and 0 < len(text) < 1000
