"""A trained model as files that need no code of ours.

  model/              a SavedModel, for TF Serving and `tf.saved_model.load`
  model/model.keras   the same as a Keras file, which Keras 3 loads too

The SavedModel's signature `serving_default` takes `features` and gives
`class_scores` (what the model puts out: logits, or the score of the second of
two classes) and `predicted_class`. Both carry two JSON files, the SavedModel in
`assets.extra/`, the Keras file as further members of its zip archive:

  model_spec.json   types and shapes of the signature; what features it takes
  privacy.json      the privacy statement of the training, if there is one
"""

import pathlib
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tvdp_tf.learning import evaluation, models
from tvdp_tf.learning import features as features_lib
from tvdp_tf.output import files
from tvdp_tf.training import saved_functions

SPEC = 'model_spec.json'
STATEMENT = 'privacy.json'
KERAS = 'model.keras'


def save_model(
  path: pathlib.Path,
  spec: models.ModelSpec,
  input_shape: Sequence[int],
  num_classes: int,
  weights: Sequence,
  statement: Mapping[str, Any] | None = None,
  features: str = features_lib.NONE,
) -> None:
  """Writes a SavedModel, with a Keras file in it.

  A model that Keras cannot write to its own format is written as a SavedModel
  alone, with a warning in the log. Layers of one's own need their code to load
  the Keras file; the SavedModel needs none.

  Args:
    path: The folder to create; it appears whole or not at all.
    spec: The model's spec.
    input_shape: Shape of one example.
    num_classes: Number of classes.
    weights: The trained weights, in Keras's order.
    statement: The privacy statement, ready for `json.dumps`.
    features: Of `learning.features`: what the inputs are computed with.
  """
  model = spec.build(input_shape, num_classes, 0)
  for variable, weight in zip(model.weights, weights, strict=True):
    variable.assign(weight)
  serve = _serving_function(model)
  notes = {SPEC: _model_spec(spec.name, features, serve)}
  if statement is not None:
    notes[STATEMENT] = files.json_text(statement)
  with files.replaced(path) as temporary:
    model.save(
      temporary, save_format='tf', include_optimizer=False, signatures=serve
    )
    saved_functions.renumber(temporary)
    extra = temporary / 'assets.extra'
    extra.mkdir()
    for name, text in notes.items():
      (extra / name).write_text(text, encoding='utf-8')
    _save_keras(model, temporary / KERAS, notes)
    if path.exists():
      shutil.rmtree(path)


def _serving_function(model: tf.keras.Model) -> tf.types.experimental.Callable:
  @tf.function(
    autograph=False,
    input_signature=[
      tf.TensorSpec(model.input_shape, model.inputs[0].dtype, name='features')
    ],
  )
  def serve(features):
    scores = model(features, training=False)
    return {
      'class_scores': scores,
      'predicted_class': evaluation.predicted_classes(scores, tf.int64),
    }

  return serve


def _model_spec(
  name: str, features: str, serve: tf.types.experimental.Callable
) -> str:
  def words(spec):
    return {'dtype': spec.dtype.name, 'shape': spec.shape.as_list()}

  (example,) = serve.input_signature
  outputs = serve.get_concrete_function().structured_outputs
  described = {
    'model': name,
    'features': features,
    'inputs': {example.name: words(example)},
    'outputs': {key: words(outputs[key]) for key in sorted(outputs)},
  }
  return files.json_text(described)


def _save_keras(
  model: tf.keras.Model, path: pathlib.Path, notes: Mapping[str, str]
) -> None:
  try:
    model.save(path, save_format='keras')
  except NotImplementedError as error:
    path.unlink(missing_ok=True)
    logging.warning('no Keras file is written: %s', error)
    return
  with zipfile.ZipFile(path, 'a') as archive:
    for name, text in notes.items():
      archive.writestr(name, text)
