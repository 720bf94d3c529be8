"""The interface by which a kind of layer supports ghost clipping.

While the model runs, a `GhostLayer` replaces some of a layer's functions: it
keeps what the gradients are made of, and lets the tape watch what the layer
computes from its weights. The gradient of an example's loss with respect to
such a tensor is its delta.

An example's gradient is the sum over its places (pixels, words, time steps,
views) of the outer products of delta and what the weight is multiplied by.
"""

import abc
import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf


def is_one_of(value: object, known: Iterable[object]) -> bool:
  """Compares by identity, because a user's class may redefine equality."""
  return any(value is one for one in known)


def without_a_public_name(module: str, name: str) -> Any:
  """Returns a class of Keras 2 that has no public name."""
  return getattr(importlib.import_module(f'keras.src.{module}'), name)


class Seen(NamedTuple):
  """What a layer records when it runs, for rows [n * views, ...].

  Attributes:
    kept: What its gradients are made of, besides deltas.
    watched: What it computed from its weights.
  """

  kept: list[tf.Tensor]
  watched: list[tf.Tensor]


class GhostLayer(abc.ABC):
  """A Keras layer with weights that is called once.

  Attributes:
    layer: The layer.
    ops: Ops that Keras uses in such a layer, beyond `ghost_list.OPS`.
    holds_gradients: Whether the gradients of all examples are held in memory,
      each as large as the layer's weights.
  """

  ops: ClassVar[frozenset[str]] = frozenset()
  holds_gradients: ClassVar[bool] = True

  def __init__(self, layer: tf.keras.layers.Layer):
    self.layer = layer

  @classmethod
  @abc.abstractmethod
  def takes(cls, layer: tf.keras.layers.Layer) -> bool:
    """Whether a layer, with a known type and activation, is of this kind."""

  @abc.abstractmethod
  def replacements(
    self, seen: Seen, watch: Callable[[tf.Tensor], None]
  ) -> dict[str, Any]:
    """Returns replacements for the layer's attributes, by name.

    Args:
      seen: Where to record what the layer sees.
      watch: Lets the tape watch a tensor.
    """

  @abc.abstractmethod
  def gradients(
    self, seen: Seen, deltas: Sequence[tf.Tensor], num_views: int
  ) -> list[tf.Tensor]:
    """Computes each example's gradient of each weight, [n, ...].

    Args:
      seen: What the layer has recorded.
      deltas: The deltas of the watched tensors, of the same shapes.
      num_views: Number of consecutive rows of each example.
    """


def flat_places(tensor: tf.Tensor, num_views: int) -> tf.Tensor:
  """Reshapes rows [n * views, ..., k] to [n, places, k]."""
  places = num_views * tensor.shape[1:-1].num_elements()
  return tf.reshape(tensor, [-1, places, tensor.shape[-1]])


def over_views(rows: tf.Tensor, num_views: int) -> tf.Tensor:
  """Sums rows [n * views, ...] over each example's views: [n, ...]."""
  if num_views == 1:
    return rows
  return tf.reduce_sum(
    tf.reshape(rows, [-1, num_views, *rows.shape[1:]]), axis=1
  )


def sums(delta: tf.Tensor, num_views: int) -> tf.Tensor:
  """Sums over each example's places: [n, k]."""
  return tf.reduce_sum(flat_places(delta, num_views), axis=1)


def products(left: tf.Tensor, right: tf.Tensor, num_views: int) -> tf.Tensor:
  """Sums outer products over each example's places: [n, k, m]."""
  return tf.matmul(
    flat_places(left, num_views),
    flat_places(right, num_views),
    transpose_a=True,
  )


class BeforeActivation(GhostLayer):
  """Records its input, and watches the input of its activation."""

  def replacements(self, seen, watch):
    def call(value, *, original=self.layer.call):
      seen.kept.append(value)
      return original(value)

    def activation(value, *, original=self.layer.activation):
      watch(value)
      seen.watched.append(value)
      return original(value)

    return {'call': call, 'activation': activation}

  def gradients(self, seen, deltas, num_views):
    (inputs,), (delta,) = seen.kept, deltas
    of_kernel = self._kernel_gradients(inputs, delta, num_views)
    return [of_kernel, *self.bias_gradients(delta, num_views)]

  def bias_gradients(self, delta: tf.Tensor, num_views: int) -> list[tf.Tensor]:
    """Each example's gradient of the bias, [n, k], if there is one."""
    return [sums(delta, num_views)] if self.layer.use_bias else []

  @abc.abstractmethod
  def _kernel_gradients(
    self, inputs: tf.Tensor, delta: tf.Tensor, num_views: int
  ) -> tf.Tensor:
    """Each example's gradient of the kernel, [n, ...]."""
