"""The paper's noise formulas as printed, and what their proofs support.

  Theorem 1 (eq_DP noise):
    sigma = Ds/eps sqrt(2 q R ln(1/delta)),  R = (th - th^(1-M))/(th - 1)
  Theorem 2 (eq_DP noise re): sigma' after m rounds, for M' rounds in all.
  Moment bound (eq-bound): alpha(lambda) <= x lambda (lambda + 1) / 2 with
    x = q sum_m (Ds/sigma_m)^2.

The following are UNSOUND, and kept to reproduce the paper:

* The proof of Theorem 1 derives a necessary condition and prints it as
  sufficient. Under the paper's own moment bound the printed sigma delivers
  exactly eps (1 + eps / (4 ln(1/delta))) > eps at delta. `tight_moment_stddev`
  solves that bound with equality instead.
* The moment bound itself, linear in the sampling rate q, is false for q < 1 at
  any lambda > 0 when the server sees who takes part, and for large lambda even
  when it does not. With q = 1 it is the exact moment of the Gaussian mechanism,
  and sound.
* For theta < 1 the proof of Theorem 2 bounds a sum by something smaller, and
  the result spends more than the budget (1.52 times as much for theta = 0.9,
  M = 30, m = 10, M' = 24). For theta > 1 it spends less than allowed, and
  usually raises the noise it is meant to reduce. `calibration.refine_stddev` is
  exact.

Everything is computed in log space: R alone overflows binary64 for theta = 0.5
from M = 1024 on, while the noise of the last round is an ordinary number.
"""

import math

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space


def _log_unit_stddev(
  epsilon: float, delta: float, sampling_rate: float, sensitivity: float
) -> float:
  """Returns ln of Ds/eps sqrt(2 q ln(1/delta)), the printed sigma at R = 1."""
  epsilon = _validate.positive('epsilon', epsilon)
  delta = _validate.open_unit('delta', delta)
  sampling_rate = _validate.rate('sampling_rate', sampling_rate)
  sensitivity = _validate.positive('sensitivity', sensitivity)
  return (
    math.log(sensitivity)
    - math.log(epsilon)
    + 0.5 * (math.log(2 * sampling_rate) + math.log(-math.log(delta)))
  )


def theorem1_log_stddev(
  theta: float,
  rounds: int,
  epsilon: float,
  delta: float,
  sampling_rate: float,
  sensitivity: float,
  round: int = 1,
) -> float:
  """Natural logarithm of `theorem1_stddev`, for the noise of any round.

  UNSOUND, like `theorem1_stddev`. For theta < 1 and thousands of rounds, the
  noise of the first round is out of the range of binary64, although that of
  later rounds is not.
  """
  theta = _validate.positive('theta', theta)
  rounds = _validate.integer('rounds', rounds)
  round = _validate.integer('round', round, 1, rounds)
  return (
    _log_unit_stddev(epsilon, delta, sampling_rate, sensitivity)
    + 0.5 * _log_space.log_precision_sum(theta, rounds)
    + 0.5 * (round - 1) * math.log(theta)
  )


def theorem1_stddev(
  theta: float,
  rounds: int,
  epsilon: float,
  delta: float,
  sampling_rate: float,
  sensitivity: float,
) -> float:
  """Theorem 1 as printed: the noise of the first round. UNSOUND.

  sigma = Ds/eps sqrt(2 q R(theta, M) ln(1/delta)). The noise is too small:
  under the paper's own moment bound it delivers eps (1 + eps/(4 ln(1/delta))),
  and that bound is itself false for sampling_rate < 1. Report what
  `accounting.delivered_epsilon` says, never the epsilon given here.

  >>> round(theorem1_stddev(1.0, 30, 10.0, 1e-3, 0.1, 1 / 60), 6)
  0.01073

  Args:
    theta: Ratio of the variances of successive rounds, > 0.
    rounds: Number of rounds M.
    epsilon: The epsilon that the paper claims for all rounds together.
    delta: The delta that the paper claims, in (0, 1).
    sampling_rate: Fraction q = K/U of the users in a round, in (0, 1].
    sensitivity: L2 sensitivity Ds of one upload.

  Returns:
    Standard deviation of the noise of round 1, in the unit of `sensitivity`.

  Raises:
    ValueError: If an argument is out of range, or the result is not
      representable (see `theorem1_log_stddev`).
  """
  return _log_space.representable(
    'the noise standard deviation of round 1',
    theorem1_log_stddev(
      theta, rounds, epsilon, delta, sampling_rate, sensitivity
    ),
  )


