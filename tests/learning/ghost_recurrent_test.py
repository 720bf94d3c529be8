"""Ghost clipping of recurrent layers."""

import contextlib
import functools
import itertools
import unittest
from collections.abc import Callable
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import functional, ghost_clipping, keras_version

LAYERS = tf.keras.layers
SEQUENCE, WORDS = (5, 3), (6,)
UNITS = 7
# Keras builds layers with its default gates in a form for GPUs besides, which
# takes seconds.
KINDS = {
  'simple': LAYERS.SimpleRNN,
  'lstm': functools.partial(LAYERS.LSTM, recurrent_activation='tanh'),
  'gru': functools.partial(LAYERS.GRU, recurrent_activation='tanh'),
}
GATES = {'simple': 1, 'lstm': 4, 'gru': 3}


def of_numbers(*layers):
  return ghost_cases.sequential(SEQUENCE, *layers, LAYERS.Dense(3))


def of_words(*layers, mask_zero=True):
  embedding = LAYERS.Embedding(ghost_cases.VOCABULARY, 4, mask_zero=mask_zero)
  return ghost_cases.sequential(
    WORDS, embedding, *layers, LAYERS.Dense(3), dtype='int32'
  )


def masked(*layers):
  """Of numbers, of which some are left out."""
  return of_numbers(LAYERS.Masking(0.0), *layers)


MODELS: dict[str, Callable[..., tf.keras.Model]] = {
  'numbers': lambda kind: of_numbers(
    kind(4, return_sequences=True), kind(3, activation='relu', use_bias=False)
  ),
  'backwards': lambda kind: of_numbers(
    kind(UNITS, go_backwards=True, return_sequences=True), LAYERS.Flatten()
  ),
  'unrolled': lambda kind: of_numbers(kind(4, unroll=True)),
  'words': lambda kind: of_words(kind(4), mask_zero=False),
  'masked_backwards': lambda kind: of_words(
    kind(3, go_backwards=True, return_sequences=True),
    LAYERS.GlobalAveragePooling1D(),
  ),
  'masked_zeros': lambda kind: of_words(
    kind(3, return_sequences=True, zero_output_for_mask=True),
    LAYERS.GlobalMaxPool1D(),
  ),
  'both_ways': lambda kind: of_words(LAYERS.Bidirectional(kind(3))),
  'both_ways_summed': lambda kind: masked(
    LAYERS.Bidirectional(kind(3, return_sequences=True), merge_mode='sum'),
    LAYERS.GlobalMaxPool1D(),
  ),
}


@tf.keras.utils.register_keras_serializable()
def unlisted(values):
  return values


def sums_of(name, kind):
  return ghost_cases.sums_of(MODELS[name], KINDS[kind])


