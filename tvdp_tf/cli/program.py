"""How a program starts and ends.

Exit codes: 0; 1 for a run that failed; 2 for wrong flags, before any work. What
a user can mend is one line on the standard error. Who reads the output and goes
away, as `head` does, ends the program without a word, with 1.

The log is absl's, on the standard error: warnings of this project, and errors
of any library. `--verbosity=0` adds a line a round, `--verbosity=1` whatever
the libraries have to say.
"""

import logging as standard_logging
import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import app, flags, logging

from tvdp_tf import errors

_HELP_FLAGS = frozenset({'help', 'helpfull', 'helpshort', 'helpxml', '?', 'h'})


def _exit(code: int, message: str) -> NoReturn:
  program = os.path.basename(sys.argv[0])
  print(f'{program}: error: {" ".join(message.split())}', file=sys.stderr)
  sys.exit(code)


def _explain(error: flags.Error) -> str:
  """Says which value a flag was given and what it allows."""
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


def _parse(argv: Sequence[str]) -> None:
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as error:
    _exit(2, _explain(error))
  except SystemExit:
    # absl ends a request for help with 1.
    asked = {argument.lstrip('-').split('=')[0] for argument in argv[1:]}
    sys.exit(0 if asked & _HELP_FLAGS else 1)
  if rest[1:]:
    _exit(2, f'expected only flags, got {rest[1]!r}')


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
  try:
    main()
  except errors.UsageError as error:
    _exit(2, f'--{error}')
  except errors.TvdpError as error:
    _exit(1, str(error))
  except KeyboardInterrupt:
    _exit(1, 'interrupted')
  sys.exit(0)


def _end_unheard() -> None:
  """Exits if nobody reads what this program prints.

  A pipe to another process may be broken as well: that is none of the user's.
  """
  streams = [stream for stream in (sys.stdout, sys.stderr) if stream]
  poll = select.poll()
  for stream in streams:
    poll.register(stream, 0)
  broken = {where for where, event in poll.poll(0) if event & select.POLLERR}
  if not broken:
    return
  # Python flushes them once more at its end.
  with open(os.devnull, 'w', encoding='utf-8') as devnull:
    for descriptor in broken:
      os.dup2(devnull.fileno(), descriptor)
  sys.exit(1)


def run(main: Callable[[], None]) -> NoReturn:
  """Parses the flags, runs `main` and exits.

  In place of `absl.app.run`: TensorFlow must not be imported for the first time
  inside of that (a callback then sets up its context before TensorFlow 2's
  behaviour is switched on), and programs import it late, after their flags.
  """
  # TensorFlow's start-up log; read when it is imported, inherited by workers.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  app.define_help_flags()
  logging.use_absl_handler()
  logging.get_absl_handler().addFilter(_is_wanted)
  # absl's flags let the user ask for more.
  logging.set_verbosity(logging.WARNING)
  try:
    try:
      _execute(main)
    except SystemExit:
      if sys.stdout:
        sys.stdout.flush()  # Here, where its failure can be told.
      raise
  except BrokenPipeError:
    _end_unheard()
    raise
