"""Ghost clipping of recurrent layers.

A step multiplies its input and the previous output by one kernel each. The sum
of the two products is watched; its delta is the delta of both products.

With dropout, masks multiply input and output before the kernels do. Keras draws
new masks in every step: one for all gates, or one for each.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from tvdp_tf.learning import ghost_kind

_layers = tf.keras.layers


def _dropped(tensor: tf.Tensor, masks: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Applies masks to a tensor: returns it once, or once for each mask."""
  return [tensor * mask for mask in masks] or [tensor]


def _product(given: Sequence[tf.Tensor], kernel: tf.Tensor) -> tf.Tensor:
  """Multiplies the gates' input(s), [..., k], by [k, gates * units]."""
  if len(given) == 1:
    return tf.matmul(given[0], kernel)
  kernels = tf.split(kernel, len(given), axis=1)
  products = [tf.matmul(*pair) for pair in zip(given, kernels, strict=True)]
  return tf.concat(products, axis=-1)


def _kernel_gradients(
  given: Sequence[tf.Tensor], delta: tf.Tensor, num_views: int
) -> tf.Tensor:
  """Computes each example's gradient of the kernel of a `_product`."""
  deltas = [delta] if len(given) == 1 else tf.split(delta, len(given), axis=-1)
  found = [
    ghost_kind.products(one, of_gates, num_views)
    for one, of_gates in zip(given, deltas, strict=True)
  ]
  return found[0] if len(found) == 1 else tf.concat(found, axis=-1)


