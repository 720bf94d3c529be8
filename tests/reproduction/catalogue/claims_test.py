"""Claims: what holds, what does not, and what the seeds leave open."""

import math

from absl.testing import absltest, parameterized

from reproduction.catalogue import claims


def seed(noise_stddev=0.5, **losses) -> claims.Seed:
  """Curves against M = 5, 10, ...: label -> losses."""
  return claims.Seed(
    {
      label: [
        {
          'planned_rounds': str(5 * (i + 1)),
          'test_loss': str(loss),
          'noise_stddev': str(noise_stddev * loss),
        }
        for i, loss in enumerate(values)
      ]
      for label, values in losses.items()
    },
    'planned_rounds',
  )


FALLS = (3.0, 2.0, 1.0)
DIPS = (3.0, 1.5, 2.0)
RISES = (1.2, 2.0, 4.0)
CURVES = {'falls': FALLS, 'dips': DIPS, 'rises': RISES}


class SeedTest(absltest.TestCase):
  def test_values(self):
    results = seed(**CURVES)
    self.assertEqual(results.least('dips'), 1.5)
    self.assertEqual(results.best_at('dips'), 10)
    self.assertEqual(results.last('dips'), 2.0)
    self.assertEqual(results.first('dips', 'noise_stddev'), 1.5)

  def test_diverged(self):
    results = seed(a=(math.nan, 1.0, math.nan), b=(math.nan, math.nan))
    self.assertEqual(results.least('a'), 1.0)
    self.assertEqual(results.best_at('a'), 10)
    self.assertEqual(results.last('a'), math.inf)
    self.assertEqual(results.least('b'), math.inf)


class ClaimTest(parameterized.TestCase):
  @parameterized.parameters(
    (claims.order('', 'falls', 'rises', 'dips'), True),
    (claims.order('', 'rises', 'falls', 'dips'), False),
    (claims.order('', 'falls', 'falls'), False),
    (claims.best('', ['dips', 'falls'], ['rises']), True),
    (claims.best('', ['rises'], ['dips', 'falls']), False),
    (claims.worst('', 'dips', ['falls', 'rises']), True),
    (claims.worst('', 'rises', ['falls', 'dips']), False),
    (claims.each_better('', [('falls', 'rises'), ('rises', 'dips')]), True),
    (claims.each_better('', [('falls', 'rises'), ('dips', 'rises')]), False),
    (claims.each_better('', [('dips', 'rises')], at='last'), True),
    (claims.near('', ['falls'], 'rises'), True),
    (claims.near('', ['rises'], 'falls'), False),
    (claims.best_place_moves('', 'rises', 'dips', 'falls'), True),
    (claims.best_place_moves('', 'rises', 'falls', 'dips'), False),
    (claims.best_place_moves('', 'dips', 'dips'), False),
    (claims.best_place_is('', 10, 'dips'), True),
    (claims.best_place_is('', 10, 'dips', 'falls'), False),
    (claims.best_place_inside('', 'dips'), True),
    (claims.best_place_inside('', 'dips', 'falls'), False),
    (claims.best_place_inside('', 'rises'), False),
    (claims.degrades('', 'dips', 'rises'), True),
    (claims.degrades('', 'dips', 'falls'), False),
    (claims.rests('', 'falls'), True),
    (claims.rests('', 'falls', 'dips'), False),
    (claims.rises('', 'noise_stddev', 'falls', 'dips', 'rises'), True),
    (claims.rises('', 'noise_stddev', 'dips', 'falls'), False),
    (claims.rises('', 'noise_stddev', 'rises', 'dips', at='first'), True),
    (claims.rises('', 'noise_stddev', 'dips', 'falls', at='first'), False),
    (claims.between('', 'noise_stddev', 0.5, 1.0, 'falls', 'dips'), True),
    (claims.between('', 'noise_stddev', 0.5, 1.0, 'falls', 'rises'), False),
    (claims.steps_down('', 'test_loss', 'falls'), True),
    (claims.steps_down('', 'test_loss', 'falls', 'dips'), False),
  )
  def test_holds(self, claim, holds):
    results = seed(**CURVES)
    self.assertIs(claim.holds(results), holds)
    self.assertContainsSubset(claim.labels, {'falls', 'dips', 'rises'})
    self.assertNotEmpty(claim.measured(results))

  def test_within_two_per_cent(self):
    results = seed(a=(1.019,), b=(1.021,), c=(1.0,))
    self.assertTrue(claims.near('', ['a'], 'c').holds(results))
    self.assertFalse(claims.near('', ['b'], 'c').holds(results))
    rising = seed(a=(1.0, 1.019), b=(1.0, 1.021))
    self.assertTrue(claims.rests('', 'a').holds(rising))
    self.assertFalse(claims.degrades('', 'a').holds(rising))
    self.assertFalse(claims.rests('', 'b').holds(rising))
    self.assertTrue(claims.degrades('', 'b').holds(rising))

  def test_of_curves_that_diverged(self):
    results = seed(a=(1.0, 2.0), b=(math.nan, math.nan), c=(1.0, math.nan))
    self.assertTrue(claims.order('', 'a', 'b').holds(results))
    self.assertFalse(claims.order('', 'b', 'a').holds(results))
    self.assertTrue(claims.degrades('', 'c').holds(results))


class DecisionTest(parameterized.TestCase):
  @parameterized.parameters(
    ((1.0, 1.1), 'holds'),
    ((4.0, 5.0), 'does not hold'),
    ((1.0, 4.0), 'open: holds in 1 of 2 seeds'),
  )
  def test_verdict(self, losses, verdict):
    seeds = [seed(a=(loss,), b=(2.0,)) for loss in losses]
    decision = claims.decide(claims.order('said', 'a', 'b'), seeds)
    self.assertEqual(decision.text, 'said')
    self.assertEqual(decision.verdict, verdict)
    self.assertEqual(decision.measured['a'], list(losses))

  @parameterized.parameters(
    ([0.5, 0.7], '0.600 ± 0.141'),
    ([0.5], '0.500'),
    ([0.1 + 0.2, 0.3], '0.300'),
    ([0.02, 0.04], '0.03 ± 0.0141'),
    ([17, 17], '17'),
    ([17, 20], '17, 20'),
    ([0.5, math.inf], 'diverged'),
    ([0.5, math.nan], 'diverged'),
  )
  def test_text_of(self, values, text):
    self.assertEqual(claims.text_of(values), text)


if __name__ == '__main__':
  absltest.main()
