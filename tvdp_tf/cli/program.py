"""Start and end of a program: flags, signals, errors and exit codes.

Exit codes: 0 on success, 1 if a run failed, 2, before any work, for wrong
flags. An error that the user can fix is one line on the standard error. If the
reader of the output goes away, as `head` does, the program ends silently with
1. Ctrl-C and SIGTERM end it with 1 and one line.

The log is absl's, on the standard error: warnings of this project, and errors
of any library. `--verbosity=0` adds a line per round, `--verbosity=1` all
messages of the libraries.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import logging as standard_logging
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from absl import app, flags, logging

from tvdp_tf import _environment, errors

# Of a signal.
_Handler = Callable[[int, FrameType | None], object]

# What a disk has that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# What a file, or a folder on the way to it, has that is somebody else's.
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_HELP_FLAGS = frozenset({'help', 'helpfull', 'helpshort', 'helpxml', '?', 'h'})


def _line(message: str) -> str:
  program = os.path.basename(sys.argv[0])
  return f'{program}: error: {" ".join(message.split())}'


def _exit(code: int, message: str) -> NoReturn:
  # Once more Ctrl-C must not disturb the end.
  for signal_number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signal_number, signal.SIG_IGN)
  print(_line(message), file=sys.stderr)
  sys.exit(code)


# When SIGTERM came.
_terminated_at: list[float] = []
# If it comes again as much later, the program ends at once. Some send it twice.
_PATIENCE_S = 3.0


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
  """Has SIGTERM do what Ctrl-C does, to which asyncio listens, too."""
  _terminated_at.append(time.monotonic())
  # The first waits for what is being computed.
  if _terminated_at[-1] - _terminated_at[0] > _PATIENCE_S:
    _quit(signal_number, frame)
  if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # In the background.
    raise KeyboardInterrupt
  signal.raise_signal(signal.SIGINT)


def _again(unraisable: Any) -> None:
  """Repeats an interrupt that came where Python raises nothing.

  In a destructor or a callback of the garbage collector, as JAX has one, it
  would be shown and lost.
  """
  if not isinstance(unraisable.exc_value, KeyboardInterrupt):
    sys.__unraisablehook__(unraisable)
    return
  _terminated_at.clear()
  timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
  timer.daemon = True
  timer.start()


def _quit(signal_number: int, frame: FrameType | None) -> NoReturn:
  """Ends at once, where nothing has begun."""
  del signal_number, frame
  # Not by sys.stderr, in the midst of whose writing this may be.
  with contextlib.suppress(OSError):
    os.write(2, f'{_line("interrupted")}\n'.encode())
  os._exit(1)


def _handle(on_interrupt: _Handler, on_terminate: _Handler) -> None:
  """Sets what Ctrl-C and SIGTERM do; Ctrl-C may be ignored by the shell."""
  if threading.current_thread() is not threading.main_thread():
    return
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, on_interrupt)
  signal.signal(signal.SIGTERM, on_terminate)


def end_at_once() -> None:
  """Has Ctrl-C and SIGTERM end the process in one line, until `run`."""
  _handle(_quit, _quit)


@contextlib.contextmanager
def importing() -> Iterator[None]:
  """Within it Ctrl-C and SIGTERM end the process in one line.

  For imports that take seconds: some libraries take an interrupt of their own
  imports for a missing module, go on, and fail in many lines. The collector of
  garbage, which finds nothing then, rests: it took a quarter of that time, and
  what is imported it need not look at later.
  """
  end_at_once()
  gc.disable()
  try:
    # Where it comes before TensorFlow, it imports its parts as they are used:
    # TFF, which imports it, uses none.
    with contextlib.suppress(ImportError):
      importlib.import_module('tensorflow_probability')
    yield
  finally:
    gc.freeze()
    gc.enable()
    _handle(signal.default_int_handler, _interrupt)


def _explain(error: flags.Error) -> str:
  """Says which value a flag was given and what it allows."""
  if isinstance(error, flags.CantOpenFlagFileError):
    reason, _, path = str(error).partition('] ')[2].partition(': ')
    return f'--flagfile must be a file of flags, got {path}: {reason}'
  match = re.match(r'flag --(\w+)=(.*?): ', str(error), re.DOTALL)
  if isinstance(error, flags.IllegalFlagValueError) and match:
    name, value = match.groups()
    flag = flags.FLAGS[name]
    choices = getattr(flag.parser, 'enum_values', None)
    allowed = (
      f'one of {", ".join(choices)}' if choices else flag.parser.syntactic_help
    )
    if allowed:
      return f'--{name} must be {allowed}, got {value!r}'
  return str(error)


def _import_own(names: Sequence[str]) -> None:
  """Imports modules of the user's, of the current folder or installed.

  The mechanisms that they define are known by their names from then on.
  """
  from tvdp_tf import mechanisms  # noqa: PLC0415

  sys.path.insert(1, os.getcwd())
  for name in names:
    try:
      mechanisms.register_module(importlib.import_module(name))
    except Exception as error:  # Of any kind: it is the module's own code.
      _exit(
        2,
        '--import must name Python modules that can be imported, got '
        f'{name!r}: {type(error).__name__}: {error}',
      )


def _parse(argv: Sequence[str]) -> None:
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as error:
    _exit(2, _explain(error))
  except UnicodeDecodeError:
    _exit(2, '--flagfile must be a text file, a flag a line')
  except SystemExit:
    # absl ends a request for help with 1.
    asked = {argument.lstrip('-').split('=')[0] for argument in argv[1:]}
    sys.exit(0 if asked & _HELP_FLAGS else 1)
  if rest[1:]:
    _exit(2, f'expected only flags, got {rest[1]!r}')
  for name in flags.FLAGS:
    # As of a variable of the shell that is not set.
    if flags.FLAGS[name].present and flags.FLAGS[name].value in ('', []):
      _exit(2, f'--{name} must not be empty')


def _is_wanted(record: standard_logging.LogRecord) -> bool:
  """Whether a line of the log is for the user's screen."""
  # TensorFlow's logger may name its caller's caller.
  ours = record.name == 'absl' and record.pathname.startswith(
    os.path.dirname(errors.__file__)
  )
  return (
    ours
    or record.levelno >= standard_logging.ERROR
    or logging.get_verbosity() >= logging.DEBUG
  )


