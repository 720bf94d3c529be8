"""Checkpoints as they were before they became one file: SavedModels.

TFF's `FileProgramStateManager` wrote them. Only the variables are read, with
their checksums; the graph is never executed. None is written any more: this
module goes after a release.
"""

import io
import pathlib
import re
from typing import Any

import numpy as np
import tensorflow as tf

_VARIABLE = re.compile(r'_value/(\w+)/\.ATTRIBUTES/VARIABLE_VALUE')


def read(
  path: pathlib.Path, tensors: int
) -> tuple[Any, Any, list[Any], dict[str, np.ndarray]]:
  """What a checkpoint holds.

  Args:
    path: Its folder.
    tensors: How many the learning process's state consists of.

  Returns:
    The digest of the configuration, the number of rounds completed, the tensors
    of the state, and what else was saved.

  Raises:
    Exception: Of any kind, if it is damaged.
  """
  # Removing an old checkpoint takes this file first or later: it is whole
  # only with it.
  if not (path / 'saved_model.pb').stat().st_size:
    raise ValueError('its saved_model.pb is empty')
  reader = tf.train.load_checkpoint(str(path / 'variables' / 'variables'))
  values = {}
  for name in reader.get_variable_to_shape_map():
    value = reader.get_tensor(name)  # All: a whole file it is.
    if match := _VARIABLE.fullmatch(name):
      values[match[1]] = value
  state = [np.asarray(values[f'state_{i}']) for i in range(tensors)]
  with np.load(io.BytesIO(values['host']), allow_pickle=False) as archive:
    host = dict(archive)
  return values['digest'], values['completed'], state, host