def tight_moment_stddev(
  theta: float,
  rounds: int,
  epsilon: float,
  delta: float,
  sampling_rate: float,
  sensitivity: float,
) -> float:
  """The noise that meets (epsilon, delta) under the paper's moment bound.

  It solves x/2 + sqrt(2 x ln(1/delta)) = eps with equality:

    sigma = Ds/eps sqrt(q R / 2) (sqrt(ln(1/delta) + eps) + sqrt(ln(1/delta)))

  This repairs the proof of Theorem 1 but still relies on the moment bound that
  is linear in q. It is a guarantee for sampling_rate = 1, and UNSOUND below 1.

  Args:
    theta: Ratio of the variances of successive rounds, > 0.
    rounds: Number of rounds M.
    epsilon: Target for all rounds together.
    delta: In (0, 1).
    sampling_rate: Fraction q of the users in a round, in (0, 1].
    sensitivity: L2 sensitivity Ds of one upload.

  Returns:
    Standard deviation of the noise of round 1, in the unit of `sensitivity`.

  Raises:
    ValueError: If an argument is out of range, or the result is not
      representable.
  """
  log_printed = theorem1_log_stddev(
    theta, rounds, epsilon, delta, sampling_rate, sensitivity
  )
  ratio = (1 + math.sqrt(1 + epsilon / -math.log(delta))) / 2
  return _log_space.representable(
    'the noise standard deviation of round 1', log_printed + math.log(ratio)
  )


def theorem2_stddev(
  theta: float,
  round: int,
  new_rounds: int,
  epsilon: float,
  delta: float,
  sampling_rate: float,
  sensitivity: float,
) -> float:
  """Theorem 2 as printed: sigma' of rounds m+1 to M'. UNSOUND.

  sigma' = Ds/eps sqrt(2 q P ln(1/delta)) with P printed case by case:
  R(theta, m) + M' - m for theta > 1, M' for theta = 1, and
  R(theta, m) + theta^(m-M')/(1-theta) for theta < 1. For theta < 1 this
  overspends the budget, and P is discontinuous: it goes to infinity as theta
  tends to 1 from below. Round n > m then gets noise theta^((n-1)/2) sigma'.

  Args:
    theta: Ratio of the variances of successive rounds, > 0.
    round: Number m of rounds already released, >= 1.
    new_rounds: New maximum number of rounds M', > m.
    epsilon: The epsilon that the paper claims.
    delta: The delta that the paper claims, in (0, 1).
    sampling_rate: Fraction q of the users in a round, in (0, 1].
    sensitivity: L2 sensitivity Ds of one upload.

  Returns:
    sigma', the noise standard deviation that round 1 would have had.

  Raises:
    ValueError: If an argument is out of range, or the result is not
      representable.
  """
  theta = _validate.positive('theta', theta)
  round = _validate.integer('round', round)
  new_rounds = _validate.integer('new_rounds', new_rounds, round + 1)
  left = new_rounds - round
  if theta == 1:
    log_bracket = math.log(new_rounds)
  else:
    log_past = _log_space.log_precision_sum(theta, round)
    log_future = (
      math.log(left)
      if theta > 1
      else -left * math.log(theta) - math.log1p(-theta)
    )
    high, low = max(log_past, log_future), min(log_past, log_future)
    log_bracket = high + math.log1p(math.exp(low - high))
  return _log_space.representable(
    "the noise standard deviation sigma'",
    _log_unit_stddev(epsilon, delta, sampling_rate, sensitivity)
    + 0.5 * log_bracket,
  )


def moment_bound_epsilon(moment: float, delta: float) -> float:
  """The epsilon at `delta` of the paper's moment bound (eq_tail_bound).

  It is the minimum over lambda > 0 of x (lambda + 1)/2 + ln(1/delta)/lambda, in
  closed form x/2 + sqrt(2 x ln(1/delta)).

  Args:
    moment: x = q sum_m (Ds/sigma_m)^2 >= 0; inf gives inf.
    delta: In (0, 1).

  Returns:
    The epsilon. Sound for q = 1; for q < 1 the bound is false.
  """
  delta = _validate.open_unit('delta', delta)
  if moment != math.inf:
    moment = _validate.non_negative('moment', moment)
  return moment / 2 + math.sqrt(2 * moment) * math.sqrt(-math.log(delta))


def moment_bound_delta(moment: float, epsilon: float) -> float:
  """The delta at `epsilon` of the paper's moment bound, at most 1.

  It is exp(-(eps - x/2)^2 / (2 x)) if the optimal lambda = eps/x - 1/2 is
  positive, otherwise 1. Sound for q = 1; for q < 1 the bound is false.
  """
  moment = _validate.positive('moment', moment)
  epsilon = _validate.positive('epsilon', epsilon)
  if epsilon <= moment / 2:
    return 1.0
  return math.exp(-((epsilon - moment / 2) ** 2) / (2 * moment))