def _execute(main: Callable[[], None]) -> NoReturn:
  _parse(sys.argv)
  if flags.FLAGS['import'].value:
    with importing():
      _import_own(flags.FLAGS['import'].value)
  try:
    main()
  except errors.UsageError as error:
    # An error of a setting begins with its name.
    named = str(error).partition(' ')[0] in flags.FLAGS
    _exit(2, f'--{error}' if named else str(error))
  except errors.TvdpError as error:
    _exit(1, str(error))
  except ModuleNotFoundError as error:
    if error.name != 'tensorflow_federated':
      raise
    _exit(
      1,
      'TensorFlow Federated is not installed: it is in requirements.lock, for'
      ' Python 3.11; what works without it is in docs/KERAS3.md',
    )
  sys.exit(0)


def _drop(descriptors: Iterable[int]) -> None:
  """Drops what is still to be written: Python flushes once more at its end."""
  with open(os.devnull, 'w', encoding='utf-8') as devnull:
    for descriptor in descriptors:
      os.dup2(devnull.fileno(), descriptor)


def _end_unheard() -> None:
  """Exits if nobody reads what this program prints.

  A pipe to another process may be broken as well: that is none of the user's.
  """
  streams = [stream for stream in (sys.stdout, sys.stderr) if stream]
  poll = select.poll()
  for stream in streams:
    poll.register(stream, 0)
  broken = {where for where, event in poll.poll(0) if event & select.POLLERR}
  if broken:
    _drop(broken)
    sys.exit(1)


def _end_unwritten() -> None:
  """Exits if what this program prints cannot be written, to a full disk."""
  if not sys.stdout:
    return
  try:
    print(flush=True)
  except OSError as error:
    _drop([sys.stdout.fileno()])
    _exit(1, f'the standard output cannot be written: {error.strerror}')


def _is_alone() -> bool:
  """Whether Python was started for this program, and ends with it."""
  return sys.argv[0] in sys.orig_argv


def _leave(code: int) -> NoReturn:
  """Ends a program that has nothing left to do.

  In the way of Python's own end, up to where it takes the modules of TensorFlow
  apart: a fifth of a second.
  """
  threading._shutdown()  # type: ignore[attr-defined]
  atexit._run_exitfuncs()
  for stream in (sys.stdout, sys.stderr):
    if stream:
      stream.flush()
  os._exit(code)


def _open_closed_streams() -> None:
  """Opens the null device for every standard stream that is closed.

  Otherwise the next file to be opened, such as a ledger, would take the
  stream's number, and what a library writes to the stream would end up in it.
  """
  for descriptor in range(3):
    try:
      os.fstat(descriptor)
    except OSError:
      # It takes the lowest number that is free: this one.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
  for name, descriptor in (('stdout', 1), ('stderr', 2)):
    if getattr(sys, name) is None:
      setattr(sys, name, os.fdopen(descriptor, 'w', encoding='utf-8'))


def run(main: Callable[[], None]) -> NoReturn:
  """Parses the flags, runs `main` and exits.

  In place of `absl.app.run`: TensorFlow must not be imported for the first time
  inside of that (a callback then sets up its context before TensorFlow 2's
  behaviour is switched on), and programs import it late, after their flags.
  """
  _open_closed_streams()
  _handle(signal.default_int_handler, _interrupt)
  sys.unraisablehook = _again
  _environment.set_defaults()  # Inherited by workers.
  app.define_help_flags()
  flags.DEFINE_list(
    'import',
    [],
    'Python modules to import first, with your own mechanisms or the classes'
    ' of a --model=keras:PATH.',
  )
  flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS['import'])
  logging.use_absl_handler()
  logging.get_absl_handler().addFilter(_is_wanted)
  # absl's flags let the user ask for more.
  logging.set_verbosity(logging.WARNING)
  try:
    try:
      _execute(main)
    except SystemExit as end:
      if sys.stdout:
        sys.stdout.flush()  # Here, where its failure can be told.
      if (
        isinstance(end.code, int)
        and 'tensorflow' in sys.modules
        and _is_alone()
      ):
        _leave(end.code)
      raise
  except KeyboardInterrupt as error:
    _exit(1, str(error) or 'interrupted')
  except BrokenPipeError:
    _end_unheard()
    raise
  except OSError as error:
    if error.errno in _FULL:
      _end_unwritten()
    elif error.errno not in _CLOSED:
      raise
    file = os.fspath(error.filename or 'a file')
    _exit(1, f'{file} cannot be used: {error.strerror}')
