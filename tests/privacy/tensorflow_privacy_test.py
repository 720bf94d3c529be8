"""The accountants against those of tensorflow_privacy."""

import math

import dp_accounting
import pytest
from absl.testing import absltest, parameterized

from tvdp_tf import privacy

tensorflow_privacy = pytest.importorskip('tensorflow_privacy')
compute_dp_sgd_privacy_lib = pytest.importorskip(
  'tensorflow_privacy.privacy.analysis.compute_dp_sgd_privacy_lib'
)


class DpSgdTest(parameterized.TestCase):
  @parameterized.parameters(
    # examples, batch, noise multiplier, epochs, delta
    (60_000, 250, 1.3, 15, 1e-5),
    (60_000, 600, 0.7, 5, 1e-6),
    (10_000, 1000, 4.0, 20, 1e-4),
  )
  def test_poisson_sampled_training(self, examples, batch, z, epochs, delta):
    q = batch / examples
    steps = math.ceil(epochs * examples / batch)
    theirs, _ = compute_dp_sgd_privacy_lib.compute_dp_sgd_privacy(
      examples, batch, z, epochs, delta
    )
    own = privacy.delivered_epsilon([z] * steps, delta, 'rdp', 'poisson', q)
    # The sets of orders differ a little.
    self.assertBetween(own, 0.999 * theirs, theirs * (1 + 1e-6))
    tighter = privacy.delivered_epsilon([z] * steps, delta, 'pld', 'poisson', q)
    self.assertLess(tighter, theirs)

  def test_full_batches(self):
    theirs, _ = compute_dp_sgd_privacy_lib.compute_dp_sgd_privacy(
      1000, 1000, 30.0, 50, 1e-5
    )
    own = privacy.delivered_epsilon([30.0] * 50, 1e-5, 'rdp')
    self.assertBetween(own, 0.98 * theirs, theirs * (1 + 1e-9))
    exact = privacy.delivered_epsilon([30.0] * 50, 1e-5, 'exact')
    self.assertLess(exact, theirs)


class QueryTest(absltest.TestCase):
  """A query's own DpEvents, accounted by dp_accounting and here."""

  def _event(self, stddev):
    query = tensorflow_privacy.GaussianSumQuery(2.0, float(stddev))
    state = query.initial_global_state()
    record = query.preprocess_record(query.derive_sample_params(state), [0.0])
    _, _, event = query.get_noised_result(record, state)
    # In eager mode its noise multiplier is a tensor.
    return dp_accounting.GaussianDpEvent(float(event.noise_multiplier))

  def test_geometric_series_of_sums(self):
    schedule = privacy.GeometricSchedule(0.8, 4, 5.0)
    accountant = dp_accounting.pld.PLDAccountant(
      value_discretization_interval=1e-3
    )
    for stddev in schedule.stddevs():
      accountant.compose(self._event(stddev))
    noise = schedule.noise_multipliers(2.0)
    own = privacy.delivered_epsilon(noise, 1e-5, 'exact')
    theirs = accountant.get_epsilon(1e-5)
    self.assertAlmostEqual(own, theirs, delta=1e-5 * theirs)


if __name__ == '__main__':
  absltest.main()
