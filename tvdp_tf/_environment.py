"""TensorFlow's environment variables, which it reads on import, and its log."""

import contextlib
import importlib.metadata
import logging
import os
from collections.abc import Iterator

# The last TensorFlow whose oneDNN is known well enough to keep examples
# independent (`learning.onednn`).
LAST_WITH_ONEDNN = (2, 14)

_PACKAGES = ('tensorflow', 'tensorflow-cpu')


def release(version: str) -> tuple[int, ...]:
  """Returns the major and minor number of a version."""
  return tuple(int(part) for part in version.split('.')[:2])


def set_defaults() -> None:
  """Sets the variables that are not set; call it before importing TensorFlow.

  It silences the start-up log and enables oneDNN. TensorFlow's default enables
  it only on processors with instructions for neural networks; on others, a
  CNN's round takes three times as long without it. Releases after
  `LAST_WITH_ONEDNN` run without oneDNN.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for package in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      version = release(importlib.metadata.version(package))
      uses = version <= LAST_WITH_ONEDNN
      os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', str(int(uses)))


@contextlib.contextmanager
def tensorflow_logs_from(level: int) -> Iterator[None]:
  """A context in which TensorFlow logs nothing below a level of `logging`."""
  logger = logging.getLogger('tensorflow')
  before = logger.level
  logger.setLevel(max(before, level))
  try:
    yield
  finally:
    logger.setLevel(before)


# What to do if one of these is missing; the others come with TensorFlow.
_OF_PLAN = ('kymatio', 'matplotlib', 'sklearn', 'tqdm')


def cure(what: str, error: ModuleNotFoundError) -> str:
  """Returns how to install a missing package, in one line.

  Args:
    what: What needs it.
    error: The failed import.

  Returns:
    The line; empty if the module is one of this package.
  """
  missing = (error.name or '').partition('.')[0]
  if missing == 'tvdp_tf':
    return ''
  how = (
    "run pip install '.[plan]' in its source folder"
    if missing in _OF_PLAN
    else 'install requirements.lock with Python 3.11 (README.md, Installation)'
  )
  return f'{what} needs {missing}, which is not installed: {how}'
