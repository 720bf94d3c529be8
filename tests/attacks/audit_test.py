import dataclasses
import functools
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from scipy import stats

from tests import noise_checks
from tvdp_tf import errors, mechanisms, privacy
from tvdp_tf.attacks import audit, audit_settings, lower_bound, releases
from tvdp_tf.learning import local_training, noise

# Small steps keep the upload close to a sum of releases: the attack is best.
_SMALL = {'local_steps': 3, 'rounds': 2, 'seed': 1, 'learning_rate': 0.01}


@functools.cache
def _run(**kwargs) -> audit.AuditResult:
  return audit.audit(audit_settings.AuditSettings(**kwargs))


def _attainable_pair(examples=50):
  """A client on which one step of learning rate 1 moves by just 2C/n."""
  pair = releases.outlier_pair(examples)
  features, points = pair.data
  labels = (points.copy(), points.copy())
  labels[0][0], labels[1][0] = 5.0, -5.0
  return dataclasses.replace(
    pair, data=(features, labels[0]), alternative=(features, labels[1])
  )


class SoundMechanismTest(parameterized.TestCase):
  """A lower bound stays below what is delivered."""

  @parameterized.product(
    client=('outlier', 'digits'), epsilon=(1.0, 4.0), seed=(1, 2)
  )
  def test_gradient(self, client, epsilon, seed):
    result = _run(
      **_SMALL | {'seed': seed},
      mechanism='gradient',
      client=client,
      epsilon=epsilon,
      examples=30,
    )
    self.assertFalse(result.refuted)
    (delivered,) = result.delivered
    self.assertTrue(delivered.sensitivity.proven)
    for bound in (result.bound, result.gaussian_bound):
      self.assertLess(bound.epsilon_lower_bound, delivered.epsilon)
    # An attack that finds nothing would pass the above.
    self.assertGreater(
      result.gaussian_bound.epsilon_lower_bound, 0.6 * delivered.epsilon
    )
    self.assertGreater(
      result.bound.epsilon_lower_bound, 0.3 * delivered.epsilon
    )

  @parameterized.parameters(0.2, 1.0)
  def test_gradient_with_large_steps(self, learning_rate):
    # The noise of a step is fed back into those that follow.
    result = _run(
      **_SMALL | {'learning_rate': learning_rate},
      mechanism='gradient',
      client='outlier',
      trials=6000,
    )
    self.assertLess(result.bound.epsilon_lower_bound, 1)

  def test_paper_below_what_2c_delivers(self):
    for client in ('outlier', 'digits'):
      result = _run(**_SMALL | {'learning_rate': 1.0}, client=client)
      _, proven = result.delivered
      self.assertTrue(proven.sensitivity.proven)
      for bound in (result.bound, result.gaussian_bound):
        self.assertLess(bound.epsilon_lower_bound, proven.epsilon)

  def test_paper_where_its_sensitivity_happens_to_hold(self):
    result = _run(**_SMALL)
    self.assertFalse(result.refuted)
    granted, _ = result.delivered
    self.assertLess(result.bound.epsilon_lower_bound, granted.epsilon)


