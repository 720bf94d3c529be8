import importlib.metadata
import itertools
import math
import time
import warnings

import dp_accounting
import mpmath
import numpy as np
from absl.testing import absltest, parameterized
from dp_accounting import rdp

from tests.privacy import high_precision
from tvdp_tf import privacy
from tvdp_tf.privacy import _rdp, accounting

# Later releases stop their series at an upper bound for fractional orders.
_THEIR_SERIES_STOPS = not importlib.metadata.version(
  'dp-accounting'
).startswith('0.4.')
ORDERS = (1.011, 1.1, 1.5, 2.0, 2.7, 5.0, 9.9, 32.0, 33.3, 256.0)


def moment(z, q, order):
  """Own moment of one Poisson-sampled round."""
  return float(
    _rdp.poisson_moments(
      np.array([z]), np.array([1]), q, np.array([float(order)])
    )[0]
  )


def reference_epsilon(events, delta, orders=None):
  """dp_accounting's epsilon of (event, count) pairs."""
  accountant = rdp.RdpAccountant(orders)
  for event, count in events:
    accountant.compose(event, count)
  return accountant.get_epsilon(delta)


def poisson_events(multipliers, q, count=1):
  return [
    (
      dp_accounting.PoissonSampledDpEvent(
        q, dp_accounting.GaussianDpEvent(float(z))
      ),
      count,
    )
    for z in multipliers
  ]


class PoissonMomentTest(parameterized.TestCase):
  @parameterized.parameters(
    (0.06, 0.3, 1.5),
    (0.2, 0.01, 1.051),
    (0.3, 0.9, 7.7),
    (0.7, 1e-6, 2.3),
    (1.0, 0.1, 1.011),
    (1.0, 0.5, 5.7),
    (3.0, 0.01, 33.3),
    (20.0, 0.001, 1.5),
    (300.0, 0.9999, 9.9),
    (0.4, 0.1, 3.0),
    (2.0, 1e-4, 32.0),
    (50.0, 0.7, 2.0),
  )
  def test_is_the_integral(self, z, q, order):
    reference = high_precision.poisson_moment(z, q, order)
    error = high_precision.relative_error(moment(z, q, order), reference)
    self.assertLess(error, 1e-10)

  @parameterized.parameters(
    *itertools.product((0.1, 0.5, 1.0, 10.0), (0.001, 0.1, 0.9), ORDERS)
  )
  def test_against_dp_accounting(self, z, q, order):
    delta = 1e-5
    theirs = reference_epsilon(poisson_events([z], q), delta, [order])
    own = moment(z, q, order) / (order - 1)
    converted, _ = rdp.compute_epsilon([order], [own], delta)
    stops = _THEIR_SERIES_STOPS and order != round(order)
    if z == 0.1 or stops:  # There it may stop at an upper bound.
      self.assertLessEqual(converted, theirs * (1 + 1e-6))
    else:
      self.assertAlmostEqual(converted, theirs, delta=1e-6 * theirs)

  def test_below_the_quadrature_it_is_an_upper_bound(self):
    z, q, order = 0.04, 0.1, 1.5
    visible = math.log1p(q * math.expm1(order * (order - 1) / (2 * z * z)))
    self.assertAlmostEqual(moment(z, q, order), visible, places=9)
    self.assertGreater(moment(z, q, order), moment(0.0501, q, order))

  def test_rounds_add_up(self):
    multipliers, counts = np.array([0.5, 1.0, 4.0]), np.array([3, 1, 200])
    orders = np.array([1.5, 2.0, 16.0, 40.5])
    total = _rdp.poisson_moments(multipliers, counts, 0.2, orders)
    for order, value in zip(orders, total, strict=True):
      terms = [
        count * moment(z, 0.2, order)
        for z, count in zip(multipliers, counts, strict=True)
      ]
      self.assertAlmostEqual(value / math.fsum(terms), 1, places=12)

  def test_many_rounds_in_pieces_are_those_at_once(self):
    multipliers = np.geomspace(0.5, 50.0, 20_000)
    counts, orders = np.ones(20_000), np.array([64.0, 1.7])
    whole = _rdp.poisson_moments(multipliers, counts, 0.05, orders)
    parts = sum(
      _rdp.poisson_moments(multipliers[i : i + 500], counts[:500], 0.05, orders)
      for i in range(0, 20_000, 500)
    )
    np.testing.assert_allclose(whole, parts, rtol=1e-11)

  def test_grows_with_order_rate_and_falls_with_noise(self):
    for z, q in itertools.product((0.06, 0.5, 2.0, 30.0), (0.01, 0.5)):
      moments = [moment(z, q, order) for order in ORDERS]
      self.assertEqual(moments, sorted(moments))
    for z, order in itertools.product((0.5, 2.0), ORDERS):
      rates = [moment(z, q, order) for q in (0.001, 0.01, 0.3, 0.99)]
      self.assertEqual(rates, sorted(rates))
    for q, order in itertools.product((0.01, 0.5), ORDERS):
      noises = [moment(z, q, order) for z in (30.0, 2.0, 0.5, 0.06, 0.02)]
      self.assertEqual(noises, sorted(noises))