class _Recurrent(ghost_kind.GhostLayer):
  """A Keras layer that processes a sequence step by step.

  The loop is Keras's; the step is implemented here. The products with the
  inputs' kernel are computed, and watched, for all steps at once.
  """

  ops = frozenset(
    (
      *('Fill', 'Less', 'ReverseV2', 'SplitV', 'StatelessWhile'),
      *('TensorListFromTensor', 'TensorListGetItem', 'TensorListReserve'),
      *('TensorListSetItem', 'TensorListStack', 'Unpack', 'ZerosLike'),
      *('NoOp', 'OnesLike', 'While'),  # For loops that draw masks.
    )
  )
  _KIND: ClassVar[Any]
  _GATES: ClassVar[int]
  _STATES: ClassVar[int] = 1

  @classmethod
  def takes(cls, layer):
    if type(layer) is not cls._KIND:
      return False
    rates = layer.cell.dropout, layer.cell.recurrent_dropout
    return (
      not (layer.stateful or layer.return_state or layer.time_major)
      # If unrolled, all steps have the same masks.
      and not (layer.unroll and any(rates))
    )

  @abc.abstractmethod
  def _step(
    self, part: tf.Tensor, of_state: tf.Tensor, states: Sequence[tf.Tensor]
  ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Computes one step.

    Args:
      part: The input's product plus the bias, [rows, gates * units].
      of_state: The previous output's product, [rows, gates * units].
      states: The previous states, the output first, [rows, units] each.

    Returns:
      What to keep of the step, and the new states.
    """

  def _input_bias(self) -> tf.Tensor:
    return self.layer.cell.bias

  def _masks(self, rate: float, shape: tf.Tensor) -> list[tf.Tensor]:
    """Draws masks as Keras does, by inverted dropout: 0 or 1 / (1 - rate)."""
    if not rate:
      return []
    # A layer with a single gate has no `implementation`.
    for_all = getattr(self.layer.cell, 'implementation', None) != 1
    count = 1 if for_all else self._GATES
    return [tf.nn.dropout(tf.ones(shape), rate) for _ in range(count)]

  def replacements(self, seen, watch):
    layer, cell = self.layer, self.layer.cell

    def call(inputs, *, mask=None, training=None):
      rates = (cell.dropout, cell.recurrent_dropout) if training else (0, 0)
      if layer.go_backwards:
        inputs = tf.reverse(inputs, axis=[1])
        mask = None if mask is None else tf.reverse(mask, axis=[1])
      shape = tf.shape(inputs)
      inputs = _dropped(inputs, self._masks(rates[0], shape))
      part = _product(inputs, cell.kernel)
      if layer.use_bias:
        part += self._input_bias()
      watch(part)
      shape = tf.concat([shape[:2], [layer.units]], axis=0)
      state_masks = self._masks(rates[1], shape)

      def step(of_step, states):
        part, *masks = of_step
        given = _dropped(states[0], masks)
        # Backpropagation would add up its gradient over all examples.
        kernel = tf.stop_gradient(cell.recurrent_kernel)
        of_state = _product(given, kernel)
        kept, states_after = self._step(part, of_state, states)
        return [states_after[0], *given, *kept], states_after

      start = tf.zeros([shape[0], layer.units], part.dtype)
      last, (outputs, *of_steps), _ = tf.keras.backend.rnn(
        step,
        [part, *state_masks],
        [start] * self._STATES,
        mask=mask,
        zero_output_for_mask=layer.zero_output_for_mask,
      )
      count = max(len(state_masks), 1)
      seen.kept.extend([inputs, of_steps[:count], *of_steps[count:]])
      seen.watched.append(part)
      return outputs if layer.return_sequences else last[0]

    return {'call': call}

  def gradients(self, seen, deltas, num_views):
    inputs, states, *kept = seen.kept
    (delta,) = deltas
    of_state = self._state_delta(delta, *kept)
    found = [
      _kernel_gradients(inputs, delta, num_views),
      _kernel_gradients(states, of_state, num_views),
    ]
    if self.layer.use_bias:
      found.append(self._bias_gradients(delta, of_state, num_views))
    return found

  def _state_delta(self, delta: tf.Tensor, *kept: tf.Tensor) -> tf.Tensor:
    """Returns the delta of `of_state`, given that of `part`."""
    del kept
    return delta

  def _bias_gradients(
    self, delta: tf.Tensor, of_state: tf.Tensor, num_views: int
  ) -> tf.Tensor:
    del of_state
    return ghost_kind.sums(delta, num_views)


class SimpleRecurrent(_Recurrent):
  """Keras's plain recurrent layer: h' = f(W x + U h + b)."""

  _KIND = _layers.SimpleRNN
  _GATES = 1

  def _step(self, part, of_state, states):
    return [], [self.layer.activation(part + of_state)]


class LongShortTerm(_Recurrent):
  """Keras's long short-term memory."""

  _KIND = _layers.LSTM
  _GATES = 4
  _STATES = 2

  def _step(self, part, of_state, states):
    _, carry = states
    layer = self.layer
    taken, left, new, shown = tf.split(part + of_state, 4, axis=1)
    carry = layer.recurrent_activation(left) * carry
    carry += layer.recurrent_activation(taken) * layer.activation(new)
    after = layer.recurrent_activation(shown) * layer.activation(carry)
    return [], [after, carry]


class GatedRecurrent(_Recurrent):
  """Keras's gated recurrent unit, with the reset gate after the product."""

  _KIND = _layers.GRU
  _GATES = 3

  @classmethod
  def takes(cls, layer):
    return super().takes(layer) and layer.reset_after

  def _input_bias(self):
    return self.layer.cell.bias[0]

  def _step(self, part, of_state, states):
    (before,) = states
    layer = self.layer
    if layer.use_bias:
      of_state += tf.stop_gradient(layer.cell.bias)[1]
    of_inputs, of_state = (tf.split(one, 3, axis=1) for one in (part, of_state))
    update = layer.recurrent_activation(of_inputs[0] + of_state[0])
    reset = layer.recurrent_activation(of_inputs[1] + of_state[1])
    new = layer.activation(of_inputs[2] + reset * of_state[2])
    return [reset], [update * before + (1 - update) * new]

  def _state_delta(self, delta, *kept):
    update, of_reset, new = tf.split(delta, 3, axis=-1)
    (reset,) = kept
    return tf.concat([update, of_reset, new * reset], axis=-1)

  def _bias_gradients(self, delta, of_state, num_views):
    both = [ghost_kind.sums(one, num_views) for one in (delta, of_state)]
    return tf.stack(both, axis=1)


KINDS = SimpleRecurrent, LongShortTerm, GatedRecurrent
