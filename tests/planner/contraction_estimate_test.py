import numpy as np
from absl.testing import absltest, parameterized
from scipy import optimize

from tvdp_tf.planner import pilot

ROUNDS = np.arange(1, 31)


def _losses(contraction, rounds=ROUNDS, gap=2.3, final=0.4):
  return final + gap * contraction ** rounds.astype(float)


def _noise(seed, stddev, points=30):
  return stddev * np.random.default_rng(seed).normal(size=points)


class ExactCurveTest(parameterized.TestCase):
  @parameterized.parameters(0.01, 0.3, 0.7, 0.85, 0.99, 0.999)
  def test_is_recovered(self, contraction):
    found = pilot.estimate_contraction(ROUNDS, _losses(contraction))
    self.assertAlmostEqual(found.contraction, contraction, delta=1e-7)
    self.assertAlmostEqual(found.initial_gap, 2.3, delta=1e-5)
    self.assertAlmostEqual(found.final_loss, 0.4, delta=1e-5)
    low, high = found.contraction_interval
    self.assertBetween(contraction, low, high)
    # Of the precision of binary32, in which losses are computed.
    self.assertBetween(high - low, 1e-9, 1e-4)
    self.assertAlmostEqual(found.r_squared, 1, places=12)
    self.assertAlmostEqual(found.remaining, contraction**30, delta=1e-6)

  def test_five_rounds_are_enough(self):
    found = pilot.estimate_contraction(range(1, 6), _losses(0.6)[:5])
    self.assertAlmostEqual(found.contraction, 0.6, delta=1e-7)
    self.assertEqual(found.rounds, 5)

  def test_rounds_may_be_missing(self):
    rounds = np.array([3, 4, 7, 12, 20, 21, 40])
    found = pilot.estimate_contraction(rounds, _losses(0.85, rounds))
    self.assertAlmostEqual(found.contraction, 0.85, delta=1e-6)
    # At round 0, not at the first.
    self.assertAlmostEqual(found.initial_gap, 2.3, delta=1e-5)
    self.assertAlmostEqual(found.remaining, 0.85**40, delta=1e-6)

  def test_fitted_curve(self):
    found = pilot.estimate_contraction(ROUNDS, _losses(0.85))
    np.testing.assert_allclose(found.loss(ROUNDS), _losses(0.85), atol=1e-6)
    self.assertAlmostEqual(float(found.loss(np.array(0))), 2.7, places=5)

  def test_precision_of_binary32_is_not_taken_for_a_signal(self):
    losses = _losses(0.85).astype(np.float32).astype(float)
    found = pilot.estimate_contraction(ROUNDS, losses)
    low, high = found.contraction_interval
    self.assertBetween(0.85, low, high)
    self.assertAlmostEqual(found.contraction, 0.85, delta=1e-6)


