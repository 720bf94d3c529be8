import contextlib

import numpy as np
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tests import algorithm1_reference as reference
from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data
from tvdp_tf.learning import datasets, models, noise, participation, partitions

CLIP = 2.0
STEPS = 5
LEARNING_RATE = 0.5
SCHEDULE = privacy.GeometricSchedule(theta=1.3, rounds=3, initial_stddev=0.01)

_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.local_runtime())


def tearDownModule():
  _resources.close()


def build(mechanism, **kwargs):
  spec = models.MODELS['mlp']
  keras_model = spec.build([8, 8, 1], 10, 1)
  process = federated.build_learning_process(
    federated.functional_model(spec, keras_model),
    mechanism,
    **{'local_steps': STEPS, 'learning_rate': LEARNING_RATE, **kwargs},
  )
  return process, keras_model.get_weights()


class LearningProcessTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    digits = datasets.load('digits')
    # Unequal users, so that the weights p_k matter.
    parts = partitions.dirichlet(digits.train_labels, 6, 1.0, seed=4)
    cls.users = [
      (digits.train_features[part], digits.train_labels[part]) for part in parts
    ]
    cls.rule = participation.UniformParticipation(6, 3, seed=2)

  def train(self, process, seed, rounds=3):
    state = process.initialize()
    for round_number in range(1, rounds + 1):
      data = []
      for user in self.rule.cohort(round_number).tolist():
        key = noise.seeded_noise_key(seed, round_number, user)
        features, labels = self.users[user]
        data.append(client_data.client_sequence(features, labels, key, 1.0))
      state = process.next(state, data).state
    return state.global_model_weights.trainable

  def train_reference(self, weights, seed, stddevs):
    weights = [w.astype(np.float64) for w in weights]
    for round_number, stddev in enumerate(stddevs, start=1):
      cohort = self.rule.cohort(round_number).tolist()
      weights = reference.aggregate(
        [
          reference.local_model(
            weights,
            *self.users[user],
            local_steps=STEPS,
            learning_rate=LEARNING_RATE,
            clip=CLIP,
          )
          for user in cohort
        ],
        [len(self.users[user][1]) for user in cohort],
        stddev,
        [noise.seeded_noise_key(seed, round_number, u) for u in cohort],
      )
    return weights

  def assert_same_model(self, actual, expected, atol):
    self.assertLen(actual, len(expected))
    for one, other in zip(actual, expected, strict=True):
      np.testing.assert_allclose(one, other, rtol=0, atol=atol)

  def test_without_noise_equals_numpy(self):
    process, weights = build(mechanisms.NoMechanism(CLIP))
    expected = self.train_reference(weights, 0, [0.0] * 3)
    self.assert_same_model(self.train(process, seed=0), expected, atol=1e-5)
    norm = np.sqrt(sum((w**2).sum() for w in expected))
    self.assertBetween(norm, 0.8 * CLIP, CLIP)  # The projection was active.

  def test_with_seeded_noise_equals_numpy(self):
    process, weights = build(mechanisms.PaperMechanism(SCHEDULE, CLIP))
    expected = self.train_reference(weights, 9, SCHEDULE.stddevs())
    actual = self.train(process, seed=9)
    self.assert_same_model(actual, expected, atol=1e-5)
    # The noise is far above the tolerance.
    other = self.train_reference(weights, 8, SCHEDULE.stddevs())
    self.assertGreater(np.abs(other[0] - actual[0]).max(), 1e-2)

  def test_a_seed_reproduces_to_the_bit(self):
    process, _ = build(mechanisms.PaperMechanism(SCHEDULE, CLIP))
    one, two = self.train(process, seed=3), self.train(process, seed=3)
    for first, second in zip(one, two, strict=True):
      np.testing.assert_array_equal(first, second)

  def test_many_local_steps(self):
    process, weights = build(mechanisms.NoMechanism(CLIP), local_steps=30)
    actual = self.train(process, seed=0, rounds=1)
    cohort = self.rule.cohort(1).tolist()
    expected = reference.aggregate(
      [
        reference.local_model(
          [w.astype(np.float64) for w in weights],
          *self.users[user],
          local_steps=30,
          learning_rate=LEARNING_RATE,
          clip=CLIP,
        )
        for user in cohort
      ],
      [len(self.users[user][1]) for user in cohort],
      0.0,
      [noise.seeded_noise_key(0, 1, user) for user in cohort],
    )
    self.assert_same_model(actual, expected, atol=2e-5)

  def test_is_a_learning_process(self):
    process, weights = build(mechanisms.PaperMechanism(SCHEDULE, CLIP))
    self.assertIsInstance(process, tff.learning.templates.LearningProcess)
    state = process.initialize()
    self.assertEqual(state.aggregator['round'], 0)
    stored = process.get_model_weights(state).trainable
    for one, other in zip(stored, weights, strict=True):
      np.testing.assert_array_equal(one, other)

  @parameterized.named_parameters(
    ('no_steps', {'local_steps': 0}, 'local_steps must be'),
    ('learning_rate', {'learning_rate': -1.0}, 'learning_rate must be'),
    ('nan', {'learning_rate': float('nan')}, 'learning_rate must be'),
  )
  def test_refuses(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      build(mechanisms.NoMechanism(CLIP), **kwargs)

  def test_refuses_mechanisms(self):
    with self.assertRaisesRegex(TypeError, 'mechanism must be'):
      build('paper')
    with self.assertRaisesRegex(ValueError, 'l2_norm_clip must be'):
      mechanisms.PaperMechanism(SCHEDULE, 0.0)


class PhiloxTest(parameterized.TestCase):
  def test_reference_generator_meets_its_published_vectors(self):
    # Random123's known answers for philox4x32-10.
    bits = reference.philox4x32(0, 0, 1)
    self.assertEqual(
      [int(word) for word in bits],
      [0xE169C58D6627E8D5, 0x9B00DBD8BC57AC4C],
    )

  def test_noise_equals_the_reference(self):
    for words in ((0, 0), (7, 3 << 32 | 5), (-1, -(2**63)), (2**62, -5)):
      key = np.array(words, np.int64)
      np.testing.assert_allclose(
        noise.standard_normal(key, 1001),
        reference.standard_normal(key, 1001),
        rtol=1e-11,
        atol=1e-12,
      )


if __name__ == '__main__':
  absltest.main()
