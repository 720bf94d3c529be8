"""What cannot be written, as one clear line."""

import contextlib
import os
from collections.abc import Iterator

import tensorflow as tf

from tvdp_tf import errors


class NotWrittenError(errors.TvdpError):
  """A file cannot be written; what was there before still is."""


@contextlib.contextmanager
def one_line(path: str | os.PathLike[str]) -> Iterator[None]:
  """Turns the errors of a block that only writes to `path` into one line.

  Raises:
    NotWrittenError: If the block could not write.
  """
  try:
    yield
  except (OSError, tf.errors.OpError) as error:
    if isinstance(error, OSError):
      reason = error.strerror or str(error)
    else:
      # What TensorFlow says is: path of a temporary file; reason [operation].
      reason = error.message.rpartition('; ')[2].partition(' [Op:')[0]
    raise NotWrittenError(
      f'{os.fspath(path)} cannot be written: {reason}; nothing is lost, '
      '--resume goes on from there'
    ) from error
