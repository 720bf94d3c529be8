import math

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.privacy import accounting, poisson_composition


def whole(multipliers, rate, delta=1e-5):
  return accounting.delivered_epsilon(
    multipliers, delta, 'rdp', 'poisson', rate
  )


class PoissonCompositionTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.1, 0.5, 3.0), (0.5, 1.0, 10.0), (0.01, 0.3, 1.0), (0.9, 20.0, 200.0)
  )
  def test_is_the_whole_list_after_every_round(self, rate, least, most):
    rng = np.random.default_rng(0)
    composition = poisson_composition.PoissonComposition(rate, 1e-5)
    multipliers = []
    for _ in range(12):
      multipliers.append(float(rng.uniform(least, most)))
      composition.add(multipliers[-1])
      np.testing.assert_allclose(
        composition.epsilon(), whole(multipliers, rate), rtol=1e-12
      )

  def test_asked_at_the_end_alone(self):
    composition = poisson_composition.PoissonComposition(0.2, 1e-5)
    for multiplier in (1.0, 2.0, 1.0):
      composition.add(multiplier)
    np.testing.assert_allclose(
      composition.epsilon(), whole([1.0, 1.0, 2.0], 0.2), rtol=1e-12
    )

  def test_does_not_depend_on_when_it_is_asked(self):
    # A run that is resumed after some rounds asks for no epsilon of those.
    rng = np.random.default_rng(1)
    multipliers = np.repeat(rng.uniform(0.5, 3.0, 9), rng.integers(1, 3, 9))
    whole_run: list[float] = []
    for resumed_after in range(len(multipliers)):
      composition = poisson_composition.PoissonComposition(0.3, 1e-5)
      epsilons = []
      for i, multiplier in enumerate(multipliers):
        composition.add(multiplier)
        if i >= resumed_after:
          epsilons.append(composition.epsilon())
      whole_run = whole_run or epsilons
      self.assertEqual(epsilons, whole_run[resumed_after:])

  def test_limits(self):
    composition = poisson_composition.PoissonComposition(1.0, 1e-5)
    self.assertEqual(composition.epsilon(), 0)
    composition.add(2.0)
    self.assertEqual(composition.epsilon(), whole([2.0], 1.0))
    composition = poisson_composition.PoissonComposition(0.5, 1e-5)
    composition.add(1e-60)
    self.assertEqual(composition.epsilon(), math.inf)

  @parameterized.parameters(0.0, -1.0, math.inf, math.nan, '1', None)
  def test_noise_must_be_a_number_above_zero(self, multiplier):
    composition = poisson_composition.PoissonComposition(0.5, 1e-5)
    with self.assertRaisesRegex(ValueError, 'noise_multiplier must be'):
      composition.add(multiplier)

  @parameterized.parameters((0.0, 1e-5), (1.1, 1e-5), (0.5, 0.0), (0.5, 1.0))
  def test_rate_and_delta_are_checked(self, rate, delta):
    with self.assertRaisesRegex(ValueError, 'must be'):
      poisson_composition.PoissonComposition(rate, delta)


if __name__ == '__main__':
  absltest.main()
