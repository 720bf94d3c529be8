"""Aggregators for TFF's algorithms whose clip and noise come from one budget.

A schedule that is calibrated for one clip but used with another breaks the
guarantee. Here one call sets both, so that they always agree.
"""

import tensorflow_federated as tff
import tensorflow_privacy as tfp

from tvdp_tf import _validate, privacy
from tvdp_tf.federated import aggregator, checked_mean, sum_query
from tvdp_tf.privacy import noise_distance, sensitivity

# More weights than any model has. The delta that the tail of the noise costs is
# computed for this number of values in a round.
_MOST_VALUES = 2**40
# Calibration holds the noise of every round in memory.
_MOST_ROUNDS = 10**6
# The graph computes the noise of a round to about 1e-13 of that calibrated.
_MARGIN = 1 - 1e-11


def _accounted_delta(delta: float, epsilon: float, rounds: int) -> float:
  """The delta that the tail of the noise leaves for the accountant."""
  values = _validate.integer('rounds', rounds, 1, _MOST_ROUNDS) * _MOST_VALUES
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
  """Local DP: every client clips its update and adds noise to it.

  Use it as the `model_aggregator` of TFF's algorithms, such as
  `tff.learning.algorithms.build_unweighted_fed_avg`. It protects a user
  (replace-one) from everyone, including the server, for up to `rounds` rounds;
  the user may take part in all of them. This makes no assumption about who
  takes part in which round. Additional rounds are an error. The state counts
  the rounds, so a program that continues from an older state releases rounds
  that are not counted. In such a program, use a `Budget` (docs/DROP_IN.md, "A
  state that is used twice").

  Args:
    epsilon: The target, > 0.
    delta: In (0, 1).
    rounds: M, at most 10^6.
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
    privacy.calibrate(
      epsilon * _MARGIN, delta, theta, rounds, sensitivity=rule.value
    ),
    l2_norm_clip=clip,
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

  It protects a user (add-or-remove-one) from everyone who sees the models, for
  up to `rounds` rounds. The aggregator is TFF's `DifferentiallyPrivateFactory`
  with the query `GeometricGaussianSumQuery`; `state.aggregator.dp_event` is the
  event of the round.

  Args:
    epsilon: The target, > 0.
    delta: In (0, 1).
    rounds: M, at most 10^6.
    l2_norm_clip: C_u, the norm that an update is clipped to.
    clients_per_round: The fixed divisor of the noisy sum: the expected size of
      a cohort.
    theta: Ratio of the noise variances of successive rounds, > 0.
    sampling_rate: May be below 1 only if each user takes part in each round
      independently with this probability, and the server keeps the participants
      secret.

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
    epsilon * _MARGIN,
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
