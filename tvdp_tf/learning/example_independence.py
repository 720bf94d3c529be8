"""Checks, before a process is built, that a model does not mix examples.

The sensitivity of a mean of clipped gradients assumes that each gradient
depends on one example only. This module checks a model in two ways:

* `clipped_sum` chooses how gradients are clipped. Ghost clipping accepts only
  what is on its list. All other models are computed one example at a time,
  where no example can reach another.
* A self-check compares a batch with its examples one by one: the outputs, and
  the sum of the clipped gradients. The batches are adversarial: one of their
  examples has norm 1e4 or is NaN, which any mean, maximum or product over the
  batch would reveal; examples are repeated and permuted; there are one or seven
  examples. A model whose results differ is refused, even if its gradients are
  clipped one at a time, because it would be evaluated differently from how it
  was trained.

The self-check is not a proof. The list and the loop over examples are.
"""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tvdp_tf import _environment, _validate
from tvdp_tf.learning import (
  clipping,
  failing_ops,
  functional,
  ghost_clipping,
  ghost_list,
  local_training,
  models,
  onednn,
  view_gradients,
  views,
)

# Ops that are not vectorized: what they do depends on an example's values, and
# TensorFlow's converters for them mix examples, or fail on some. All other ops
# that `failing_ops` accepts move values to places that are public or in range.
_IN_A_LOOP = (
  failing_ops.BRANCHING
  | failing_ops.LOOPS
  | frozenset(
    (
      *('Roll', 'ScatterNd', failing_ops.ANY_SEGMENT, 'TensorListGetItem'),
      *('TensorListPopBack', 'TensorListStack'),
    )
  )
)
# Relative: batches of different sizes round differently.
_TOLERANCE = 2e-3
# A maximum may resolve a tie either way, but hardly this often.
_DRAWS = 3
# Float32 overflows at 3.4e38.
_NEAR_OVERFLOW = 1e36
_HUGE_NORM = 1e4
# Above 1, none divides another; the largest exceed sizes that are often
# hard-coded.
_COUNTS = (1, 7, 8, 9, 11, 65, 257)


_LABELS = tf.TensorSpec([None], tf.int32)


def _hostile_batches(
  features_spec: tf.TensorSpec,
  num_labels: int,
  rng: np.random.Generator,
  labels_spec: tf.TensorSpec = _LABELS,
) -> list[tuple[np.ndarray, np.ndarray]]:
  """Returns batches (features [n, ...], labels [n, ...]), n = 7 and n = 1."""
  shape = [size or 3 for size in features_spec.shape[1:]]
  labels = rng.integers(
    0, num_labels, [7, *(size or 3 for size in labels_spec.shape[1:])]
  ).astype(labels_spec.dtype.as_numpy_dtype)
  if not features_spec.dtype.is_floating:
    integers = rng.integers(0, 2, [7, *shape])
    plain = integers.astype(features_spec.dtype.as_numpy_dtype)
    return [(plain, labels), (plain[:1], labels[:1])]
  plain = rng.random([7, *shape]).astype(features_spec.dtype.as_numpy_dtype)
  huge, broken = plain.copy(), plain.copy()
  huge[2] *= _HUGE_NORM / max(float(np.linalg.norm(huge[2])), 1e-6)
  # Small integers of either sign, like an index or a count.
  repeated = np.round(3 * rng.standard_normal(plain.shape)).astype(plain.dtype)
  repeated[1:4] = repeated[0]
  broken[5] = np.nan
  order = rng.permutation(7)
  return [
    (plain, labels),
    (huge, labels),
    (huge[order], labels[order]),
    (repeated, labels),
    (broken, labels),
    (plain[:1], labels[:1]),
    (huge[2:3], labels[2:3]),
  ]


def _perturbed(
  weights: Sequence[np.ndarray], rng: np.random.Generator
) -> list[tf.Tensor]:
  """Perturbs weights: zeros would hide what a model does with its inputs."""
  return [
    tf.constant(w + 0.05 * rng.standard_normal(w.shape), dtype=w.dtype)
    for w in weights
  ]


