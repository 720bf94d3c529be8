"""Claims of other tools, against dp_accounting."""

import itertools
import math
from typing import Any

import dp_accounting
import numpy as np
from absl.testing import absltest, parameterized
from dp_accounting import pld

from tvdp_tf import privacy
from tvdp_tf.privacy import claims


def _pld_epsilon(event, count, delta):
  accountant = pld.PLDAccountant()
  accountant.compose(event, count)
  return accountant.get_epsilon(delta)


class ClaimsTest(parameterized.TestCase):
  @parameterized.parameters((1.0, 1.0, 30), (8.0, 2.0, 5), (0.5, 1.0, 1))
  def test_flower_adds_up_its_rounds(self, epsilon, sensitivity, rounds):
    found = claims.check_claim(
      'flower-local-dp',
      epsilon=epsilon,
      delta=1e-5,
      rounds=rounds,
      clip=1.0,
      sensitivity=sensitivity,
    )
    stddev = sensitivity * math.sqrt(2 * math.log(1.25e5)) / epsilon
    theirs = _pld_epsilon(
      dp_accounting.GaussianDpEvent(stddev / 2), rounds, 1e-5
    )
    self.assertAlmostEqual(found.delivered_epsilon / theirs, 1, delta=1e-3)
    self.assertEqual(found.holds, found.delivered_epsilon <= epsilon)

  def test_flower_holds_for_one_round_and_the_right_sensitivity(self):
    arguments: dict[str, Any] = {'epsilon': 0.9, 'delta': 1e-5, 'clip': 1.0}
    check = claims.check_claim
    one = check('flower-local-dp', rounds=1, sensitivity=2.0, **arguments)
    self.assertTrue(one.holds)
    two = check('flower-local-dp', rounds=2, sensitivity=2.0, **arguments)
    self.assertFalse(two.holds)
    half = check('flower-local-dp', rounds=1, sensitivity=1.0, **arguments)
    self.assertFalse(half.holds)
    self.assertIn('DOES NOT HOLD', two.describe())

  @parameterized.parameters((1.1, 0.01, 1000), (0.7, 0.004, 500))
  def test_dp_sgd(self, z, rate, steps):
    delta = 1e-5
    theirs = _pld_epsilon(
      dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(z)
      ),
      steps,
      delta,
    )
    arguments = {
      'noise_multiplier': z,
      'sampling_rate': rate,
      'rounds': steps,
      'delta': delta,
    }
    found = claims.check_claim('dp-sgd', epsilon=1.01 * theirs, **arguments)
    self.assertBetween(found.delivered_epsilon, 0.99 * theirs, 1.01 * theirs)
    self.assertTrue(found.holds)
    shuffled = claims.check_claim(
      'dp-sgd', epsilon=theirs, batches='shuffled', **arguments
    )
    epochs = round(steps * rate)
    self.assertEqual(
      shuffled.delivered_epsilon,
      privacy.delivered_epsilon([z] * epochs, delta, 'exact'),
    )
    self.assertFalse(shuffled.holds)
    self.assertIn('example, added or removed', found.unit)

  def test_of_shuffled_batches_removal_is_not_covered(self):
    """Without x the batches of {x, a, a, a} are {a, a} and {a}, of sums 2, 1.

    With it they are of sums 0 and 2, or 2 and 0: a release of x alone is not
    all that changes.
    """
    found = claims.check_claim(
      'dp-sgd',
      noise_multiplier=1.0,
      sampling_rate=0.5,
      batches='shuffled',
      rounds=2,
      delta=1e-5,
    )
    rng = np.random.default_rng(0)
    sums = rng.permuted(np.tile([0.0, 2.0], (400_000, 1)), axis=1)
    released = sums + rng.normal(size=sums.shape)

    def log_density(*means):
      return -0.5 * np.square(released - means).sum(axis=-1)

    ratio = np.logaddexp(log_density(0, 2), log_density(2, 0)) - np.log(2)
    loss = ratio - log_density(2, 1)
    excess = -np.expm1(np.minimum(found.delivered_epsilon - loss, 0))
    self.assertGreater(excess.mean(), 0.03)  # The delta of such a promise.
    self.assertIn('one example, its gradient set to zero, against', found.unit)
    self.assertNotIn('removed', found.unit)
    self.assertIn('about adding or removing an example', found.describe())

  @parameterized.parameters((10, 4, 5), (10, 5, 4), (7, 3, 9), (60, 1, 61))
  def test_most_batches_of_an_example(self, examples, batch, steps):
    """Of shuffled batches, whether the last, smaller one is left out or not."""
    rng = np.random.default_rng(examples)
    most = 0
    for _, drops_last in itertools.product(range(200), (False, True)):
      drawn: list[np.ndarray] = []
      while len(drawn) < steps:
        order = rng.permutation(examples)
        epoch = [order[i : i + batch] for i in range(0, examples, batch)]
        if drops_last and len(epoch[-1]) < batch:
          epoch.pop()
        drawn += epoch
      counts = np.bincount(np.concatenate(drawn[:steps]), minlength=examples)
      most = max(most, int(counts.max()))
    found = claims.check_claim(
      'dp-sgd',
      noise_multiplier=1.0,
      sampling_rate=batch / examples,
      batches='shuffled',
      rounds=steps,
      delta=1e-5,
    )
    self.assertLen(found.noise_multipliers, most)

  @parameterized.parameters('nvflare-svt', 'nvflare-percentile')
  def test_nothing_is_proven(self, formula):
    found = claims.check_claim(formula, epsilon=0.1, delta=1e-5, rounds=3)
    self.assertEqual(found.delivered_epsilon, math.inf)
    self.assertFalse(found.holds)

  def test_a_batch_of_next_to_nothing(self):
    found = claims.check_claim(
      'dp-sgd',
      noise_multiplier=1.0,
      delta=1e-5,
      rounds=5,
      sampling_rate=1e-309,
      batches='shuffled',
    )
    self.assertLen(found.noise_multipliers, 1)

  def test_gaussian_without_a_claim(self):
    found = claims.check_claim(
      'gaussian', noise_multiplier=2.0, delta=1e-5, rounds=4
    )
    one = privacy.gaussian_epsilon(1.0, 1e-5)
    self.assertAlmostEqual(found.delivered_epsilon, one, places=9)
    self.assertFalse(found.holds)
    self.assertIn('no epsilon was claimed', found.describe())

  @parameterized.parameters(
    ({'formula': 'opacus'}, '^formula must be one of'),
    ({'rounds': 0}, '^rounds must be'),
    ({'delta': 1.0}, '^delta must be'),
    ({'epsilon': -1}, '^epsilon must be a finite number > 0, got -1'),
    ({'noise_multiplier': None}, '^noise_multiplier must be'),
    ({'formula': 'dp-sgd', 'batches': 'fixed'}, '^batches must be one of'),
    (
      {
        **{'formula': 'flower-local-dp', 'epsilon': 1.0},
        'noise_multiplier': None,
      },
      '^clip must be a finite number > 0, got None',
    ),
    # What the formula would pass over.
    ({'sampling_rate': 0.01}, '^sampling_rate must not be given with gaussian'),
    ({'batches': 'shuffled'}, "^batches must not .* gaussian, got 'shuffled'"),
    ({'clip': 1.0}, '^clip must not be given with gaussian, got 1.0'),
    (
      {'formula': 'dp-sgd', 'sensitivity': 2.0},
      '^sensitivity must not be given with dp-sgd, got 2.0',
    ),
    (
      {'formula': 'nvflare-svt'},
      '^noise_multiplier must not be given with nvflare-svt',
    ),
  )
  def test_refused(self, changed, text):
    arguments = {
      **{'formula': 'gaussian', 'delta': 1e-5, 'rounds': 3},
      'noise_multiplier': 1.0,
      **changed,
    }
    with self.assertRaisesRegex(ValueError, text):
      claims.check_claim(**arguments)


if __name__ == '__main__':
  absltest.main()
