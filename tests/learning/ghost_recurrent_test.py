"""Ghost clipping of recurrent layers."""

import functools
import unittest
from collections.abc import Callable

import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.learning import ghost_cases
from tvdp_tf.learning import ghost_clipping, keras_version

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
    gates = {'simple': 1, 'lstm': 4, 'gru': 3}[kind]
    shapes = [
      tuple(dimension.size for dimension in shape.dim)
      for loop in loops
      for shape in loop.attr['output_shapes'].list.shape
    ]
    # The kernel, which the loop there is given.
    self.assertEqual(shapes.count((UNITS, gates * UNITS)), 1)

  @parameterized.named_parameters(
    ('dropout', lambda bad: KINDS['lstm'](3, dropout=0.1 * bad)),
    ('in_the_loop', lambda bad: KINDS['gru'](3, recurrent_dropout=0.1 * bad)),
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
      lambda bad: LAYERS.Bidirectional(KINDS['lstm'](3, dropout=0.1 * bad)),
    ),
  )
  def test_takes_a_model_only_without(self, build):
    good = of_numbers(build(False) or KINDS['lstm'](3))
    self.check_only_without(of_numbers(build(True)), good)

  @parameterized.parameters('lstm', 'gru')
  def test_takes_no_first_state(self, kind):
    inputs = tf.keras.Input(SEQUENCE)
    state = LAYERS.Dense(3)(LAYERS.Flatten()(inputs))
    states = [state, state] if kind == 'lstm' else [state]
    outputs = KINDS[kind](3)(inputs, initial_state=states)
    model = tf.keras.Model(inputs, LAYERS.Dense(3)(outputs))
    self.assertFalse(ghost_cases.supported_whatever_its_ops(model))


if __name__ == '__main__':
  absltest.main()
