"""A trained model as a SavedModel that needs no code of ours."""

import os
import pathlib
import shutil
from collections.abc import Sequence

from tvdp_tf.learning import models


def save_model(
  path: pathlib.Path,
  spec: models.ModelSpec,
  input_shape: Sequence[int],
  num_classes: int,
  weights: Sequence,
) -> None:
  """Writes a SavedModel that plain Keras and TF Serving load.

  Args:
    path: The folder to create; it appears whole or not at all.
    spec: The model's spec.
    input_shape: Shape of one example.
    num_classes: Number of classes.
    weights: The trained weights, in Keras's order.
  """
  model = spec.build(input_shape, num_classes, 0)
  for variable, weight in zip(model.weights, weights, strict=True):
    variable.assign(weight)
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  model.save(temporary, save_format='tf', include_optimizer=False)
  if path.exists():
    shutil.rmtree(path)
  os.replace(temporary, path)
