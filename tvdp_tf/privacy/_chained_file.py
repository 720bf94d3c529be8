r"""A file of hash-chained lines: append-only, durable, hard to edit unnoticed.

Every line is one JSON object in canonical form (sorted keys, no spaces, ASCII,
shortest numbers that round-trip). Its last entry is the SHA-256 of the previous
line's hash and its own bytes, so no line can be edited, moved or removed
without breaking the chain. A sidecar `<file>.head` holds the number of lines
and the last hash, so no line can be cut off the end without contradicting it.

A line survives a kill and a power cut once `append` has returned:

  1. the line is written and fsynced;
  2. the new head is written beside the old one, fsynced, renamed over it, and
     the folder fsynced;
  3. `append` returns.

A crash in between leaves a file that opens: an unfinished line is dropped,
because its `append` never returned, and a complete one beyond the head is kept.

Either a file has one writer, which holds the lock while the file is open, or
any number of processes on one machine open it `shared`. Each then holds the
lock for one line at a time (`locked`), reads and verifies what the others have
appended since, and repairs what a killed process left behind.

Anyone who can write both files can rewrite history, or restore both files from
an earlier day. Only a copy of `head_hash` kept elsewhere reveals this.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvdp_tf import errors

_DOMAIN = b'tvdp_tf chained line v1\0'
_FIRST_HASH = '0' * 64
_SUFFIX = re.compile(rb',"hash":"([0-9a-f]{64})"\}')
_SUFFIX_LENGTH = len(',"hash":""}') + 64
# A line takes milliseconds. A process that holds the lock for longer is not
# writing a shared line: it has the file to itself, or it hangs.
_LOCK_SECONDS = 60.0
_HEAD = re.compile(rb'\{"count":([1-9][0-9]{0,17}),"hash":"([0-9a-f]{64})"\}\n')


class LedgerError(errors.TvdpError):
  """A ledger cannot be read or written, or refuses what is asked of it."""


@dataclasses.dataclass(frozen=True)
class Chain:
  """The contents of a file whose chain and head have been verified.

  Attributes:
    payloads: The JSON object of every complete line, without its hash.
    last_hash: Hash of the last complete line, 64 hexadecimal digits.
    head_count: Number of lines that the head vouches for; None without a head.
    size: Size of the complete lines, in bytes.
    torn: Size of an unfinished line after them, in bytes.
  """

  payloads: list[dict[str, Any]]
  last_hash: str
  head_count: int | None
  size: int
  torn: int


def _canonical(payload: Mapping[str, Any]) -> bytes:
  text = json.dumps(
    payload, sort_keys=True, separators=(',', ':'), allow_nan=False
  )
  return text.encode('ascii')


def _hash(previous: str, body: bytes) -> str:
  return hashlib.sha256(_DOMAIN + bytes.fromhex(previous) + body).hexdigest()


def chained_line(previous: str | None, payload: Mapping[str, Any]):
  """Returns the bytes of a line and its hash.

  Args:
    previous: Hash of the line before; None for the first line.
    payload: A non-empty JSON object without NaN or infinity.

  Returns:
    A tuple (line with its line feed, hash).
  """
  body = _canonical(payload)
  digest = _hash(previous or _FIRST_HASH, body)
  return body[:-1] + f',"hash":"{digest}"}}\n'.encode(), digest


def _payload(body: bytes) -> dict[str, Any]:
  try:
    payload = json.loads(body.decode('ascii'))
    # Equal bytes exclude duplicate keys, spaces, NaN and numbers that overflow.
    if isinstance(payload, dict) and _canonical(payload) == body:
      return payload
  except (ValueError, RecursionError):
    pass
  raise LedgerError('not a JSON object in canonical form')


def _verify_line(previous: str, line: bytes) -> tuple[dict[str, Any], str]:
  match = _SUFFIX.fullmatch(line[-_SUFFIX_LENGTH:])
  if match is None:
    raise LedgerError('does not end with its hash')
  body = line[:-_SUFFIX_LENGTH] + b'}'
  digest = match[1].decode()
  if _hash(previous, body) != digest:
    raise LedgerError(
      'its hash is wrong: it was edited, or a line before it was moved or'
      ' removed'
    )
  return _payload(body), digest


def _read_bytes(path: str) -> bytes | None:
  try:
    with open(path, 'rb') as file:
      return file.read()
  except FileNotFoundError:
    return None
  except OSError as error:
    raise _unusable(path, error) from error


def _unusable(path: str, error: OSError) -> LedgerError:
  return LedgerError(f'{path}: {error.strerror or error}')


def _read_head(path: str) -> tuple[int, str] | None:
  data = _read_bytes(path + '.head')
  if data is None:
    return None
  match = _HEAD.fullmatch(data)
  if match is None:
    raise LedgerError(
      f'{path}.head: must be one line with a count and a hash: it was edited'
    )
  return int(match[1]), match[2].decode()


def read(path: str | os.PathLike) -> Chain:
  """Reads and verifies a file without locking or changing it.

  Args:
    path: The file. Another process may be appending to it.

  Raises:
    LedgerError: If it is missing, empty, edited, reordered or cut short, or
      cannot be read. The message is one line and names the line in the file.
  """
  path = os.fspath(path)
  # Read the head first: the file may grow in between, but never shrinks.
  head = _read_head(path)
  data = _read_bytes(path)
  if data is None:
    raise LedgerError(f'{path}: {os.strerror(errno.ENOENT)}')
  *lines, torn = data.split(b'\n')
  payloads, digest = _verify_lines(path, lines, 0, _FIRST_HASH, head)
  if not lines:
    raise LedgerError(f'{path}: line 1: missing: the file has no complete line')
  return Chain(
    payloads=payloads,
    last_hash=digest,
    head_count=None if head is None else head[0],
    size=len(data) - len(torn),
    torn=len(torn),
  )


def _verify_lines(
  path: str,
  lines: Sequence[bytes],
  before: int,
  digest: str,
  head: tuple[int, str] | None,
) -> tuple[list[dict[str, Any]], str]:
  """Verifies the end of a file.

  Args:
    path: The file, for errors.
    lines: The complete lines at its end, without their line feeds.
    before: Number of lines before these, already verified.
    digest: Hash of the last verified line.
    head: Count and hash in the head, if there is one.

  Returns:
    The payloads of `lines`, and the hash of the last line.

  Raises:
    LedgerError: If a line is wrong, or the head contradicts them.
  """
  payloads: list[dict[str, Any]] = []
  for number, line in enumerate([None, *lines], start=before):
    if line is not None:
      try:
        payload, digest = _verify_line(digest, line)
      except LedgerError as error:
        raise LedgerError(f'{path}: line {number}: {error}') from None
      payloads.append(payload)
    if head is not None and number == head[0] and digest != head[1]:
      raise LedgerError(
        f'{path}: line {number}: its hash is not the one in {path}.head: one'
        ' of the two files was edited'
      )
  count = before + len(lines)
  if head is not None and count < head[0]:
    raise LedgerError(
      f'{path}: line {count + 1}: missing: {path}.head counts {head[0]} lines,'
      ' so the end was cut off'
    )
  return payloads, digest


def _write(descriptor: int, data: bytes):
  view = memoryview(data)
  while view:
    view = view[os.write(descriptor, view) :]


def _sync_folder(path: str):
  descriptor = os.open(os.path.dirname(path) or '.', os.O_RDONLY | os.O_CLOEXEC)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _write_head(path: str, count: int, digest: str):
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
  descriptor = os.open(path + '.head.tmp', flags, 0o644)
  try:
    _write(descriptor, b'{"count":%d,"hash":"%b"}\n' % (count, digest.encode()))
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
  os.replace(path + '.head.tmp', path + '.head')
  _sync_folder(path)


def _lock(path: str, descriptor: int):
  """Locks for one writer. `flock` also separates two opens by one process."""
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise LedgerError(
      f'{path}: is already open for writing, here or in another process'
    ) from None


def _lock_in_turn(path: str, descriptor: int):
  """Like `_lock`, but waits for others to finish their lines."""
  deadline = time.monotonic() + _LOCK_SECONDS
  while True:
    try:
      return _lock(path, descriptor)
    except LedgerError:
      if time.monotonic() > deadline:
        raise
    # A random wait, so that two processes do not stay in step.
    time.sleep(random.uniform(0.0005, 0.005))


def _unlock(descriptor: int):
  fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def _locked(path: str, opened: str, flags: int, shared: bool) -> Iterator[int]:
  """Opens and locks a file, which stays open unless there is an error.

  Args:
    path: The file's name in messages.
    opened: The file.
    flags: As for `os.open`.
    shared: Whether to wait in turn, and to unlock the file at the end.

  Raises:
    LedgerError: If the file cannot be opened, locked or used.
  """
  descriptor = -1
  try:
    descriptor = os.open(opened, flags, 0o644)
    if shared:
      _lock_in_turn(path, descriptor)
    else:
      _lock(path, descriptor)
    yield descriptor
    if shared:
      _unlock(descriptor)
  except BaseException as error:
    if descriptor >= 0:
      os.close(descriptor)
    if isinstance(error, OSError):
      raise _unusable(path, error) from error
    raise


class ChainedFile:
  """A file to append to, either alone until it is closed, or in turn.

  Made by `create` or `open`. A forked child shares the lock, and this object
  would not see what it writes, so a child cannot use it. Not thread-safe.
  """

  def __init__(
    self, path: str, descriptor: int, chain: Chain, shared: bool = False
  ):
    self._path = path
    self._descriptor = descriptor
    self._shared = shared
    self._locked = not shared
    self._hash = chain.last_hash
    self._count = len(chain.payloads)
    self._size = chain.size
    self._usable = True
    self._process = os.getpid()

  @classmethod
  def create(
    cls,
    path: str | os.PathLike,
    payload: Mapping[str, Any],
    shared: bool = False,
  ) -> 'ChainedFile':
    """Creates a file whose first line is `payload`.

    The file appears under its name complete and with its head, or not at all.
    After an interruption, creation can be tried again.

    Args:
      path: The file.
      payload: A JSON object.
      shared: Whether other processes may also append to it.

    Raises:
      LedgerError: If the file exists, or the head of one that is gone.
    """
    path = os.fspath(path)
    _refuse_existing(path)
    line, digest = chained_line(None, payload)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with _locked(path, path + '.new', flags, shared) as descriptor:
      # Check again: the previous holder of the lock may have created it.
      _refuse_existing(path)
      os.ftruncate(descriptor, 0)
      _write(descriptor, line)
      os.fsync(descriptor)
      _write_head(path, 1, digest)
      os.rename(path + '.new', path)
      _sync_folder(path)
    chain = Chain([{}], digest, 1, len(line), 0)
    return cls(path, descriptor, chain, shared)

  @classmethod
  def open(
    cls, path: str | os.PathLike, shared: bool = False
  ) -> tuple['ChainedFile', Chain]:
    """Opens a file to append to it, and repairs what a crash left behind.

    An unfinished last line is dropped; complete lines beyond the head are made
    durable and the head is updated to include them.

    Args:
      path: The file.
      shared: Whether other processes may also append to it.

    Returns:
      The file and its contents.

    Raises:
      LedgerError: As `read`; if the file has no head, so that it may have been
        cut short; or if it is already open for writing by a process that does
        not share it.
    """
    path = os.fspath(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    with _locked(path, path, flags, shared) as descriptor:
      chain = read(path)
      if chain.head_count is None:
        raise _headless(path)
      last = (len(chain.payloads), chain.last_hash)
      _mend(path, descriptor, chain.size, chain.torn, last, chain.head_count)
    return cls(path, descriptor, chain, shared), chain

  @property
  def path(self) -> str:
    return self._path

  @property
  def shared(self) -> bool:
    """Whether other processes may also append."""
    return self._shared

  @property
  def head_hash(self) -> str:
    """Hash of the last line; a copy kept elsewhere pins the whole file."""
    return self._hash

  @contextlib.contextmanager
  def locked(self) -> Iterator[list[dict[str, Any]]]:
    """A context in which nobody else appends; a shared file requires it.

    Yields:
      The payloads of the lines that others have appended since.

    Raises:
      LedgerError: If the file is closed; if the file no longer continues what
        was read before or cannot be read, after which this object is unusable;
        or if another process keeps the file locked.
    """
    if self._locked:
      yield []
      return
    self._check_usable()
    _lock_in_turn(self._path, self._descriptor)
    self._locked = True
    try:
      # Unusable until all is read, in case an interrupt comes below.
      self._usable = False
      payloads = self._read_on()
      self._usable = True
      yield payloads
    finally:
      self._locked = False
      if self._descriptor >= 0:
        _unlock(self._descriptor)

  def _read_on(self) -> list[dict[str, Any]]:
    """Verifies and adopts what others have appended, and repairs the end."""
    try:
      size = self._size_now()
      if size < self._size:
        raise LedgerError(f'{self._path}: was changed by another program')
      data = b''
      while len(data) < size - self._size:
        data += os.pread(
          self._descriptor,
          size - self._size - len(data),
          self._size + len(data),
        )
      head = _read_head(self._path)
      if head is None:
        raise _headless(self._path)
      *lines, torn = data.split(b'\n')
      payloads, digest = _verify_lines(
        self._path, lines, self._count, self._hash, head
      )
      if head[0] < self._count:
        raise LedgerError(
          f'{self._path}.head: was put back to line {head[0]} after line'
          f' {self._count} was written'
        )
      count = self._count + len(lines)
      whole = size - len(torn)
      _mend(
        self._path,
        self._descriptor,
        whole,
        len(torn),
        (count, digest),
        head[0],
      )
    except OSError as error:
      raise _unusable(self._path, error) from error
    self._hash, self._count, self._size = digest, count, whole
    return payloads

  def append(self, payload: Mapping[str, Any]):
    """Adds a line; when this returns, the line is on disk.

    A shared file must be `locked`.

    Raises:
      LedgerError: If the file is closed, was changed by another program, or
        cannot be written. Only opening the file again then shows whether it
        has the line, and this object accepts no further line.
    """
    self._check_usable()
    assert self._locked, 'a shared file must be appended to within locked()'
    line, digest = chained_line(self._hash, payload)
    # Unusable until all is done, in case an interrupt comes anywhere below.
    self._usable = False
    try:
      self._check_untouched()
      _write(self._descriptor, line)
      os.fsync(self._descriptor)
      _write_head(self._path, self._count + 1, digest)
    except OSError as error:
      raise _unusable(self._path, error) from error
    self._hash = digest
    self._count += 1
    self._size += len(line)
    self._usable = True

  def check_process(self):
    """Raises `LedgerError` in a process forked after the file was opened."""
    if os.getpid() != self._process:
      raise LedgerError(
        f'{self._path}: was opened by process {self._process} and is used in'
        f' {os.getpid()}, its child: open it in the process that uses it'
      )

  def _check_usable(self):
    self.check_process()
    if not self._usable:
      raise LedgerError(
        f'{self._path}: is closed, or could not be written to before: open it'
        ' again'
      )

  def _check_untouched(self):
    if self._size_now() != self._size:
      raise LedgerError(f'{self._path}: was changed by another program')

  def _size_now(self) -> int:
    """Size in bytes, after checking that the path still names the open file.

    Lines written to a file that was moved away would be lost.
    """
    ours, there = os.fstat(self._descriptor), os.stat(self._path)
    if not os.path.samestat(ours, there):
      raise LedgerError(f'{self._path}: was changed by another program')
    return there.st_size

  def reread(self) -> list[dict[str, Any]]:
    """Closes the file and verifies all of it again.

    Returns:
      The payload of every complete line; `head_hash` is that of the last one.

    Raises:
      LedgerError: As `read`.
    """
    self.close()
    chain = read(self._path)
    self._hash, self._count = chain.last_hash, len(chain.payloads)
    self._size = chain.size
    return chain.payloads

  def close(self):
    """Releases the lock; may be called again."""
    if self._descriptor >= 0:
      os.close(self._descriptor)
    self._descriptor = -1
    self._usable = False


def _headless(path: str) -> LedgerError:
  return LedgerError(
    f'{path}: {path}.head is missing, so lines may have been cut off the end:'
    ' nothing can be appended'
  )


def _mend(
  path: str,
  descriptor: int,
  size: int,
  torn: int,
  last: tuple[int, str],
  head_count: int,
):
  """Repairs what a crash left: drops a torn line and updates the head.

  Args:
    path: The file, locked.
    descriptor: Its open file descriptor.
    size: Size of the complete lines, in bytes.
    torn: Number of bytes after them.
    last: Number and hash of the last complete line.
    head_count: Number of lines that the head vouches for.
  """
  if torn:
    os.ftruncate(descriptor, size)
  if torn or last[0] > head_count:
    os.fsync(descriptor)
    _write_head(path, *last)


def _refuse_existing(path: str):
  if os.path.lexists(path):
    raise LedgerError(f'{path}: already exists')
  head = _read_head(path)
  if head is not None and head[0] > 1:
    raise LedgerError(
      f'{path}: is missing although {path}.head counts {head[0]} lines: a new'
      ' file would hide what was recorded'
    )
