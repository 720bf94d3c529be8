"""Contenders that need neither TensorFlow nor a peer's environment."""

import pathlib

from benchmarks.harness import contenders, work

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = work.SMOKE_WORKS['mlp-round']


def contender(form: str, library: str = 'numpy') -> contenders.Contender:
  """`numpy_program` in one of its forms."""
  return contenders.Contender(
    library,
    form,
    f'a fake, {form}',
    'tests.benchmarks.numpy_program',
  )
