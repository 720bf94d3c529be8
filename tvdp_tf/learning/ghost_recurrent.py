"""Ghost clipping of recurrent layers.

A step multiplies its input and the state before it by a kernel each. What it
adds the two products up to is watched; its delta is that of both.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tvdp_tf.learning import ghost_kind

_layers = tf.keras.layers


class _Recurrent(ghost_kind.GhostLayer):
  """A layer of Keras's that goes through a sequence, step by step.

  Its loop is Keras's, its step is here: what the inputs' kernel gives is
  computed, and watched, for all steps at once.
  """

  ops = frozenset(
    (
      *('Fill', 'Less', 'ReverseV2', 'Split', 'SplitV', 'StatelessWhile'),
      *('TensorListFromTensor', 'TensorListGetItem', 'TensorListReserve'),
      *('TensorListSetItem', 'TensorListStack', 'Tile', 'Unpack', 'ZerosLike'),
    )
  )
  _KIND: ClassVar[Any]
  _STATES: ClassVar[int] = 1

  @classmethod
  def takes(cls, layer):
    return (
      type(layer) is cls._KIND
      and not (layer.stateful or layer.return_state or layer.time_major)
      and not (layer.cell.dropout or layer.cell.recurrent_dropout)
    )

  @abc.abstractmethod
  def _inputs_part(self, inputs: tf.Tensor) -> tf.Tensor:
    """What is computed from inputs [rows, steps, ...] alone."""

  @abc.abstractmethod
  def _step(
    self, part: tf.Tensor, states: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """A step: of what `_inputs_part` gave of it, [rows, ...].

    Returns:
      What is kept of the step, and the states, the output first.
    """

  @property
  def _recurrent_kernel(self) -> tf.Tensor:
    # The tape would take its gradient, of all examples together.
    return tf.stop_gradient(self.layer.cell.recurrent_kernel)

  def replacements(self, seen, watch):
    layer = self.layer

    def call(inputs, *, mask=None, training=None):
      del training  # Nothing is dropped.
      if layer.go_backwards:
        inputs = tf.reverse(inputs, axis=[1])
        mask = None if mask is None else tf.reverse(mask, axis=[1])
      part = self._inputs_part(inputs)
      watch(part)

      def step(part, states):
        kept, states = self._step(part, states)
        return [states[0], *kept], states

      start = tf.zeros([tf.shape(inputs)[0], layer.units], part.dtype)
      last, outputs, _ = tf.keras.backend.rnn(
        step,
        part,
        [start] * self._STATES,
        mask=mask,
        zero_output_for_mask=layer.zero_output_for_mask,
      )
      seen.kept.extend([inputs, *outputs[1:]])
      seen.watched.append(part)
      return outputs[0] if layer.return_sequences else last[0]

    return {'call': call}

  def gradients(self, seen, deltas, num_views):
    inputs, before, *_ = seen.kept
    (delta,) = deltas
    found = [
      ghost_kind.products(inputs, delta, num_views),
      ghost_kind.products(before, delta, num_views),
    ]
    if self.layer.use_bias:
      found.append(ghost_kind.sums(delta, num_views))
    return found


class SimpleRecurrent(_Recurrent):
  """Keras's plain recurrent layer: h' = f(W x + U h + b)."""

  _KIND = _layers.SimpleRNN

  def _inputs_part(self, inputs):
    part = tf.matmul(inputs, self.layer.cell.kernel)
    return part + self.layer.cell.bias if self.layer.use_bias else part

  def _step(self, part, states):
    (before,) = states
    after = self.layer.activation(
      part + tf.matmul(before, self._recurrent_kernel)
    )
    return [before], [after]


class LongShortTerm(_Recurrent):
  """Keras's long short-term memory."""

  _KIND = _layers.LSTM
  _STATES = 2
  _inputs_part = SimpleRecurrent._inputs_part

  def _step(self, part, states):
    before, carry = states
    layer = self.layer
    of_gates = part + tf.matmul(before, self._recurrent_kernel)
    taken, left, new, shown = tf.split(of_gates, 4, axis=1)
    carry = layer.recurrent_activation(left) * carry
    carry += layer.recurrent_activation(taken) * layer.activation(new)
    after = layer.recurrent_activation(shown) * layer.activation(carry)
    return [before], [after, carry]


class GatedRecurrent(_Recurrent):
  """Keras's gated recurrent unit, which resets after the product."""

  _KIND = _layers.GRU

  @classmethod
  def takes(cls, layer):
    return super().takes(layer) and layer.reset_after

  def _inputs_part(self, inputs):
    cell = self.layer.cell
    part = tf.matmul(inputs, cell.kernel)
    return part + cell.bias[0] if cell.use_bias else part

  def _step(self, part, states):
    (before,) = states
    layer, cell = self.layer, self.layer.cell
    inner = tf.matmul(before, self._recurrent_kernel)
    if cell.use_bias:
      inner += tf.stop_gradient(cell.bias)[1]
    of_inputs, of_state = (tf.split(one, 3, axis=1) for one in (part, inner))
    update = layer.recurrent_activation(of_inputs[0] + of_state[0])
    reset = layer.recurrent_activation(of_inputs[1] + of_state[1])
    new = layer.activation(of_inputs[2] + reset * of_state[2])
    after = update * before + (1 - update) * new
    return [before, reset], [after]

  def gradients(self, seen, deltas, num_views):
    inputs, before, reset = seen.kept
    (delta,) = deltas
    update, of_reset, new = tf.split(delta, 3, axis=-1)
    inner = tf.concat([update, of_reset, new * reset], axis=-1)
    found = [
      ghost_kind.products(inputs, delta, num_views),
      ghost_kind.products(before, inner, num_views),
    ]
    if self.layer.use_bias:
      of_both = [
        ghost_kind.sums(delta, num_views),
        ghost_kind.sums(inner, num_views),
      ]
      found.append(tf.stack(of_both, axis=1))
    return found


KINDS = SimpleRecurrent, LongShortTerm, GatedRecurrent