def _same(one: np.ndarray, other: np.ndarray, scale: float) -> bool:
  """Whether two arrays are equal up to rounding."""
  finite = np.isfinite(one)
  if (finite != np.isfinite(other)).any():
    return False
  gaps = np.abs(np.where(finite, one, 0) - np.where(finite, other, 0))
  return bool(np.all(gaps <= _TOLERANCE * scale))


def _without_overflow(values: np.ndarray) -> np.ndarray:
  """Replaces by NaN what another order of summation could make infinite.

  On some processors, the maximum of NaNs is the lowest finite number, and a sum
  of such numbers may or may not overflow.
  """
  return np.where(np.abs(values) < _NEAR_OVERFLOW, values, np.nan)


def _same_outputs(
  predict: Callable[..., tf.Tensor],
  weights: Sequence[tf.Tensor],
  features: np.ndarray,
) -> bool:
  together = np.asarray(predict(weights, features), np.float64)
  for i in range(len(features)):
    alone = np.asarray(predict(weights, features[i : i + 1]), np.float64)
    if together.shape[1:] != alone.shape[1:] or len(alone) != 1:
      return False
    one, other = together[i], alone[0]
    if not np.isfinite(features[i]).all():
      one, other = map(_without_overflow, (one, other))
    sizes = np.abs(other[np.isfinite(other)])
    if not _same(one, other, float(sizes.max(initial=0.01))):
      return False
  return len(together) == len(features)


class _RefusedError(ValueError):
  """Raised when a self-check refuses a model."""


def _check_outputs(
  predict: Callable[..., tf.Tensor],
  weights: Sequence[tf.Tensor],
  batches: Sequence[tuple[np.ndarray, np.ndarray]],
) -> None:
  once, again = (
    np.asarray(predict(weights, batches[0][0]), np.float64) for _ in range(2)
  )
  finite = np.abs(once[np.isfinite(once)])
  if not _same(once, again, float(finite.max(initial=0.01))):
    raise ValueError(
      'model must give the same outputs for the same examples where it is'
      ' evaluated (training=False), but a layer draws at random there'
    )
  for features, _ in batches:
    if not _same_outputs(predict, weights, features):
      raise _RefusedError(
        'its outputs for an example depend on the other examples of the batch'
      )


def _check_sums(
  clipped_sum: clipping.ClippedSum,
  looped: clipping.ClippedSum,
  weights: Sequence[tf.Tensor],
  batches: Sequence[tuple[np.ndarray, np.ndarray]],
  clip: float,
) -> None:
  # The loop itself is only checked for failures and non-finite sums.
  sums = [looped] if clipped_sum is looped else [clipped_sum, looped]

  @tf.function(autograph=False, reduce_retracing=True)
  def both(features, labels):
    present = tf.ones([tf.shape(labels)[0]], tf.bool)
    return [
      one(weights, features, labels, present, tf.constant(clip, tf.float64))
      for one in sums
    ]

  compare = both.get_concrete_function(
    *(tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in batches[0])
  )
  for features, labels in batches:
    found = [
      np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)
      for parts in compare(tf.constant(features), tf.constant(labels))
    ]
    together, alone = found[0], found[-1]
    if not np.isfinite(together).all():
      raise _RefusedError('the sum of its clipped gradients is not finite')
    gap = float(np.linalg.norm(together - alone))
    if gap > _TOLERANCE * clip * len(labels):
      raise _RefusedError(
        'the sum of its clipped gradients over a batch differs from the sum'
        f' over single examples by {gap / clip:.3g} clips'
      )


def _repeatedly(check: Callable[[np.random.Generator], None]) -> None:
  """Repeats a check with other random numbers until it passes.

  Raises:
    ValueError: If it never passes.
  """
  for draw in range(_DRAWS):
    try:
      check(np.random.default_rng(draw))
      return
    except _RefusedError as error:
      refused = error
    except tf.errors.OpError as error:
      raise ValueError(
        'model must accept any values of the shape of its input, because a'
        ' round that fails discloses an example to everybody, got'
        f' {type(error).__name__}: {" ".join(error.message.split())[:200]}'
      ) from error
  raise ValueError(
    'model must treat every example of a batch independently, or one of them'
    f' changes the gradients of all: {refused}'
  )


