r"""The mean gradient of an example's views, explicitly or as outer products.

The gradient of a dense layer's kernel is the sum over an example's views of
a_v d_v^T, where a_v is the layer's input and d_v is what `ghost_clipping` calls
delta. The views' terms may cancel, and then float32 loses more of their sum
than its norm suggests. So it is written as another sum, the same for any c:

  a_1 d_1^T + a_2 d_2^T = a_1 (d_1 + c d_2)^T + (a_2 - c a_1) d_2^T.

With c = <a_1, a_2> / |a_1|^2, the two terms are orthogonal up to rounding, and
neither is longer than their sum. Whatever the rounding of c and of the factors,
the resulting terms b_1 e_1^T + b_2 e_2^T are exactly what is added up, and the
squared norm of their sum is bounded by

  |b_1|^2 |e_1|^2 + |b_2|^2 |e_2|^2 + 2 |<b_1, b_2>| |e_1| |e_2|.

This bounds each term as well. In the proof in `clipping`, each term takes the
place of an example without views: a row that is at most as long as the clip.
"""

from collections.abc import Sequence

import tensorflow as tf

from tvdp_tf.learning import local_training, views


def _of(name: str, features: tf.Tensor) -> list[tf.Tensor]:
  """Returns the views of examples [n, ...], all of the same shape."""
  if name == views.NONE:
    return [features]
  return [features, tf.reverse(features, axis=[2])]


def rows(
  name: str, features: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns one row for each view; rows of an example are consecutive.

  Args:
    name: A key of `views.VIEWS`.
    features: [n, height, width, channels]; any [n, ...] without views.
    labels: [n].

  Returns:
    Features [n * views, ...] and labels [n * views].
  """
  found = _of(name, features)
  if len(found) == 1:
    return features, labels
  stacked = tf.reshape(tf.stack(found, axis=1), [-1, *features.shape[1:]])
  return stacked, tf.repeat(labels, len(found))


def averaged(
  loss_fn: local_training.LossFn, name: str
) -> local_training.LossFn:
  """Averages an example's loss over the example's views.

  Args:
    loss_fn: Mean loss of a model on a batch; it sees one view of an example at
      a time.
    name: A key of `views.VIEWS`.
  """
  if name == views.NONE:
    return loss_fn

  def mean_loss(weights, features, labels):
    of_views = [loss_fn(weights, view, labels) for view in _of(name, features)]
    return tf.add_n(of_views) / len(of_views)

  return mean_loss


def orthogonal_terms(
  inputs: tf.Tensor, deltas: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns factors b and e whose outer products have the same sum; see above.

  Args:
    inputs: a, float32 [n, 2, k].
    deltas: d, float32 [n, 2, m].

  Returns:
    b and e, of the same shapes. They depend only on values of the same example.
  """
  one, other = tf.unstack(inputs, axis=1)
  first, second = tf.unstack(deltas, axis=1)
  share = tf.reduce_sum(one * other, axis=1, keepdims=True) / tf.reduce_sum(
    tf.square(one), axis=1, keepdims=True
  )
  # Where squares overflow or vanish, the terms are unchanged.
  share = tf.where(tf.math.is_finite(share), share, 0)
  return (
    tf.stack([one, other - share * one], axis=1),
    tf.stack([first + share * second, second], axis=1),
  )


def _product_bounds(
  one: tf.Tensor, other: tf.Tensor, norms: tf.Tensor
) -> tf.Tensor:
  """Bounds |<b_1, b_2>| of each example from above: float64 [n].

  Args:
    one: b_1, float32 [n, k].
    other: b_2, float32 [n, k].
    norms: Upper bounds on |b_1| and |b_2|, float64 [2, n].
  """
  terms = one.shape[1]
  product = tf.cast(tf.reduce_sum(one * other, axis=1), tf.float64)
  longest = norms[0] * norms[1]
  # Each product and each addition is off by 2^-24, in any order, relative to
  # the absolute values, whose sum is at most `longest`: 1 / (1 - x) is at most
  # 2 up to x = 1 / 2, and beyond that `longest` is less. Numbers below the
  # least normal number may be flushed to zero, in a factor too.
  rounding = (terms + 4) * 2.0**-23 * longest
  vanished = terms * 2.0**-125 * (norms[0] + norms[1] + 1)
  bound = tf.minimum(tf.abs(product) + rounding + vanished, longest)
  return tf.where(tf.math.is_finite(product), bound, longest)


def squared_norms_of_sums(
  inputs: tf.Tensor, squares: Sequence[tf.Tensor]
) -> tf.Tensor:
  """Bounds the squared norm of b_1 e_1^T + b_2 e_2^T from above: float64 [n].

  It also bounds the squared norm of each term.

  Args:
    inputs: b, float32 [n, 2, k].
    squares: Upper bounds on the squared norms of b_1, b_2, e_1 and e_2, float64
      [n] each.
  """
  of_inputs, of_deltas = tf.stack(squares[:2]), tf.stack(squares[2:])
  one, other = tf.unstack(inputs, axis=1)
  product = _product_bounds(one, other, tf.sqrt(of_inputs))
  crossed = product * tf.sqrt(of_deltas[0]) * tf.sqrt(of_deltas[1])
  return tf.reduce_sum(of_inputs * of_deltas, axis=0) + 2 * crossed