class EpsilonTest(parameterized.TestCase):
  @parameterized.parameters(
    *itertools.product(
      (0.7, 1.0, 1.4), ((0.01, 1e-3), (0.1, 1e-7), (0.5, 1e-5))
    )
  )
  def test_poisson_against_dp_accounting(self, theta, rate_delta):
    q, delta = rate_delta
    multipliers = privacy.GeometricSchedule(theta, 3, 1.0).stddevs()
    theirs = reference_epsilon(poisson_events(multipliers, q, 4), delta)
    rounds = np.repeat(multipliers, 4)
    own = privacy.delivered_epsilon(rounds, delta, 'rdp', 'poisson', q)
    if _THEIR_SERIES_STOPS:
      self.assertBetween(own, 0.999 * theirs, theirs * (1 + 1e-6))
    else:
      self.assertAlmostEqual(own, theirs, delta=1e-6 * theirs)

  @parameterized.parameters(
    *itertools.product((0.3, 1.0, 5.0), (1, 100), (1e-2, 1e-9))
  )
  def test_unsampled_against_dp_accounting(self, z, rounds, delta):
    event = dp_accounting.GaussianDpEvent(z)
    theirs = reference_epsilon([(event, rounds)], delta)
    own = privacy.delivered_epsilon([z] * rounds, delta, 'rdp')
    # Orders between dp_accounting's gain up to some per mille.
    self.assertLessEqual(own, theirs * (1 + 1e-9))
    self.assertGreater(own, 0.98 * theirs)

  @parameterized.parameters(
    ([0.4], 0.5, 1e-3),  # Best at an order below 2.
    ([0.6, 0.9], 0.1, 1e-5),
    ([1.2, 1.3, 1.4], 0.01, 1e-6),
    ([30.0], 0.02, 1e-8),
    ([400.0], 0.9, 1e-9),  # The largest order.
  )
  def test_dp_accounting_needs_no_other_orders(self, multipliers, q, delta):
    def epsilon(orders):
      accountant = rdp.RdpAccountant(orders)
      for z in multipliers:
        accountant.compose(
          dp_accounting.PoissonSampledDpEvent(
            q, dp_accounting.GaussianDpEvent(z)
          )
        )
      return accountant.get_epsilon(delta)

    orders = accounting.renyi_orders(multipliers, delta, q)
    self.assertLess(len(orders), 25)
    self.assertEqual(epsilon(orders), epsilon(None))

  @parameterized.parameters(1e-6, 1e-8, 1e-10)
  def test_tiny_epsilons_need_larger_orders(self, delta):
    theirs = reference_epsilon(poisson_events([100.0], 0.01), delta)
    own = privacy.delivered_epsilon([100.0], delta, 'rdp', 'poisson', 0.01)
    self.assertLess(own, theirs)
    truth = max(high_precision.poisson_delta(100.0, 0.01, max(own, 1e-12)))
    self.assertLessEqual(truth, delta)

  @parameterized.parameters(0.05, 0.5)
  def test_visible_is_the_bound_of_its_moments(self, q):
    z, rounds, delta = 1.3, 40, 1e-6

    def at(order):
      y = mpmath.mpf(order) * (order - 1) / (2 * z * z)
      total = rounds * mpmath.log1p(q * mpmath.expm1(y)) / (order - 1)
      rest = mpmath.log1p(-1 / order) - mpmath.log(delta * order) / (order - 1)
      return float(total + rest)

    best = min(at(1 + k / 100) for k in range(10, 4000))
    own = privacy.delivered_epsilon([z] * rounds, delta, 'rdp', 'visible', q)
    self.assertGreaterEqual(own, best * (1 - 1e-9))
    self.assertLessEqual(own, best * 1.003)

  @parameterized.parameters('visible', 'poisson')
  def test_extremes_are_no_error(self, sampling):
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      for z, q in itertools.product((1e-60, 0.01, 1e300), (1e-300, 1 - 1e-16)):
        epsilon = privacy.delivered_epsilon([z], 1e-5, 'rdp', sampling, q)
        self.assertGreaterEqual(epsilon, 0)
        if z == 1e-60:
          self.assertEqual(epsilon, math.inf)
        if z == 1e300:
          self.assertEqual(epsilon, 0)

  def test_cost_of_a_thousand_distinct_rounds(self):
    multipliers = privacy.GeometricSchedule(0.999, 1000, 5.0).stddevs()
    privacy.delivered_epsilon(multipliers[:2], 1e-5, 'rdp', 'poisson', 0.1)
    start = time.process_time()
    privacy.delivered_epsilon(multipliers, 1e-5, 'rdp', 'poisson', 0.1)
    self.assertLess(time.process_time() - start, 5)


if __name__ == '__main__':
  absltest.main()
