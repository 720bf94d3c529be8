"""What a crash may leave of files that are written through `os`.

Watches the calls that a program makes and derives, for every point in between
and for every prefix of every write, the contents that the folder may have after
the program is killed or the power is cut:

  killed     all that was written is there
  power cut  contents that were not fsynced may be lost, and so may names
             (creations, renames) whose folder was not fsynced; each alone too
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from unittest import mock

Image = frozenset[tuple[str, bytes]]


class _File:
  def __init__(self, content: bytes = b''):
    self.written = self.durable = content


class DiskModel:
  """Watches one folder; what is in it at first is durable.

  Attributes:
    promises: For every image that a crash may leave, the most that had been
      promised (`self.promised`) when it could first come about.
    promised: To be set by the test: how much must survive from now on.
  """

  def __init__(self, folder: str):
    self.folder = pathlib.Path(folder)
    self.promises: dict[Image, int] = {}
    self.promised = 0
    self._written = {
      path.name: _File(path.read_bytes()) for path in self.folder.iterdir()
    }
    self._durable = dict(self._written)
    self._open_files: dict[int, _File] = {}
    # Stands for the folder among the open files.
    self._names = _File()
    self._real = {
      name: getattr(os, name)
      for name in ('open', 'write', 'fsync', 'rename', 'replace', 'ftruncate')
    }

  @contextlib.contextmanager
  def watching(self) -> Iterator[None]:
    """Within it, calls through `os` are followed (and done)."""
    with contextlib.ExitStack() as stack:
      for name in self._real:
        watcher = getattr(self, f'_{name}')
        stack.enter_context(mock.patch.object(os, name, watcher))
      yield

  def forget(self, name: str, size: int):
    """Makes all but the first bytes of a file not durable."""
    file = self._written[name]
    file.durable = file.written[:size]

  def crash(self):
    """Notes what a crash at this point may leave."""
    for names in (self._written, self._durable):
      for kind in ('written', 'durable'):
        image = frozenset((n, getattr(f, kind)) for n, f in names.items())
        self.promises[image] = max(self.promised, self.promises.get(image, 0))

  def _open(self, path, flags, mode=0o777):
    descriptor = self._real['open'](path, flags, mode)
    if pathlib.Path(path) == self.folder:
      self._open_files[descriptor] = self._names
      return descriptor
    file = self._written.setdefault(os.path.basename(path), _File())
    if flags & os.O_TRUNC:
      file.written = b''
    self._open_files[descriptor] = file
    self.crash()
    return descriptor

  def _write(self, descriptor, data):
    file = self._open_files[descriptor]
    before, data = file.written, bytes(data)
    for length in range(1, len(data) + 1):
      file.written = before + data[:length]
      self.crash()
    return self._real['write'](descriptor, data)

  def _fsync(self, descriptor):
    self._real['fsync'](descriptor)
    file = self._open_files[descriptor]
    if file is self._names:
      self._durable = dict(self._written)
    else:
      file.durable = file.written
    self.crash()

  def _rename(self, source, target):
    self._real['rename'](source, target)
    file = self._written.pop(os.path.basename(source))
    self._written[os.path.basename(target)] = file
    self.crash()

  _replace = _rename

  def _ftruncate(self, descriptor, length):
    self._real['ftruncate'](descriptor, length)
    file = self._open_files[descriptor]
    file.written = file.written[:length]
    self.crash()


def restore(image: Image, folder: str):
  """Writes the files of an image into a folder, in place of all others."""
  for path in pathlib.Path(folder).iterdir():
    path.unlink()
  for name, content in image:
    pathlib.Path(folder, name).write_bytes(content)
