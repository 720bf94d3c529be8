"""Converts the caller's Keras model to the spec that training uses.

The caller's model is not changed. Training uses a copy without the last softmax
or sigmoid: the loss computes it, in a numerically stable form.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tvdp_tf import _validate
from tvdp_tf.learning import datasets, functional, keras_version, models

_LINEAR = tf.keras.activations.linear
# A model that ends in one of these does not output scores.
_IN_THE_LOSS = (
  *(tf.keras.activations.softmax, tf.keras.activations.sigmoid),
  *(tf.nn.softmax, tf.nn.sigmoid),
)
_ENDS = (tf.keras.layers.Dense, tf.keras.layers.Activation)
_LOSSES: dict[str, Callable[[], tf.keras.losses.Loss]] = {
  'cross_entropy': models.CrossEntropyLoss,
  'logistic': models.LogisticLoss,
  'hinge': models.HingeLoss,
}
_AT_ONCE = 1024  # Number of examples to try a model with.
_SCORES = {'cross_entropy': False, 'logistic': True, 'hinge': True}

# They normalize within an example; models that normalize a batch are refused.
_NORMALIZING = (
  tf.keras.layers.LayerNormalization,
  tf.keras.layers.GroupNormalization,
  tf.keras.layers.UnitNormalization,
)


class OwnModel:
  """A model from which similar models can be built.

  Attributes:
    input_shape: Shape of one example.
    input_dtype: NumPy dtype of the examples.
    num_classes: Number of classes that the model outputs scores for.
    num_parameters: Number of weights.
    used_parameters: Most weights that the scores of one example depend on: of
      an embedding, a row for each of its numbers.
    normalizes: Whether a layer normalizes its inputs, so that the scale of the
      weights before it does not matter.
    spec: The spec for training.
  """

  def __init__(
    self,
    model: tf.keras.Model | Callable[[], tf.keras.Model],
    input_shape: Sequence[int],
    loss: str | tf.keras.losses.Loss | None = None,
  ):
    """Inspects a model.

    Args:
      model: A Keras model with one input and outputs [n, classes], or [n, 1]
        for the second of two classes; or a function that builds one. Training
        starts from its current weights.
      input_shape: Shape of one example, used if the model does not define it.
      loss: Keras loss of (labels [n], scores [n, classes]), averaged over n, or
        cross_entropy, logistic or hinge. By default cross_entropy, and logistic
        for one output.

    Raises:
      ValueError: If it is not such a model, or cannot be copied.
    """
    if isinstance(model, tf.keras.Model):
      original, self._make = model, lambda: _copied(model)
    elif callable(model):
      original, self._make = _called(model), model
    else:
      original = model
    if not isinstance(original, tf.keras.Model):
      raise ValueError(
        'model must be a tf.keras.Model, or a function that builds one, got '
        f'{type(original).__module__}.{type(original).__qualname__}'
      )
    known = _with_input(original, input_shape)
    if len(known.inputs) != 1 or len(known.outputs) != 1:
      raise ValueError(
        f'model must have one input and one output, got {len(known.inputs)} and'
        f' {len(known.outputs)}: give several inputs as the columns of one'
        ' (docs/MODELS.md), and train a model for each output'
      )
    self._initial = original.get_weights()
    self.num_parameters = sum(weight.size for weight in self._initial)
    self.input_shape = tuple(known.input_shape[1:])
    layers = keras_version.all_layers(original)
    tables = [x for x in layers if isinstance(x, tf.keras.layers.Embedding)]
    self._looks_up = bool(tables)
    self.used_parameters = self.num_parameters
    if None not in self.input_shape:
      rows = math.prod(self.input_shape)
      self.used_parameters -= sum(
        max(0, table.input_dim - rows) * table.output_dim for table in tables
      )
    self.normalizes = any(isinstance(layer, _NORMALIZING) for layer in layers)
    self.input_dtype = np.dtype(
      tf.as_dtype(known.inputs[0].dtype).as_numpy_dtype
    )
    if self.input_dtype.kind not in 'biuf':
      raise ValueError(
        'model must have an input of numbers, got one of'
        f' {known.inputs[0].dtype}: look up words in the data, before training'
      )
    if len(known.output_shape) != 2 or not known.output_shape[1]:
      raise ValueError(
        'model must have outputs of the shape (None, classes), got '
        f'{known.output_shape}'
      )
    outputs = known.output_shape[1]
    self.num_classes = max(outputs, 2)
    _check_weights(original)
    last = layer_of_the_loss(original)
    if last is not None:
      expected = 'sigmoid' if outputs == 1 else 'softmax'
      if expected not in last.activation.__name__:
        raise ValueError(
          f'model must end in scores or a {expected}, for outputs of the shape'
          f' (None, {outputs}), got {last.activation.__name__}'
          f'{": an example has one class" if outputs > 1 else ""}'
        )
    _check_scores(self._scores(self._initial))
    found = loss_of(loss, outputs)
    _check_loss(found, outputs, self.num_classes)
    self.spec = models.ModelSpec(datasets.OWN, self._build, found)

  def with_weights(self, weights: Sequence[np.ndarray]) -> tf.keras.Model:
    """Returns a similar model with these weights, including its softmax.

    Raises:
      ValueError: If the model cannot be copied.
    """
    with functional.unfused():
      made = self._make()
      if not made.built:
        _with_input(made, self.input_shape)
    shapes = [w.shape for w in made.get_weights()]
    if shapes != [np.shape(w) for w in weights]:
      raise ValueError(
        'model must be copied with all its weights, or built identically by'
        f' each call, got weights of the shapes {shapes}'
      )
    made.set_weights(weights)
    return made

  def check_indices(self, examples: np.ndarray) -> None:
    """Checks that embeddings contain all indices in public examples.

    Training uses the nearest index instead: an error would reveal private
    values.

    Args:
      examples: [n, ...], the public test examples.

    Raises:
      ValueError: If an index is out of range.
    """
    if not self._looks_up:
      return
    model = self._scores(self._initial)

    def fails(start: int, end: int) -> bool:
      try:
        model(tf.constant(examples[start:end]))
      except tf.errors.InvalidArgumentError:
        return True
      return False

    starts = range(0, len(examples), _AT_ONCE)
    ends = [min(start + _AT_ONCE, len(examples)) for start in starts]
    failing = (pair for pair in zip(starts, ends, strict=True) if fails(*pair))
    first, end = next(failing, (0, 0))
    if not end:
      return
    while end - first > 1:
      middle = (first + end) // 2
      first, end = (first, middle) if fails(first, middle) else (middle, end)
    raise ValueError(
      'test must hold indices that the embeddings of the model have, got'
      f' another in row {first}'
    )

  def _scores(self, weights: Sequence[np.ndarray]) -> tf.keras.Model:
    """Returns the model without the activation that the loss computes."""
    made = self.with_weights(weights)
    last = layer_of_the_loss(made)
    if last is not None:
      last.activation = _LINEAR
    return _with_input(made, self.input_shape)

  def _build(
    self, input_shape: Sequence[int], num_classes: int, seed: int
  ) -> tf.keras.Model:
    del seed  # The weights are the caller's.
    if tuple(input_shape) != self.input_shape:
      raise ValueError(
        f'x must have examples of the shape {self.input_shape}, as the input of'
        f' the model, got {tuple(input_shape)}'
      )
    assert num_classes == self.num_classes
    return self._scores(self._initial)


def _called(function: Callable[[], tf.keras.Model]) -> tf.keras.Model:
  try:
    return function()
  except Exception as error:  # Any error: it is the caller's own code.
    raise ValueError(
      'model must be a function that builds one, got'
      f' {_validate.failure(error)}'
    ) from error


def _check_weights(model: tf.keras.Model) -> None:
  """Refuses weights, and losses on weights, that cannot be trained here."""
  for variable, weight in zip(model.weights, model.get_weights(), strict=False):
    if weight.dtype != np.float32:
      # The variables of a lookup table have no name.
      name = getattr(variable, 'name', type(variable).__name__)
      hint = (
        "build it in float32, Keras's default"
        if weight.dtype.kind == 'f'
        else 'a layer that was adapted to data, such as Normalization, must go:'
        ' apply it to the data before training'
      )
      raise ValueError(
        f'model must have weights in float32, got {name} in {weight.dtype}:'
        f' {hint}'
      )
    if not np.isfinite(weight).all():
      raise ValueError('model must have finite weights, got some that are not')
  if not model.trainable_weights:
    raise ValueError('model must have weights to train, got none')
  if model.losses:  # Copies may lose them.
    raise ValueError(
      'model must have no losses of its own (such as weight regularization):'
      f' leave them out, got {len(model.losses)}'
    )


def layer_of_the_loss(model: tf.keras.Model) -> tf.keras.layers.Layer | None:
  """The last layer, if its activation is one that the loss computes."""
  # In other models, the activation may not be at the end.
  if type(model).__name__ not in ('Sequential', 'Functional'):
    return None
  last = model.layers[-1]
  ends = type(last) in _ENDS and len(last._inbound_nodes) <= 1
  return last if ends and last.activation in _IN_THE_LOSS else None


def _copied(model: tf.keras.Model) -> tf.keras.Model:
  try:
    return tf.keras.models.clone_model(model)
  # Any error: it may be the model's own code.
  except Exception as error:
    raise ValueError(
      'model must be one that Keras can copy with its get_config, or a'
      f' function that builds one, got {_validate.failure(error)}'
    ) from error


def _is_functional(model: tf.keras.Model) -> bool:
  """Whether Keras built it from inputs and outputs; not for subclasses."""
  kind = type(model)
  return kind.__name__ == 'Functional' and kind.__module__.startswith('keras.')


def _with_input(
  model: tf.keras.Model, input_shape: Sequence[int]
) -> tf.keras.Model:
  """Returns the model, or one around it if its input is not known."""
  known = getattr(model, 'inputs', None)
  dtype = None
  if known:
    if len(known) != 1:
      return model
    is_single = _is_functional(model) and len(model.outputs) == 1
    if is_single and any(map(tf.nest.is_nested, (model.input, model.output))):
      # Dictionaries with one entry: drop the names.
      model = tf.keras.Model(known[0], model.outputs[0])
    sizes, dtype = tf.TensorShape(known[0].shape), known[0].dtype
    if sizes[0] is None and sizes[1:].is_fully_defined():
      return model
    # The model may have a fixed batch size, or examples of any length. Trace it
    # for batches of any size, and examples like the data.
    if not sizes[1:].is_compatible_with(input_shape):
      input_shape = sizes[1:]
    if type(model) is tf.keras.Sequential:
      inputs = tf.keras.Input(tuple(input_shape), dtype=dtype)
      return tf.keras.Sequential([inputs, *model.layers])
  inputs = tf.keras.Input(tuple(input_shape), dtype=dtype)
  try:
    if known and _is_functional(model) and not keras_version.IS_KERAS_3:
      # Reuse its layers: a nested model is not on ghost clipping's list.
      return tf.keras.models.clone_model(
        model, input_tensors=inputs, clone_function=lambda layer: layer
      )
    outputs = model(inputs)
  except Exception as error:
    raise ValueError(
      f'model must take examples of the shape {tuple(input_shape)}, got '
      f'{_validate.failure(error)}'
    ) from error
  if not known and getattr(model, 'inputs', None):
    return model  # A Sequential model that was never called.
  return tf.keras.Model(inputs, outputs)


# Scores may lie between 0 and 1 by chance, such as those of a model with one
# output that is almost constant; but not for many choices of weights in a row.
_MOST_CHOICES = 20


def _check_scores(model: tf.keras.Model) -> None:
  """Refuses models that output probabilities for made-up examples."""
  spec = model.inputs[0]
  dtype = tf.as_dtype(spec.dtype)
  if None in spec.shape[1:]:
    return
  rng, shape = np.random.default_rng(0), [16, *spec.shape[1:]]
  examples = (
    rng.normal(0, 10, shape) if dtype.is_floating else rng.integers(0, 2, shape)
  )
  weights = model.trainable_weights
  initial = [weight.numpy() for weight in weights]
  try:
    for _ in range(_MOST_CHOICES):
      try:
        with functional.any_index(model):
          outputs = np.asarray(model(tf.constant(examples, dtype)), np.float64)
      except Exception as error:
        raise ValueError(
          'model must accept any values of the shape of its input, got'
          f' {_validate.failure(error)}'
        ) from error
      if not _are_probabilities(outputs):
        return
      for weight, value in zip(weights, initial, strict=True):
        weight.assign(rng.normal(0, np.std(value) or 0.1, value.shape))
  finally:  # A function may return the caller's own model.
    for weight, value in zip(weights, initial, strict=True):
      weight.assign(value)
  raise ValueError(
    'model must end in scores, or in a softmax or sigmoid that is the'
    ' activation of its last layer, got outputs that are probabilities: remove'
    ' the last step, which the loss includes'
  )


def _are_probabilities(outputs: np.ndarray) -> bool:
  """Whether outputs [n, classes], or [n, 1], could be probabilities."""
  within = (outputs >= 0).all() and (outputs <= 1).all() and outputs.any()
  sums = outputs.sum(axis=1) if outputs.shape[1] > 1 else np.ones(len(outputs))
  return bool(within and np.allclose(sums, 1, atol=1e-3))


def loss_of(
  loss: str | tf.keras.losses.Loss | None, outputs: int
) -> tf.keras.losses.Loss:
  """Returns the loss for a model with this many outputs; see `OwnModel`.

  Raises:
    ValueError: If the loss does not fit the outputs.
  """
  if isinstance(loss, tf.keras.losses.CategoricalCrossentropy):
    raise ValueError(
      'loss must take class numbers, as SparseCategoricalCrossentropy does,'
      ' got CategoricalCrossentropy: one-hot labels become class numbers'
    )
  if isinstance(loss, tf.keras.losses.Loss):
    if loss.get_config().get('from_logits') is False:
      raise ValueError(
        'loss must take scores, got one with from_logits=False: the model is'
        ' trained without its softmax, so leave loss out or pass'
        ' from_logits=True'
      )
    return loss
  name = loss or ('logistic' if outputs == 1 else 'cross_entropy')
  if name not in tuple(_LOSSES):  # It may not be hashable.
    raise ValueError(
      f'loss must be one of {", ".join(_LOSSES)}, or a tf.keras.losses.Loss of'
      f' class numbers and scores, got {_validate.quoted(name)}'
    )
  if _SCORES[name] != (outputs == 1):
    raise ValueError(
      f'loss must be {"logistic or hinge" if outputs == 1 else "cross_entropy"}'
      f' for a model of {outputs} outputs, got {name!r}'
    )
  return _LOSSES[name]()


def _check_loss(
  loss: tf.keras.losses.Loss, outputs: int, num_classes: int
) -> None:
  """Refuses a loss that is not the mean of its values on single examples."""
  rng = np.random.default_rng(0)
  scores = tf.constant(rng.normal(size=[5, outputs]), tf.float32)
  labels = tf.constant(np.arange(5) % num_classes, tf.int32)
  try:
    together = np.asarray(loss(labels, scores))
    single = [
      np.asarray(loss(labels[i : i + 1], scores[i : i + 1])) for i in range(5)
    ]
  # Any error: it may be the caller's own code.
  except Exception as error:
    raise ValueError(
      f'loss must take labels [n], class numbers, and scores [n, {outputs}],'
      f' got {_validate.failure(error)}'
    ) from error
  if together.shape or not np.allclose(together, np.mean(single), rtol=1e-4):
    raise ValueError(
      f'loss must be the mean over labels [n] and scores [n, {outputs}], got'
      f' {" ".join(str(together).split())[:60]} for five examples whose losses'
      f' have the mean {np.mean(single):g}: labels may have to be reshaped'
    )
