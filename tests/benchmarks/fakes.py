"""Contenders that need neither TensorFlow nor a peer's environment."""

import pathlib
import sys

from benchmarks.harness import contenders, work

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = work.SMOKE_WORKS['mlp-round']
PRIVATE_WORK = work.SMOKE_WORKS['private-mlp-round']
_PROGRAM = 'tests.benchmarks.numpy_program'


def contender(form: str, library: str = 'numpy') -> contenders.Contender:
  """`numpy_program` in one of its forms."""
  return contenders.Contender(library, form, f'a fake, {form}', _PROGRAM)


class _Trainer(contenders.Contender):
  """One whose environment is this one."""

  def interpreter(self, root):
    del root
    return pathlib.Path(sys.executable)


def trainer(form: str, library: str = 'numpy') -> contenders.Contender:
  """`tests.benchmarks.training` in one of its forms."""
  return _Trainer(
    library, form, f'a fake, {form}', _PROGRAM, environment='own', trains=True
  )