QUICK = 'numbers', 'both_ways_summed'


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class GhostRecurrentTest(ghost_cases.ModelTestCase):
  def arguments(self, model, clip):
    features, *others = super().arguments(model, clip)
    if not model.inputs[0].dtype.is_integer:
      features[::3, -2:] = 0  # What a layer may mask.
    return features, *others

  @parameterized.product(name=QUICK, kind=tuple(KINDS))
  def test_is_the_sum_over_the_examples(self, name, kind):
    self.check_sum(sums_of(name, kind))

  @parameterized.product(name=sorted({*MODELS} - {*QUICK}), kind=tuple(KINDS))
  def test_is_the_sum_in_other_forms(self, name, kind):
    self.check_sum(sums_of(name, kind))

  @parameterized.parameters(LAYERS.LSTM, LAYERS.GRU)
  def test_with_the_gates_of_keras(self, kind):
    self.check_sum(ghost_cases.Sums(of_words(kind(4))))

  @parameterized.parameters(*KINDS)
  def test_a_single_gradient_is_within_the_clip(self, kind):
    self.check_single(sums_of('numbers', kind))

  @parameterized.parameters(*KINDS)
  def test_an_example_is_nothing_to_the_others(self, kind):
    self.check_apart(sums_of('numbers', kind))

  @parameterized.parameters('lstm', 'gru')
  def test_nor_are_its_words(self, kind):
    values = -1, 0, ghost_cases.VOCABULARY, 2**31 - 1
    self.check_apart(sums_of('both_ways', kind), values)

  @parameterized.parameters(*KINDS)
  def test_no_gradient_is_added_up_in_the_loop(self, kind):
    """It would be that of all examples, and wasted."""
    sums = sums_of('backwards', kind)
    assert isinstance(sums._ghost, ghost_clipping.GhostClippedSum)
    graph_def = sums._ghost._sum.graph.as_graph_def()
    functions = graph_def.library.function
    nodes = [*graph_def.node, *(node for f in functions for node in f.node_def)]
    loops = [node for node in nodes if node.op in ('While', 'StatelessWhile')]
    self.assertGreaterEqual(len(loops), 2)  # There and back.
    gates = GATES[kind]
    shapes = [
      tuple(dimension.size for dimension in shape.dim)
      for loop in loops
      for shape in loop.attr['output_shapes'].list.shape
    ]
    # The kernel, which the loop there is given.
    self.assertEqual(shapes.count((UNITS, gates * UNITS)), 1)

  @parameterized.named_parameters(
    ('unrolled', lambda bad: KINDS['gru'](3, dropout=0.5, unroll=bad)),
    (
      'unrolled_outputs',
      lambda bad: KINDS['lstm'](3, recurrent_dropout=0.5, unroll=bad),
    ),
    ('reset_before', lambda bad: KINDS['gru'](3, reset_after=not bad)),
    ('time_first', lambda bad: KINDS['lstm'](3, time_major=bad)),
    ('other_cell', lambda bad: bad and LAYERS.RNN(LAYERS.LSTMCell(3))),
    (
      'activation',
      lambda bad: KINDS['lstm'](3, activation=unlisted if bad else 'tanh'),
    ),
    (
      'recurrent_activation',
      lambda bad: KINDS['gru'](
        3, recurrent_activation=unlisted if bad else 'sigmoid'
      ),
    ),
    (
      'in_both',
      lambda bad: LAYERS.Bidirectional(KINDS['gru'](3, reset_after=not bad)),
    ),
  )
  def test_takes_a_model_only_without(self, build):
    good = of_numbers(build(False) or KINDS['lstm'](3))
    self.check_only_without(of_numbers(build(True)), good)

  @parameterized.parameters(*KINDS)
  def test_takes_no_masks_of_steps_that_are_unrolled(self, kind):
    """Keras computes other outputs then than in a loop."""

    def built(unroll, mask_zero=True):
      layer = KINDS[kind](3, unroll=unroll, return_sequences=True)
      return of_words(
        LAYERS.Bidirectional(layer), LAYERS.Flatten(), mask_zero=mask_zero
      )

    for good in (built(False), built(True, mask_zero=False)):
      self.check_only_without(built(True), good)

  @parameterized.parameters('lstm', 'gru')
  def test_takes_no_first_state(self, kind):
    inputs = tf.keras.Input(SEQUENCE)
    state = LAYERS.Dense(3)(LAYERS.Flatten()(inputs))
    states = [state, state] if kind == 'lstm' else [state]
    outputs = KINDS[kind](3)(inputs, initial_state=states)
    model = tf.keras.Model(inputs, LAYERS.Dense(3)(outputs))
    self.assertFalse(ghost_cases.supported_whatever_its_ops(model))


class _Dropout:
  """Stands for TensorFlow's: the same for every row, another for each gate."""

  def __init__(self, gates):
    self._gates = itertools.cycle(range(gates))
    self.calls = []  # Shapes and rates.

  def __call__(self, values, rate, noise_shape=None, seed=None):
    assert noise_shape is None and seed is None
    self.calls.append((tuple(values.shape), rate))
    places = np.arange(values.shape[-1]) + next(self._gates)
    mask = places % int(1 / rate + 0.5) > 0
    return values * (mask / (1 - rate)).astype(np.float32)

  def of_ghost_clipping(self):
    """The calls for all steps at once; Keras makes one in its loop."""
    return [call for call in self.calls if len(call[0]) == 3]

  @contextlib.contextmanager
  def instead(self):
    with contextlib.ExitStack() as stack:
      for module in (tf.nn, tf.compat.v2.nn):
        stack.enter_context(mock.patch.object(module, 'dropout', self))
      yield


OF_INPUTS, OF_OUTPUTS = {'dropout': 0.5}, {'recurrent_dropout': 0.25}
OF_BOTH = OF_INPUTS | OF_OUTPUTS
ONE_BY_ONE = {'implementation': 1}  # Gate by gate, in Keras's words.


