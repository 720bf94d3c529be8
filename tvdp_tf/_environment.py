"""What TensorFlow reads from the environment when it is imported; its log."""

import contextlib
import importlib.metadata
import logging
import os
from collections.abc import Iterator

# The last TensorFlow whose oneDNN is known well enough to keep each example on
# its own (`learning.onednn`).
LAST_WITH_ONEDNN = (2, 14)

_PACKAGES = ('tensorflow', 'tensorflow-cpu')


def release(version: str) -> tuple[int, ...]:
  """A version's major and minor number."""
  return tuple(int(part) for part in version.split('.')[:2])


def set_defaults() -> None:
  """Sets what is not set; before TensorFlow is imported.

  Its start-up log is silent. It computes with oneDNN, which it does unasked
  only where a processor has instructions for neural networks: elsewhere a
  CNN's round takes three times as long without. Newer releases do without.
  """
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  for package in _PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      version = release(importlib.metadata.version(package))
      uses = version <= LAST_WITH_ONEDNN
      os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', str(int(uses)))


@contextlib.contextmanager
def tensorflow_logs_from(level: int) -> Iterator[None]:
  """Within it TensorFlow logs nothing below a level of `logging`."""
  logger = logging.getLogger('tensorflow')
  before = logger.level
  logger.setLevel(max(before, level))
  try:
    yield
  finally:
    logger.setLevel(before)
