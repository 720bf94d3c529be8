"""The gradient and the central mechanism on TFF, against plain NumPy."""

import contextlib

import dp_accounting
import numpy as np
from absl.testing import absltest, parameterized
from dp_accounting import rdp

from tests import algorithm1_reference as reference
from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data, schedule_state
from tvdp_tf.learning import datasets, models, noise, partitions

STEPS = 3
LEARNING_RATE = 0.5
SERVER = 2**32 - 1

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
  return process, [w.astype(np.float64) for w in keras_model.get_weights()]


def key_of(round_number, user):
  return noise.seeded_noise_key(5, round_number, user)


def event_of(state):
  """The round's DpEvent, as TFF's factory keeps it in the state."""
  return dp_accounting.DpEvent.from_named_tuple(state.aggregator.dp_event)


class SoundMechanismTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    digits = datasets.load('digits')
    parts = partitions.dirichlet(digits.train_labels[:200], 3, 1.0, seed=4)
    cls.users = [
      (digits.train_features[part], digits.train_labels[part]) for part in parts
    ]

  def data(self, round_number, scales):
    return [
      client_data.client_sequence(
        features, labels, key_of(round_number, user), scale
      )
      for user, ((features, labels), scale) in enumerate(
        zip(self.users, scales, strict=True)
      )
    ]

  def assert_same_model(self, actual, expected, atol):
    for one, other in zip(actual, expected, strict=True):
      np.testing.assert_allclose(one, other, rtol=0, atol=atol)


class GradientTest(SoundMechanismTest):
  SCHEDULE = privacy.GeometricSchedule(theta=0.7, rounds=3, initial_stddev=2.0)

  def test_three_rounds_equal_numpy(self):
    mechanism = mechanisms.GradientMechanism(self.SCHEDULE, 0.8)
    process, expected = build(mechanism)
    sizes = [len(labels) for _, labels in self.users]
    # Clients with noise multipliers of their own.
    scales = [
      mechanism.noise_scale(size, z)
      for size, z in zip(sizes, (2.0, 1.0, 0.5), strict=True)
    ]
    np.testing.assert_allclose(scales[1], 2 * 0.8 / sizes[1] / 2)
    state = process.initialize()
    for m in (1, 2, 3):
      output = process.next(state, self.data(m, scales))
      state = output.state
      z = self.SCHEDULE.stddev(m)
      self.assertEqual(output.metrics['client_work']['round'], m)
      self.assertAlmostEqual(
        output.metrics['client_work']['noise_multiplier'], z
      )
      expected = reference.aggregate(
        [
          reference.private_local_model(
            expected,
            *data,
            local_steps=STEPS,
            learning_rate=LEARNING_RATE,
            example_clip=0.8,
            noise_stddev=z * scale,
            noise_key=key_of(m, user),
          )
          for user, (data, scale) in enumerate(
            zip(self.users, scales, strict=True)
          )
        ],
        sizes,
        0.0,
        [key_of(m, 0)] * 3,
      )
    self.assert_same_model(
      state.global_model_weights.trainable, expected, atol=1e-5
    )

  def test_stops_after_the_last_round_and_can_be_refined(self):
    process, _ = build(mechanisms.GradientMechanism(self.SCHEDULE, 1.0))
    state = process.initialize()
    shorter = privacy.GeometricSchedule(0.7, 2, 3.0)
    state = process.next(state, self.data(1, [0.1] * 3)).state
    inner = schedule_state.of(state)
    assert inner is not None
    self.assertEqual(int(inner['round']), 1)
    state = schedule_state.put(state, schedule_state.refined(inner, shorter))
    output = process.next(state, self.data(2, [0.1] * 3))
    self.assertAlmostEqual(
      output.metrics['client_work']['noise_multiplier'], shorter.stddev(2)
    )
    with self.assertRaisesRegex(Exception, 'no further round'):
      process.next(output.state, self.data(3, [0.1] * 3))