def clipped_sum(
  model: functional.FunctionalModel,
  loss: tf.keras.losses.Loss,
  example_l2_norm_clip: float,
  views_name: str = views.NONE,
) -> clipping.ClippedSum:
  """Checks a Keras model and chooses how to sum its clipped gradients.

  Args:
    model: The model.
    loss: Keras loss of (labels [n], outputs [n, ...]), averaged over n.
    example_l2_norm_clip: C_g.
    views_name: A key of `views.VIEWS`.

  Raises:
    ValueError: If the model mixes examples, fails on some, or cannot be
      differentiated; or if examples have no such views.
  """
  views.check(views_name, model.features_spec.shape[1:])
  loss = models.any_label(loss)

  def loss_fn(training: bool) -> local_training.LossFn:
    return lambda weights, features, labels: loss(
      labels, model(weights, features, training)
    )

  # Random outputs cannot be compared.
  training = not model.is_random
  num_labels = max(2, int(model.keras_model.output_shape[-1] or 2))

  def check_outputs(rng):
    batches = _hostile_batches(model.features_spec, num_labels, rng)
    weights = _perturbed(model.initial_weights, rng)
    for mode in {False, training}:
      _check_outputs(
        lambda weights, features, mode=mode: model(weights, features, mode),
        weights,
        batches,
      )

  _repeatedly(check_outputs)
  copied = ghost_list.supported_copy(model, loss)
  if copied is None:
    return example_clipped_sum(
      loss_fn(True),
      model.initial_weights,
      model.features_spec,
      num_labels,
      example_l2_norm_clip,
      loss_fn(training),
      views_name,
    )
  checked = ghost_clipping.GhostClippedSum(copied, loss, training, views_name)
  _repeatedly(
    lambda rng: _check_sums(
      checked,
      clipping.looped_clipped_sum(
        view_gradients.averaged(loss_fn(training), views_name)
      ),
      _perturbed(model.initial_weights, rng),
      _hostile_batches(model.features_spec, num_labels, rng),
      example_l2_norm_clip,
    )
  )
  if training:
    return checked
  return ghost_clipping.GhostClippedSum(copied, loss, True, views_name)


def example_clipped_sum(
  loss_fn: local_training.LossFn,
  initial_weights: Sequence[np.ndarray],
  features_spec: tf.TensorSpec,
  num_labels: int,
  example_l2_norm_clip: float,
  repeatable_loss_fn: local_training.LossFn | None = None,
  views_name: str = views.NONE,
  labels_spec: tf.TensorSpec = _LABELS,
) -> clipping.ClippedSum:
  """Like `clipped_sum`, but for any loss: one example at a time.

  It is vectorized if TensorFlow can do so with the same sum, else in a loop.

  Args:
    loss_fn: Mean loss of a model on a batch; it is called on single examples.
    initial_weights: The model's initial weights.
    features_spec: Spec of a batch of features, [None, ...].
    num_labels: Upper bound (exclusive) of the labels.
    example_l2_norm_clip: C_g.
    repeatable_loss_fn: The loss without randomness, for the comparison.
    views_name: A key of `views.VIEWS`.
    labels_spec: Spec of a batch of labels, [None, ...].

  Raises:
    ValueError: If the loss keeps a state, fails on some examples, or cannot be
      differentiated; if examples have no such views; or if oneDNN is used where
      it is not sound.
  """
  onednn.require_sound()
  views.check(views_name, features_spec.shape[1:])
  compared = view_gradients.averaged(repeatable_loss_fn or loss_fn, views_name)
  loss_fn = view_gradients.averaged(loss_fn, views_name)
  traced = _traced_gradient(
    loss_fn, initial_weights, features_spec, labels_spec
  )
  functional.checked_ops('model with its loss', traced.graph.as_graph_def())
  reached = failing_ops.check(
    'model with its loss', traced.graph, traced.graph.inputs[-2:]
  )

  def looped(*args):
    # Use the graph that was checked, unless it draws random numbers.
    if repeatable_loss_fn is None:
      return clipping.summed_one_by_one(
        lambda weights: lambda example: traced(weights, *example)
      )(*args)
    return clipping.looped_clipped_sum(compared)(*args)

  def check(clipped_sum):
    _repeatedly(
      lambda rng: _check_sums(
        clipped_sum,
        looped,
        _perturbed(initial_weights, rng),
        _hostile_batches(features_spec, num_labels, rng, labels_spec),
        example_l2_norm_clip,
      )
    )

  try:
    if reached & _IN_A_LOOP:
      raise _RefusedError('TensorFlow does not vectorize all that it does')
    # TensorFlow logs its failures at length.
    with _environment.tensorflow_logs_from(logging.CRITICAL):
      check(clipping.vectorized_clipped_sum(compared))
  except Exception:  # Any error: not every op can be vectorized.
    check(looped)
    return clipping.looped_clipped_sum(loss_fn)
  return clipping.vectorized_clipped_sum(loss_fn)