class ScatteredCurveTest(parameterized.TestCase):
  def _covered(self, contraction, points, stddev, seeds):
    rounds = np.arange(1, points + 1)
    losses = _losses(contraction, rounds)
    found = [
      pilot.estimate_contraction(rounds, losses + _noise(i, stddev, points))
      for i in range(seeds)
    ]
    intervals = np.array([f.contraction_interval for f in found])
    covered = (intervals[:, 0] <= contraction) & (
      contraction <= intervals[:, 1]
    )
    return found, float(np.mean(covered))

  @parameterized.parameters((0.85, 30, 0.05), (0.95, 30, 0.01), (0.6, 8, 0.02))
  def test_intervals_cover_the_truth(self, contraction, points, stddev):
    seeds = 60
    found, covered = self._covered(contraction, points, stddev, seeds)
    # 0.95 within three standard deviations of 60 throws.
    self.assertGreaterEqual(covered, 0.95 - 3 * (0.95 * 0.05 / seeds) ** 0.5)
    errors = np.array([f.contraction for f in found]) - contraction
    claimed = np.mean([f.contraction_stderr**2 for f in found]) ** 0.5
    actual = np.mean(errors**2) ** 0.5
    self.assertBetween(claimed / actual, 0.75, 1.5)
    gap_errors = np.array([f.initial_gap for f in found]) - 2.3
    claimed = np.mean([f.initial_gap_stderr**2 for f in found]) ** 0.5
    self.assertBetween(claimed / np.mean(gap_errors**2) ** 0.5, 0.7, 1.6)

  def test_more_scatter_means_less_precision(self):
    widths = []
    for stddev in (0.001, 0.01, 0.1):
      found = pilot.estimate_contraction(
        ROUNDS, _losses(0.85) + _noise(0, stddev)
      )
      widths.append(np.ptp(found.contraction_interval))
      self.assertAlmostEqual(found.residual_stddev / stddev, 1, delta=0.4)
    self.assertGreater(widths[1], 8 * widths[0])
    self.assertGreater(widths[2], 8 * widths[1])

  def test_odd_rounds_count_little(self):
    losses = _losses(0.85) + _noise(0, 0.005)
    losses[[4, 14, 24]] += 1.5
    found = pilot.estimate_contraction(ROUNDS, losses)
    self.assertAlmostEqual(found.contraction, 0.85, delta=0.002)
    low, high = found.contraction_interval
    self.assertBetween(0.85, low, high)
    (squares, *_), _ = optimize.curve_fit(
      lambda m, a, gap, final: final + gap * a**m, ROUNDS, losses, [0.8, 2, 0.5]
    )
    self.assertGreater(abs(squares - 0.85), 0.015)

  def test_unit_of_the_loss_does_not_matter(self):
    losses = _losses(0.85) + _noise(0, 0.02)
    found = pilot.estimate_contraction(ROUNDS, losses)
    other = pilot.estimate_contraction(ROUNDS, 1e6 * losses - 5e5)
    self.assertAlmostEqual(other.contraction, found.contraction, places=6)
    self.assertAlmostEqual(other.initial_gap / found.initial_gap, 1e6, delta=10)
    np.testing.assert_allclose(
      other.contraction_interval, found.contraction_interval, rtol=1e-5
    )

  def test_gap_goes_with_the_contraction(self):
    found = pilot.estimate_contraction(ROUNDS, _losses(0.85) + _noise(0, 0.02))
    at_low, at_high = found.initial_gap_at_interval
    self.assertGreater(at_low, found.initial_gap)
    self.assertLess(at_high, found.initial_gap)

  def test_a_curve_of_two_factors_is_seen(self):
    losses = _losses(0.95, gap=1.0) + 1.3 * 0.5**ROUNDS
    found = pilot.estimate_contraction(ROUNDS, losses)
    self.assertGreater(found.autocorrelation, 0.5)
    shuffled = np.random.default_rng(0).permutation(losses - found.loss(ROUNDS))
    other = pilot.estimate_contraction(ROUNDS, found.loss(ROUNDS) + shuffled)
    self.assertGreater(found.contraction_stderr, 1.5 * other.contraction_stderr)


class RefusalTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'few',
      range(1, 5),
      _losses(0.8)[:4],
      'rounds must have at least 5 entries, got 4',
    ),
    ('many', range(1, 10**6), range(10**6, 1, -1), 'at most 100000 entries'),
    ('none', [], [], 'rounds must have at least 5 entries, got 0'),
    ('lengths', [1, 2, 3, 4, 5], [1.0], 'losses must be one per round, got 1'),
    ('order', [1, 2, 2, 4, 5], _losses(0.8)[:5], 'rounds must be an integer'),
    ('zero', range(5), _losses(0.8)[:5], 'rounds must be an integer from 1'),
    ('nan', ROUNDS, [*_losses(0.8)[:29], np.nan], 'finite numbers, got nan'),
    ('huge', ROUNDS, [*_losses(0.8)[:29], -1e300], 'numbers, got -1e[+]300'),
    ('constant', ROUNDS, [0.7] * 30, 'losses must fall, got 0.7 in every'),
    ('rising', ROUNDS, 3 - _losses(0.85), 'losses must fall by more'),
    ('growing', ROUNDS, _losses(1.1), 'losses must fall by more'),
    ('line', ROUNDS, 3 - 0.05 * ROUNDS, 'distinguish the contraction from 1'),
    (
      'scattered_line',
      *(ROUNDS, 3 - 0.05 * ROUNDS + _noise(0, 0.02)),
      'distinguish the contraction from 1',
    ),
    (
      'step',
      *(ROUNDS, 0.4 + 2.0 * (ROUNDS == 1) + _noise(0, 0.02)),
      'distinguish the contraction from 0',
    ),
    ('exact_step', ROUNDS, 0.4 + 2.0 * (ROUNDS == 1), 'contraction from 0'),
    (
      'far_from_the_start',
      *(ROUNDS + 100_000, _losses(0.5)),
      'gap at round 0 representable',
    ),
  )
  def test_is_one_clear_line(self, rounds, losses, message):
    with self.assertRaisesRegex(ValueError, message) as caught:
      pilot.estimate_contraction(rounds, losses)
    self.assertNotIn('\n', str(caught.exception))

  def test_scatter_alone_is_no_fall(self):
    reasons = []
    for seed in range(40):
      try:
        pilot.estimate_contraction(ROUNDS, 0.4 + _noise(seed, 0.05))
      except ValueError as error:
        reasons.append(str(error))
    self.assertGreaterEqual(len(reasons), 39)
    falls = [reason for reason in reasons if 'losses must fall' in reason]
    self.assertGreaterEqual(len(falls), 36)


if __name__ == '__main__':
  absltest.main()