class CentralTest(SoundMechanismTest):
  SCHEDULE = privacy.GeometricSchedule(theta=1.5, rounds=4, initial_stddev=0.1)
  CLIP = 0.3

  def updates(self, weights):
    """The clients' clipped updates in float64."""
    for features, labels in self.users:
      local = reference.local_model(
        weights,
        features,
        labels,
        local_steps=STEPS,
        learning_rate=LEARNING_RATE,
        clip=np.inf,
      )
      update = [new - old for new, old in zip(local, weights, strict=True)]
      norm = np.sqrt(sum((part**2).sum() for part in update))
      yield [part * min(1.0, self.CLIP / norm) for part in update]

  def test_rounds_equal_numpy_and_an_empty_cohort_is_noise(self):
    mechanism = mechanisms.CentralMechanism(self.SCHEDULE, self.CLIP, 2.5, 7)
    process, expected = build(mechanism)
    state = process.initialize()
    for m in (1, 2, 3):
      data = self.data(m, [1.0] * 3) if m != 2 else []
      output = process.next(state, data)
      state = output.state
      total = [np.zeros_like(w) for w in expected]
      if data:
        for update in self.updates(expected):
          total = [t + u for t, u in zip(total, update, strict=True)]
      noisy = reference.perturbed(
        total,
        self.SCHEDULE.stddev(m) * self.CLIP,
        noise.seeded_noise_key(7, m, SERVER),
      )
      expected = [w + n / 2.5 for w, n in zip(expected, noisy, strict=True)]
      event = event_of(state)
      self.assertAlmostEqual(
        float(event.noise_multiplier), self.SCHEDULE.stddev(m), places=12
      )
    self.assert_same_model(
      state.global_model_weights.trainable, expected, atol=1e-5
    )

  def test_events_compose_to_the_delivered_epsilon(self):
    mechanism = mechanisms.CentralMechanism(self.SCHEDULE, self.CLIP, 3.0)
    process, _ = build(mechanism)
    state = process.initialize()
    accountant = rdp.RdpAccountant()
    for m in (1, 2, 3):
      state = process.next(state, self.data(m, [1.0] * 3)).state
      accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.3, event_of(state))
      )
    ours = privacy.delivered_epsilon(
      self.SCHEDULE.stddevs()[:3], 1e-4, 'rdp', 'poisson', 0.3
    )
    self.assertAlmostEqual(
      accountant.get_epsilon(1e-4), ours, delta=0.01 * ours
    )

  def test_noise_is_fresh_without_a_seed(self):
    mechanism = mechanisms.CentralMechanism(self.SCHEDULE, self.CLIP, 3.0)
    process, _ = build(mechanism)
    state = process.initialize()
    one, two = (
      process.next(state, []).state.global_model_weights.trainable[0]
      for _ in range(2)
    )
    start = state.global_model_weights.trainable[0]
    stddev = self.SCHEDULE.stddev(1) * self.CLIP / 3.0
    self.assertAlmostEqual(np.std(one - start), stddev, delta=0.1 * stddev)
    self.assertAlmostEqual(
      np.std(one - two), np.sqrt(2) * stddev, delta=0.1 * stddev
    )

  @parameterized.parameters(np.nan, np.inf, 1e30)
  def test_a_bad_client_moves_the_sum_by_no_more_than_the_clip(self, value):
    mechanism = mechanisms.CentralMechanism(
      privacy.GeometricSchedule(1.0, 2, 1e-6), self.CLIP, 3.0
    )
    process, _ = build(mechanism)
    state = process.initialize()
    good = self.data(1, [1.0] * 3)
    bad = [*good[:2], [dict(good[2][0], x=good[2][0]['x'] * 0 + value)]]
    flat = [
      np.concatenate(
        [
          np.ravel(w)
          for w in process.next(state, d).state.global_model_weights.trainable
        ]
      )
      for d in (good[:2], bad)
    ]
    moved = np.linalg.norm(flat[0] - flat[1])
    self.assertLessEqual(moved, self.CLIP / 3.0 * 1.01)


class LaplaceTest(SoundMechanismTest):
  def test_noise_is_laplace(self):
    stddev = 0.5
    process, _ = build(mechanisms.LaplaceMechanism(stddev, 2, 5.0))
    state = process.initialize()
    data = self.data(1, [1.0] * 3)[:1]
    noisy = process.next(state, data).state.global_model_weights.trainable
    plain_process, _ = build(mechanisms.NoMechanism(5.0))
    plain = plain_process.next(plain_process.initialize(), data).state
    drawn = np.concatenate(
      [
        np.ravel(a - b)
        for a, b in zip(
          noisy, plain.global_model_weights.trainable, strict=True
        )
      ]
    )
    self.assertAlmostEqual(drawn.std(), stddev, delta=0.08 * stddev)
    # A normal variable would have 0.798 times its standard deviation.
    self.assertAlmostEqual(
      np.abs(drawn).mean(), stddev / np.sqrt(2), delta=0.05 * stddev
    )


if __name__ == '__main__':
  absltest.main()
