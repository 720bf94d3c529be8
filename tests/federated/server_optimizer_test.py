import contextlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import runtimes
from tvdp_tf.federated import learning_process

_TYPE = tff.to_type(
  tff.learning.models.ModelWeights(
    (tff.TensorType(np.float32, [3]), tff.TensorType(np.float32, [])), ()
  )
)
_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.local_runtime())


def tearDownModule():
  _resources.close()


def reference(optimizer, updates):
  """The models and their averages, in float64, in the plainest way."""
  velocity, model = np.zeros(4), np.zeros(4)
  models, averages = [], []
  for m, update in enumerate(updates, start=1):
    velocity = optimizer.momentum * velocity + update
    decayed = 1.0
    if optimizer.rounds > 1:
      share = min(1, (m - 1) / (optimizer.rounds - 1))
      decayed = 1 - (1 - optimizer.final_step) * share
    model = model + decayed * (update + optimizer.momentum * velocity)
    models.append(model)
    weights = np.array([optimizer.average ** (m - j) for j in range(1, m + 1)])
    averages.append(np.average(models, axis=0, weights=weights))
  return models, averages


class ServerOptimizerTest(parameterized.TestCase):
  @parameterized.product(
    adds=(False, True),
    settings=(
      {'momentum': 0.9},
      {'average': 0.8},
      {'final_step': 0.1, 'rounds': 4},
      {'momentum': 0.5, 'average': 0.7, 'final_step': 0.3, 'rounds': 6},
    ),
  )
  def test_equals_numpy(self, adds, settings):
    optimizer = learning_process.ServerOptimizer(**settings)
    process = learning_process.build_finalizer(_TYPE, optimizer, adds=adds)
    updates = np.random.default_rng(0).normal(size=[6, 4])
    models, averages = reference(optimizer, updates)
    state = process.initialize()
    current = np.zeros(4, np.float32)
    for m, update in enumerate(updates):

      def weights(values):
        return (values[:3].astype(np.float32), np.float32(values[3]))

      before = state
      mean = update if adds else current + update
      output = process.next(
        state,
        tff.learning.models.ModelWeights(weights(current), ()),
        weights(mean),
      )
      state = output.state
      current = np.concatenate([np.ravel(w) for w in output.result.trainable])
      np.testing.assert_allclose(current, models[m], rtol=1e-4, atol=1e-5)
      learning_state = tff.learning.templates.LearningAlgorithmState(
        output.result, (), (), (), state
      )
      released = np.concatenate(
        [np.ravel(w) for w in learning_process.released_weights(learning_state)]
      )
      np.testing.assert_allclose(released, averages[m], rtol=1e-4, atol=1e-5)
      old = learning_state._replace(finalizer=before)
      found = learning_process.mean_update(optimizer, old, learning_state)
      np.testing.assert_allclose(
        np.concatenate([np.ravel(part) for part in found]), update, atol=1e-5
      )

  def test_plain_has_no_state(self):
    process = learning_process.build_finalizer(
      _TYPE, learning_process.ServerOptimizer(), adds=True
    )
    self.assertEqual(process.initialize(), ())

  def test_what_is_not_finite_stays(self):
    optimizer = learning_process.ServerOptimizer(momentum=0.5)
    process = learning_process.build_finalizer(_TYPE, optimizer, adds=True)
    zeros = (np.zeros(3, np.float32), np.float32(0))
    output = process.next(
      process.initialize(),
      tff.learning.models.ModelWeights(zeros, ()),
      (np.full(3, np.nan, np.float32), np.float32(0)),
    )
    self.assertTrue(np.isnan(tf.nest.flatten(output.result.trainable)[0]).all())

  @parameterized.parameters(
    ('momentum', 1.0), ('average', -0.1), ('final_step', 0.0), ('rounds', 0)
  )
  def test_refuses(self, name, value):
    with self.assertRaisesRegex(ValueError, f'^{name} must be'):
      learning_process.ServerOptimizer(**{name: value})


if __name__ == '__main__':
  absltest.main()
