"""Aggregators for TFF's algorithms whose clip and noise come from one budget.

A schedule that was calibrated for one clip and used with another promises what
it does not keep. Here both are set in one call, so that they cannot disagree.
"""

import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import aggregator, checked_mean, sum_query
from tvdp_tf.privacy import noise_distance, sensitivity

# More weights than any model has: what the tail of the noise costs of delta is
# reckoned for so many values a round.
_MOST_VALUES = 2**40


def _accounted_delta(delta: float, epsilon: float, rounds: int) -> float:
  """What the accountant is left with, the noise's tail taken off."""
  values = _validate.integer('rounds', rounds) * _MOST_VALUES
  return noise_distance.accounted_delta(
    delta, epsilon, values, noise_distance.CONTINUOUS
  )


def local_noise(
  *,
  epsilon: float,
  delta: float,
  rounds: int,
  l2_norm_clip: float,
  theta: float = 1.0,
) -> aggregator.UnweightedTimeVaryingGaussianFactory:
  """Every client clips its update and adds its noise: protects users, from all.

  For the `model_aggregator` of `tff.learning.algorithms.build_unweighted_
  fed_avg` and others. It protects a user (replace-one) from the server too, in
  up to `rounds` rounds, in all of which the user may take part. Nothing is
  assumed of who takes part when. Further rounds are an error.

  Args:
    epsilon: The target, > 0.
    delta: In (0, 1).
    rounds: M >= 1.
    l2_norm_clip: C_u, the norm that an update is clipped to.
    theta: Ratio of the noise variances of successive rounds, > 0.

  Returns:
    The aggregator, whose noise has the sensitivity 2 C_u.

  Raises:
    ValueError: If an argument is out of range, or no noise meets the target:
      floating-point noise ends 12 standard deviations out.
  """
  clip = sensitivity.check_clip('l2_norm_clip', l2_norm_clip)
  rule = privacy.update_rule(clip)
  delta = _accounted_delta(delta, epsilon, rounds)
  return aggregator.UnweightedTimeVaryingGaussianFactory(
    privacy.calibrate(epsilon, delta, theta, rounds, sensitivity=rule.value),
    l2_norm_clip=l2_norm_clip,
  )


def central_noise(
  *,
  epsilon: float,
  delta: float,
  rounds: int,
  l2_norm_clip: float,
  clients_per_round: float,
  theta: float = 1.0,
  sampling_rate: float = 1.0,
) -> tff.aggregators.UnweightedAggregationFactory:
  """A trusted server adds noise to the sum of clipped updates (DP-FedAvg).

  It protects a user (add-or-remove-one) from whoever sees the models, in up to
  `rounds` rounds. TFF's `DifferentiallyPrivateFactory` with the query
  `GeometricGaussianSumQuery`; `state.aggregator.dp_event` is the round's event.

  Args:
    epsilon: The target, > 0.
    delta: In (0, 1).
    rounds: M >= 1.
    l2_norm_clip: C_u, the norm that an update is clipped to.
    clients_per_round: The fixed number that the noisy sum is divided by: the
      expected size of a cohort.
    theta: Ratio of the noise variances of successive rounds, > 0.
    sampling_rate: Below 1 only if each user takes part in each round with this
      probability, on its own, and who did stays a secret of the server.

  Returns:
    The aggregator, whose noise has the sensitivity C_u.

  Raises:
    ValueError: If an argument is out of range, or no noise meets the target:
      floating-point noise ends 12 standard deviations out.
  """
  clip = sensitivity.check_clip('l2_norm_clip', l2_norm_clip)
  rule = privacy.update_rule(clip, sensitivity.ADD_OR_REMOVE_ONE)
  _validate.rate('sampling_rate', sampling_rate)
  _validate.positive('clients_per_round', clients_per_round)
  secret = sampling_rate < 1
  multipliers = privacy.calibrate(
    epsilon,
    _accounted_delta(delta, epsilon, rounds),
    theta,
    rounds,
    accountant='rdp' if secret else 'exact',
    sampling='poisson' if secret else 'none',
    sampling_rate=sampling_rate,
  )
  query = sum_query.GeometricGaussianSumQuery(rule.value, multipliers)
  return tff.aggregators.DifferentiallyPrivateFactory(
    tfp.NormalizedQuery(query, clients_per_round),
    checked_mean.CheckedSumFactory(rule.value),
  )
