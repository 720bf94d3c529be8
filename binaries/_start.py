"""Startup code of every program; each program imports it first.

Puts the checkout, whose folders the programs use, on the import path. From then
on, Ctrl-C and SIGTERM end a program with one line. TensorFlow is silent.
"""

import pathlib
import sys
from types import TracebackType

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

from tvdp_tf import _environment
from tvdp_tf.cli import program


def _explain(
  kind: type[BaseException],
  error: BaseException,
  trace: TracebackType | None,
) -> None:
  """Prints one line if a package is missing, and a traceback otherwise."""
  program_name = pathlib.Path(sys.argv[0]).name
  if isinstance(error, ModuleNotFoundError) and (
    cure := _environment.cure(program_name, error)
  ):
    print(f'{program_name}: error: {cure}', file=sys.stderr)
  else:
    sys.__excepthook__(kind, error, trace)


sys.excepthook = _explain
_environment.set_defaults()  # Before anything imports TensorFlow.
program.end_at_once()