class BrokenMechanismTest(parameterized.TestCase):
  """A lower bound rises above a claim that is false."""

  def test_papers_sensitivity(self):
    result = _run(client='outlier', local_steps=5, rounds=4, seed=1)
    self.assertTrue(result.refuted)
    granted, proven = result.delivered
    shown = result.bound.epsilon_lower_bound
    # No trial of ten thousand was in doubt: the most that can be shown.
    self.assertEqual(shown, lower_bound.largest_lower_bound(10_000, 1e-3))
    self.assertGreater(shown, 7 * result.settings.epsilon)
    self.assertGreater(shown, granted.epsilon)
    self.assertLess(shown, proven.epsilon)
    # The two means are so many standard deviations apart.
    distance = np.mean(result.scores) - np.mean(result.alternative_scores)
    self.assertGreater(distance / np.std(result.scores), 100)

  def test_papers_sensitivity_on_real_digits(self):
    result = _run(seed=1)
    self.assertTrue(result.refuted)
    granted, _ = result.delivered
    self.assertGreater(result.bound.epsilon_lower_bound, 4)
    self.assertGreater(result.bound.epsilon_lower_bound, granted.epsilon)

  @parameterized.parameters('outlier', 'digits')
  def test_half_the_noise(self, client):
    result = _run(
      **_SMALL,
      mechanism='gradient',
      client=client,
      noise_scale=0.5,
      trials=20_000,
      examples=30,
    )
    self.assertTrue(result.refuted)
    # What half the noise really delivers.
    mechanism = audit.build_mechanism(result.settings)
    halved = privacy.delivered_epsilon(
      np.repeat(mechanism.schedule.stddevs(), 3) / 2, 1e-3, 'exact'
    )
    for bound in (result.bound, result.gaussian_bound):
      self.assertBetween(bound.epsilon_lower_bound, 1, halved)

  def test_theorem_1_even_if_its_sensitivity_is_granted(self):
    # One Gaussian release a round, so that the assumption is true.
    settings = audit_settings.AuditSettings(
      examples=50, client='outlier', epsilon=10.0, rounds=3
    )
    mechanism = audit.build_mechanism(settings)
    granted, _ = audit.delivered_epsilons(settings, mechanism)
    client = releases.build(_attainable_pair(), mechanism, 1, 1.0)
    scores = audit.attack_scores(client, 3, 40_000, 1)
    bound = lower_bound.gaussian_lower_bound(*scores, 1e-3)
    self.assertBetween(bound.epsilon_lower_bound, 10, granted.epsilon)


