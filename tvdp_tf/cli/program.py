"""Start and end of a program: flags, signals, errors and exit codes.

The exit code is 0 on success, 1 if a run failed, and 2 for wrong flags, before
any work. An error that the user can fix is one line on standard error. If the
reader of the output goes away, as `head` does, the program ends silently with
1. Ctrl-C and SIGTERM end it with 1 and one line.

absl's log goes to standard error: warnings of this project, and errors of any
library. `--verbosity=0` adds a line per round, `--verbosity=1` all messages of
the libraries.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import io
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

# A signal handler.
_Handler = Callable[[int, FrameType | None], object]

# Errors of a disk that accepts no more data.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Errors of a file, or a folder above it, that the user may not access.
_CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_HELP_FLAGS = frozenset({'help', 'helpfull', 'helpshort', 'helpxml', '?', 'h'})


def _line(message: str) -> str:
  program = os.path.basename(sys.argv[0])
  return f'{program}: error: {" ".join(message.split())}'


def _exit(code: int, message: str) -> NoReturn:
  # Another Ctrl-C must not disturb the exit.
  for signal_number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signal_number, signal.SIG_IGN)
  print(_line(message), file=sys.stderr)
  sys.exit(code)


# Times at which SIGTERM came.
_terminated_at: list[float] = []
# If SIGTERM comes again this much later, the program ends at once; not earlier,
# because some senders send it twice.
_PATIENCE_S = 3.0


def _interrupt(signal_number: int, frame: FrameType | None) -> None:
  """Makes SIGTERM act like Ctrl-C, which asyncio also handles."""
  _terminated_at.append(time.monotonic())
  # The first SIGTERM waits for the current computation.
  if _terminated_at[-1] - _terminated_at[0] > _PATIENCE_S:
    _quit(signal_number, frame)
  if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # In the background.
    raise KeyboardInterrupt
  signal.raise_signal(signal.SIGINT)


def _again(unraisable: Any) -> None:
  """Repeats an interrupt that came where Python cannot raise it.

  In a destructor or a garbage collector callback, such as JAX's, it would be
  printed and lost.
  """
  if not isinstance(unraisable.exc_value, KeyboardInterrupt):
    sys.__unraisablehook__(unraisable)
    return
  _terminated_at.clear()
  timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
  timer.daemon = True
  timer.start()


def _quit(signal_number: int, frame: FrameType | None) -> NoReturn:
  """Ends the process at once."""
  del signal_number, frame
  # Do not use sys.stderr: the signal may have interrupted a write to it.
  with contextlib.suppress(OSError):
    os.write(2, f'{_line("interrupted")}\n'.encode())
  os._exit(1)


def _handle(on_interrupt: _Handler, on_terminate: _Handler) -> None:
  """Sets the handlers of Ctrl-C, unless the shell ignores it, and SIGTERM."""
  if threading.current_thread() is not threading.main_thread():
    return
  if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, on_interrupt)
  signal.signal(signal.SIGTERM, on_terminate)


def end_at_once() -> None:
  """Makes Ctrl-C and SIGTERM end the process with one line, until `run`."""
  _handle(_quit, _quit)


@contextlib.contextmanager
def importing() -> Iterator[None]:
  """A context in which Ctrl-C and SIGTERM end the process with one line.

  Use it for imports that take seconds. Some libraries mistake an interrupt of
  their own imports for a missing module, go on, and fail with many lines. The
  garbage collector is disabled: it would find nothing, and took a quarter of
  the time. Nor does it need to look at imported objects later.
  """
  end_at_once()
  gc.disable()
  try:
    # If it is imported before TensorFlow, it imports its parts only when they
    # are used. TFF imports it, but uses none of them.
    with contextlib.suppress(ImportError):
      importlib.import_module('tensorflow_probability')
    yield
  finally:
    gc.freeze()
    gc.enable()
    _handle(signal.default_int_handler, _interrupt)


# The values of flags that are paths of the home folder.
_OF_HOME = re.compile(r'(keras:|files:)?~(/|$)')


def _explain(error: flags.Error) -> str:
  """Says which value a flag was given and which values it allows."""
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
  """Imports the user's modules, from the current folder or installed.

  It registers the mechanisms that they define.
  """
  from tvdp_tf import mechanisms  # noqa: PLC0415

  sys.path.insert(1, os.getcwd())
  for name in names:
    try:
      mechanisms.register_module(importlib.import_module(name))
    except Exception as error:  # The module's own code may raise anything.
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
    _exit(2, '--flagfile must be a text file, one flag per line')
  except SystemExit:
    # absl exits with 1 on a request for help.
    asked = {argument.lstrip('-').split('=')[0] for argument in argv[1:]}
    sys.exit(0 if asked & _HELP_FLAGS else 1)
  if rest[1:]:
    _exit(2, f'expected only flags, got {rest[1]!r}')
  for name in flags.FLAGS:
    # For example, from a shell variable that is not set.
    flag = flags.FLAGS[name]
    if flag.present and flag.value in ('', []):
      _exit(2, f'--{name} must not be empty')
    if isinstance(flag.value, str) and _OF_HOME.match(flag.value):
      # The shell expands no ~ after an equals sign.
      kind, tilde, rest = flag.value.partition('~')
      flag.value = kind + os.path.expanduser(tilde + rest)


def _is_wanted(record: standard_logging.LogRecord) -> bool:
  """Whether to show a line of the log to the user."""
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
    # An error about a setting begins with its name.
    named = str(error).partition(' ')[0] in flags.FLAGS
    _exit(2, f'--{error}' if named else str(error))
  except errors.TvdpError as error:
    _exit(1, str(error))
  except ModuleNotFoundError as error:
    if error.name != 'tensorflow_federated':
      raise
    _exit(
      1,
      'TensorFlow Federated is not installed: install requirements.lock with'
      ' Python 3.11; docs/KERAS3.md lists what works without it',
    )
  sys.exit(0)


def _drop(descriptors: Iterable[int]) -> None:
  """Drops unwritten output, which Python would flush again at its end."""
  with open(os.devnull, 'w', encoding='utf-8') as devnull:
    for descriptor in descriptors:
      os.dup2(devnull.fileno(), descriptor)


def _end_unheard() -> None:
  """Exits if nobody reads what this program prints.

  If another pipe is broken, such as one to a worker, it does not exit.
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
  """Exits if the output cannot be written, for example to a full disk."""
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

  It ends like Python itself, but skips the teardown of TensorFlow's modules,
  which takes a fifth of a second.
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
      # It gets the lowest free number, which is this one.
      os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
  for name, descriptor in (('stdout', 1), ('stderr', 2)):
    if getattr(sys, name) is None:
      setattr(sys, name, os.fdopen(descriptor, 'w', encoding='utf-8'))


def run(main: Callable[[], None]) -> NoReturn:
  """Parses the flags, runs `main` and exits.

  It replaces `absl.app.run`: TensorFlow must not be imported for the first time
  inside that (a callback then sets up its context before TensorFlow 2 behavior
  is enabled), and programs import it late, after parsing their flags.
  """
  _open_closed_streams()
  # A name that the terminal cannot show must not fail a run that is finished.
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='backslashreplace')
  _handle(signal.default_int_handler, _interrupt)
  sys.unraisablehook = _again
  _environment.set_defaults()  # Workers inherit them.
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
        sys.stdout.flush()  # Here a failure can still be reported.
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