def _traced_gradient(
  loss_fn: local_training.LossFn,
  initial_weights: Sequence[np.ndarray],
  features_spec: tf.TensorSpec,
  labels_spec: tf.TensorSpec,
) -> tf.types.experimental.ConcreteFunction:
  """Traces (weights, features [...], label) -> a gradient, each part flat.

  Raises:
    ValueError: If there is no gradient, or it has a state.
  """

  @tf.function(autograph=False)
  def gradient(weights, features, label):
    return clipping.example_gradient(loss_fn, weights)((features, label))

  try:
    traced = gradient.get_concrete_function(
      [tf.TensorSpec(w.shape, w.dtype) for w in initial_weights],
      tf.TensorSpec(features_spec.shape[1:], features_spec.dtype),
      tf.TensorSpec(labels_spec.shape[1:], labels_spec.dtype),
    )
  except Exception as error:  # Any error: it is the model's own code.
    raise ValueError(
      'model must have a gradient for a single example, got '
      f'{_validate.failure(error)}'
    ) from error
  functional.check_captures('model with its loss', traced.graph)
  if traced.graph.captures:
    raise ValueError('model must use no state but its weights')
  return traced


def check_steps(
  loss_fn: local_training.LossFn,
  initial_weights: Sequence[np.ndarray],
  features_spec: tf.TensorSpec,
  labels_spec: tf.TensorSpec,
  *,
  learning_rate: float,
) -> None:
  """Checks that a user can train on any data, after any steps.

  Args:
    loss_fn: Mean loss of a model on a batch.
    initial_weights: The model's initial weights.
    features_spec: Spec of a batch of features, [None, ...].
    labels_spec: Spec of a batch of labels, [None, ...].
    learning_rate: Learning rate of the steps.

  Raises:
    ValueError: If a step cannot be computed, or can fail on a user's data. The
      weights depend on these data, too, after the first step.
  """

  @tf.function(autograph=False)
  def step(weights, features, labels):
    return local_training.gradient_step(
      *(loss_fn, weights, features, labels),
      learning_rate=learning_rate,
      l2_norm_clip=None,
    )

  try:
    traced = step.get_concrete_function(
      [tf.TensorSpec(w.shape, w.dtype) for w in initial_weights],
      features_spec,
      labels_spec,
    )
  except Exception as error:  # Any error: it is the model's own code.
    raise ValueError(
      f'model must have a gradient for a batch, got {_validate.failure(error)}'
    ) from error
  functional.checked_ops('model with its loss', traced.graph.as_graph_def())
  held = traced.graph.inputs[: len(initial_weights) + 2]
  failing_ops.check('model with its loss', traced.graph, held)
  # The number of examples that a user holds may be private as well.
  for count in _COUNTS:
    features, labels = (
      tf.zeros([count, *(size or 3 for size in spec.shape[1:])], spec.dtype)
      for spec in (features_spec, labels_spec)
    )
    try:
      traced([tf.constant(w) for w in initial_weights], features, labels)
    except tf.errors.OpError as error:
      raise ValueError(
        'model must accept any number of examples, because a round that fails'
        f" discloses a user's number to everybody, got {type(error).__name__}"
        f' with {count} of them'
      ) from error