class ScoresTest(absltest.TestCase):
  def _client(self, pair, rounds=3, steps=2, rate=0.05):
    settings = audit_settings.AuditSettings(
      examples=pair.examples, rounds=rounds
    )
    mechanism = audit.build_mechanism(settings)
    return mechanism, releases.build(pair, mechanism, steps, rate)

  def test_are_the_log_likelihood_ratio(self):
    pair = releases.digits_pair(50)
    mechanism, client = self._client(pair)
    scores = audit.attack_scores(client, 3, 4000, seed=3)
    # Trained here by hand, from the same broadcasts.
    weights = [tf.constant(w) for w in pair.model.initial_weights]
    square = 0.0
    for m in (1, 2, 3):
      models = {
        name: local_training.local_steps(
          pair.loss_fn,
          weights,
          *(tf.constant(part) for part in getattr(pair, name)),
          num_steps=2,
          learning_rate=0.05,
          l2_norm_clip=5.0,
        )
        for name in ('data', 'alternative', 'common')
      }
      difference = releases.flatten(models['data']) - releases.flatten(
        models['alternative']
      )
      square += np.sum(difference**2) / mechanism.schedule.variance(m)
      weights = models['common']
    mu = square**0.5
    # ln of the density ratio of N(mu, 1) and N(0, 1) under either.
    for values, sign in zip(scores, (1, -1), strict=True):
      centred = values - sign * mu**2 / 2
      self.assertTrue(noise_checks.has_stddev(centred, mu))
      self.assertTrue(noise_checks.rejects_neighbours(centred, mu))

  def test_same_as_one_run_at_a_time(self):
    # Every upload with a key of its own, as a client's in training.
    pair = releases.digits_pair(20)
    mechanism, client = self._client(pair, rounds=1, rate=1.0)
    weights = pair.model.initial_weights
    with_d, with_other = (
      releases.flatten(client.noiseless(weights, data))[0]
      for data in (pair.data, pair.alternative)
    )
    variance = mechanism.schedule.variance(1)
    single = []
    for i in range(1000):
      upload = noise.perturb(
        client.noiseless(weights, pair.data),
        mechanism.schedule.stddev(1),
        noise.seeded_noise_key(7, 1, i),
      )
      offset = releases.flatten(upload)[0] - (with_d + with_other) / 2
      single.append(offset @ (with_d - with_other) / variance)
    together, alternative = audit.attack_scores(client, 1, 3000, seed=3)
    self.assertGreater(stats.ks_2samp(together, single).pvalue, 1e-9)
    self.assertLess(stats.ks_2samp(alternative, single).pvalue, 1e-9)

  def test_every_trial_has_its_own_noise(self):
    pair = releases.outlier_pair(20)
    _, client = self._client(pair, rounds=2)
    # More than are run at once, and not a multiple of that.
    scores = np.array(audit.attack_scores(client, 2, 2500, seed=3))
    self.assertEqual(scores.shape, (2, 2500))
    self.assertLen(np.unique(scores), 5000)
    rows = scores[:, :2400].reshape(6, 800)
    self.assertTrue(noise_checks.are_independent(rows))

  def test_seed(self):
    pair = releases.outlier_pair(20)
    _, client = self._client(pair)
    first, again, other = (
      audit.attack_scores(client, 1, 20, seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    self.assertFalse(np.any(np.array(first) == np.array(other)))

  def test_noise_scale(self):
    pair = releases.outlier_pair(20)
    _, client = self._client(pair)
    scores, _ = audit.attack_scores(client, 1, 3000, 1)
    scaled, _ = audit.attack_scores(client, 1, 3000, 1, noise_scale=0.5)
    # mu^2 grows fourfold.
    self.assertAlmostEqual(np.var(scaled) / np.var(scores), 4, delta=0.01)


@dataclasses.dataclass(frozen=True)
class _OwnGraph(mechanisms.GradientMechanism):
  def parts(self, build):
    weak = dataclasses.replace(self, example_l2_norm_clip=0.01)
    return mechanisms.GradientMechanism.parts(weak, build)


@dataclasses.dataclass(frozen=True)
class _OwnNoise(mechanisms.GradientMechanism):
  def client_stddev(self, round_number, examples):
    return 10 * super().client_stddev(round_number, examples)


@dataclasses.dataclass(frozen=True)
class _OwnWords(mechanisms.GradientMechanism):
  """What a client does stays what it is."""


class AuditTest(absltest.TestCase):
  def test_only_what_it_runs_is_audited(self):
    multipliers = privacy.GeometricSchedule(1.0, 2, 1.0)
    pair = releases.outlier_pair(20)
    releases.build(pair, _OwnWords(multipliers, 1.0), 1, 1.0)
    for graph in (_OwnGraph, _OwnNoise):
      with self.assertRaisesRegex(ValueError, f'^mech.* {graph.__name__}$'):
        releases.build(pair, graph(multipliers, 1.0), 1, 1.0)
    kinds = {
      name: type('Own', (mechanisms.gradient.Gradient,), {'graph': graph})
      for name, graph in (('words', _OwnWords), ('graph', _OwnGraph))
    }
    self.enter_context(mock.patch.dict(mechanisms.MECHANISMS, kinds))
    audit_settings.AuditSettings(mechanism='words')
    with self.assertRaisesRegex(ValueError, "^mechanism must be .* 'graph'"):
      audit_settings.AuditSettings(mechanism='graph')

  def test_a_seed_is_drawn_and_told(self):
    results = [_run.__wrapped__(trials=10, rounds=1) for _ in range(2)]
    self.assertNotEqual(results[0].seed, results[1].seed)
    again = _run.__wrapped__(trials=10, rounds=1, seed=results[0].seed)
    np.testing.assert_array_equal(again.scores, results[0].scores)

  def test_divergence(self):
    with self.assertRaisesRegex(errors.TrainingFailedError, 'learning_rate'):
      _run(learning_rate=1e38, trials=10, rounds=1)


if __name__ == '__main__':
  absltest.main()