@unittest.skipIf(keras_version.IS_KERAS_3, 'nothing is on the list')
class DropoutTest(ghost_cases.ModelTestCase):
  def sums(self, kind, options, build='numbers', gates=None):
    """The sums of a model and their test, both with the masks of `_Dropout`."""
    dropout = _Dropout(gates or GATES[kind])
    self.enterContext(dropout.instead())
    layer = functools.partial(KINDS[kind], **options)
    return ghost_cases.Sums(MODELS[build](layer)), dropout

  @parameterized.parameters(
    ('simple', OF_BOTH),
    ('lstm', OF_BOTH),
    ('gru', OF_BOTH, 'backwards'),
    ('lstm', OF_INPUTS | ONE_BY_ONE),
  )
  def test_is_the_sum_over_the_examples(self, kind, options, build='numbers'):
    self.check_sum(self.sums(kind, options, build)[0])

  @parameterized.parameters(
    ('simple', OF_INPUTS),
    ('lstm', OF_OUTPUTS),
    ('gru', OF_OUTPUTS),
    ('gru', OF_INPUTS | ONE_BY_ONE),
    ('lstm', OF_BOTH, 'both_ways_summed'),
    ('gru', OF_BOTH, 'both_ways'),
  )
  def test_is_the_sum_in_other_forms(self, kind, options, build='numbers'):
    self.check_sum(self.sums(kind, options, build)[0])

  @parameterized.parameters('lstm', 'gru')
  def test_of_inputs_alone_is_one_for_all_gates(self, kind):
    sums, dropout = self.sums(kind, OF_INPUTS, gates=1)
    self.check_sum(sums)
    self.assertLen(dropout.of_ghost_clipping(), 2)  # Of two layers.

  def test_a_single_gradient_is_within_the_clip(self):
    self.check_single(self.sums('lstm', OF_BOTH)[0])

  def test_an_example_is_nothing_to_the_others(self):
    self.check_apart(self.sums('gru', OF_BOTH)[0])

  def test_each_step_of_a_row_has_a_mask_of_its_own(self):
    wrapped = functional.FunctionalModel(
      of_numbers(KINDS['lstm'](UNITS, **OF_BOTH))
    )
    dropout = _Dropout(4)
    with dropout.instead():
      ghost_clipping.ghost_clipped_sum(wrapped, ghost_cases.CROSS_ENTROPY)
    rows, steps, width = None, *SEQUENCE
    expected = [((rows, steps, width), 0.5)] * 4
    expected += [((rows, steps, UNITS), 0.25)] * 4
    self.assertEqual(dropout.of_ghost_clipping(), expected)

  def test_draws_anew_for_every_sum_and_row(self):
    model = of_numbers(KINDS['lstm'](UNITS, recurrent_dropout=0.5))
    sums = ghost_cases.Sums(model)
    features, labels, weights, clip = self.arguments(model, 1e6)
    features[:], labels[:] = features[0], labels[0]  # Rows alike.
    of_rows = [
      sums.ghost(features, labels, weights, clip, np.arange(30) == i % 30)
      for i in range(60)
    ]
    for i, j in itertools.combinations(range(60), 2):
      self.assertFalse(np.array_equal(of_rows[i], of_rows[j]))

  def test_drops_nothing_but_in_training(self):
    plain = of_numbers(KINDS['gru'](UNITS))
    model = of_numbers(KINDS['gru'](UNITS, **OF_BOTH))
    arguments = self.arguments(plain, 0.05)
    found = []
    for one in (plain, model):
      features, labels, weights, clip = arguments
      ghost = ghost_clipping.ghost_clipped_sum(
        functional.FunctionalModel(one), ghost_cases.CROSS_ENTROPY, False
      )
      sums = ghost(
        weights,
        tf.constant(features, tf.float32),
        tf.constant(labels, tf.int32),
        tf.ones([30], tf.bool),
        tf.constant(clip, tf.float64),
      )
      found.append(list(map(np.asarray, sums)))
    for of_plain, of_model in zip(*found, strict=True):
      np.testing.assert_array_equal(of_plain, of_model)


if __name__ == '__main__':
  absltest.main()
