r"""Calibration: the noise schedule that delivers a target epsilon, and no more.

This replaces the paper's Theorem 1 (eq_DP noise), whose printed noise delivers
more than the epsilon that it is computed from. Without sampling there is a
closed form: sigma = Ds * z * sqrt(R(theta, M)) with z the exact noise
multiplier of one Gaussian release, whatever theta is. Otherwise the scale of
the whole series is found by a search that evaluates the schedule it returns.

The rules of `--calibration` are:

  printed  Theorem 1 as printed, unsound (`paper.theorem1_stddev`)
  tight    the paper's moment bound, solved exactly
           (`paper.tight_moment_stddev`)
  exact, rdp, pld   an accountant, without sampling (`calibrate`)

**Participations.** A client that takes part in the rounds P_k, with t releases
in each, spends

  sum_{m in P_k} t / z_{k,m}^2,  z_{k,m}^2 = (v_m / v_1) z_{k,1}^2

of the budget B = 1/z_eff^2, where z_eff is the noise multiplier of the single
Gaussian release that delivers (epsilon, delta). So each client can have the
z_{k,1} that spends its budget exactly and, after any change of plan, the one
that spends what is left (as in a refinement):

  z_{k,1}^2 = sum_{m in P_k, m > done} t (v_1 / v_m) / (B - spent_k)

No amplification is claimed: everyone is assumed to know who takes part when.

**Refinement** changes the number of rounds during training, within the same
budget: Section "Online Adjustment of DP Perturbation Noise Amplitude" and
Theorem 2 (eq_DP noise re) of the paper. The paper's proof charges the rounds
already released at the new noise although they used the old one, and its bound
on the rest is too small for theta < 1. The exact rule spends what is left of
the budget, no more, no less:

  sigma'^2 = sum_{n=m+1..M'} theta^(1-n) / (B - sum_{n<=m} 1/sigma_n^2)

with B the sum of 1/variance allowed in total. It uses the noise that past
rounds really had, and holds for every theta > 0, any number of refinements, and
M' above or below M. The number of rounds may depend on past outputs: a hard cap
on the sum of 1/variance is a valid privacy filter for Gaussian releases, so the
adaptive run has the guarantee of the planned one. The trigger must not look at
protected data again; it may use a public test set, or released models.
"""

import fractions
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import sparse

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space, accounting, gaussian, paper, schedule
from tvdp_tf.privacy import schedule as schedule_lib
from tvdp_tf.privacy import statement as statement_lib

# The delivered epsilon lies in [_LOWEST, 1] times the target; the search stops
# early in [_ENOUGH, 1].
_LOWEST = 0.99
_ENOUGH = 0.999
_MAX_STEPS = 200


class _Search:
  """Epsilon delivered as a function of ln of the first noise multiplier."""

  def __init__(self, shape, rounds, sensitivity, target, delta, account):
    self._shape = shape
    self._rounds = rounds
    self._sensitivity = sensitivity
    self._target = target
    self._delta = delta
    self._account = account

  def schedule(self, log_multiplier: float) -> schedule_lib.NoiseSchedule:
    stddev = _log_space.representable(
      'the noise standard deviation of round 1',
      log_multiplier + math.log(self._sensitivity),
    )
    return self._shape.schedule(self._rounds, stddev)

  def ratio(self, log_multiplier: float) -> float:
    """Delivered epsilon divided by target epsilon."""
    schedule = self.schedule(log_multiplier)
    return self._account(schedule.noise_multipliers(self._sensitivity)) / (
      self._target
    )

  def solve(self, start: float) -> float:
    """Returns ln of a first noise multiplier with a ratio in [_LOWEST, 1]."""
    low, high, at_low, at_high = self._bracket(start)
    for step in range(_MAX_STEPS):
      if _ENOUGH <= at_high <= 1 or high - low < 1e-13 * (1 + abs(high)):
        break
      middle = (low + high) / 2
      if step % 3 != 2 and at_low < math.inf and at_high > 0:
        # Secant in log-log, where epsilon is nearly a power of the noise.
        aim = math.log((1 + _ENOUGH) / 2)
        rise = math.log(at_low) - math.log(at_high)
        guess = low + (high - low) * (math.log(at_low) - aim) / rise
        middle = min(max(guess, low), high)
      ratio = self.ratio(middle)
      if ratio <= 1:
        high, at_high = middle, ratio
      else:
        low, at_low = middle, ratio
    if at_high < _LOWEST:
      raise ValueError(
        'epsilon must be within reach of the accountant, got'
        f' {self._target!r}: as the noise grows, the epsilon delivered jumps'
        f' from {at_low * self._target:.6g} to {at_high * self._target:.6g}'
      )
    return high

  def round_up(self, exact: float) -> float:
    """Returns ln of the first noise multiplier from its closed form `exact`."""
    start, nudge = exact, 1e-15
    while (ratio := self.ratio(start)) > 1:
      start += nudge
      nudge *= 2
    if ratio < _LOWEST:
      raise ValueError(
        'epsilon must be large enough for binary64 to tell it from 0, got'
        f' {self._target!r}'
      )
    return start

  def _bracket(self, start: float):
    """Returns (low, high, ratio at low > 1, ratio at high <= 1)."""
    at = self.ratio(start)
    if at > 1:
      low, at_low, width = start, at, 0.25
      while True:
        high = low + width
        try:
          at_high = self.ratio(high)
        except ValueError:
          if at_low < math.inf:
            raise
          raise ValueError(
            'delta must be within reach of the accountant, got'
            f' {self._delta!r}: no noise gives a finite epsilon'
          ) from None
        if at_high <= 1:
          return low, high, at_low, at_high
        low, at_low, width = high, at_high, 2 * width
    high, at_high, width = start, at, 0.25
    while True:
      low = high - width
      try:
        at_low = self.ratio(low)
      except ValueError:
        raise ValueError(
          'epsilon must be so small that it takes noise to reach it, got'
          f' {self._target!r}: at this delta and sampling rate even the least'
          f' noise delivers {at_high * self._target:.6g}'
        ) from None
      if at_low > 1:
        return low, high, at_low, at_high
      high, at_high, width = low, at_low, 2 * width


def _unsampled_start(
  epsilon: float, delta: float, shape: schedule_lib.NoiseShape, rounds: int
) -> float:
  """Returns ln of the first noise multiplier for unsampled releases."""
  start = math.log(gaussian.gaussian_noise_multiplier(epsilon, delta))
  return start + 0.5 * shape.log_precision_sum(rounds)


def calibrate_by(
  account: Callable[[np.ndarray], float],
  epsilon: float,
  delta: float,
  theta: float | schedule_lib.NoiseShape,
  rounds: int,
  sensitivity: float,
) -> schedule_lib.NoiseSchedule:
  """Like `calibrate`, but with any accounting function.

  Args:
    account: Returns the epsilon at `delta` of noise multipliers [rounds]. It
      must fall as they grow.
    epsilon: As for `calibrate`.
    delta: As for `calibrate`.
    theta: As for `calibrate`.
    rounds: As for `calibrate`.
    sensitivity: As for `calibrate`.

  Raises:
    ValueError: If an argument is out of range, or the target is out of reach.
  """
  epsilon = _validate.positive('epsilon', epsilon)
  delta = _validate.open_unit('delta', delta)
  shape = schedule_lib.as_shape(theta)
  rounds = _validate.integer('rounds', rounds)
  sensitivity = _validate.positive('sensitivity', sensitivity)
  search = _Search(shape, rounds, sensitivity, epsilon, delta, account)
  start = _unsampled_start(epsilon, delta, shape, rounds)
  return search.schedule(search.solve(start))


def calibrate(
  epsilon: float,
  delta: float,
  theta: float | schedule_lib.NoiseShape,
  rounds: int,
  sensitivity: float = 1.0,
  accountant: str = 'exact',
  sampling: str = 'none',
  sampling_rate: float = 1.0,
) -> schedule_lib.NoiseSchedule:
  """The schedule whose delivered epsilon is the target: 99 to 100 % of it.

  >>> schedule = calibrate(1.0, 1e-5, theta=0.9, rounds=30)
  >>> multipliers = schedule.noise_multipliers(1.0)
  >>> accounting.delivered_epsilon(multipliers, 1e-5, 'exact') <= 1.0
  True

  Args:
    epsilon: Target for all rounds together, > 0.
    delta: In (0, 1).
    theta: Ratio of the variances of successive rounds, > 0; or another shape
      of the noise.
    rounds: Number of rounds that the client takes part in (sampling `none`), or
      may take part in (otherwise).
    sensitivity: L2 sensitivity of one release.
    accountant: As for `accounting.delivered_epsilon`.
    sampling: As for `accounting.delivered_epsilon`.
    sampling_rate: q in (0, 1]; not used with sampling `none`.

  Returns:
    A schedule of that shape (a `GeometricSchedule` for a theta). Its standard
    deviations are in the unit of `sensitivity`.

  Raises:
    ValueError: If an argument is out of range; if the accountant is not sound
      for that sampling (`accounting.is_sound`), because noise is never
      calibrated to a mere claim; if there is no exact accountant for that
      sampling; or if the accountant cannot reach the target.
  """
  epsilon = _validate.positive('epsilon', epsilon)
  delta = _validate.open_unit('delta', delta)
  shape = schedule_lib.as_shape(theta)
  rounds = _validate.integer('rounds', rounds)
  sensitivity = _validate.positive('sensitivity', sensitivity)
  if accountant == 'moments' and not accounting.is_sound(
    accountant, sampling, sampling_rate
  ):
    raise ValueError(
      'accountant must be sound to calibrate noise with it, got'
      f" 'moments' with sampling_rate={sampling_rate!r}: the paper's moment"
      ' bound is false below 1'
    )

  def account(multipliers):
    return accounting.delivered_epsilon(
      multipliers, delta, accountant, sampling, sampling_rate
    )

  search = _Search(shape, rounds, sensitivity, epsilon, delta, account)
  start = _unsampled_start(epsilon, delta, shape, rounds)
  if accountant == 'exact' and (sampling == 'none' or sampling_rate == 1):
    return search.schedule(search.round_up(start))
  if accountant == 'pld' and sampling != 'none' and sampling_rate < 1:
    # Renyi accounting gives a close start cheaply.
    cheap = calibrate(
      *(epsilon, delta, theta, rounds, sensitivity),
      *('rdp', sampling, sampling_rate),
    )
    start = math.log(cheap.initial_stddev) - math.log(sensitivity)
  return search.schedule(search.solve(start))


# The rules for mechanisms with a guarantee: never calibrate to a mere claim.
ACCOUNTED = ('exact', 'rdp', 'pld')
CALIBRATIONS = ('printed', 'tight', *ACCOUNTED)

_ACCOUNTANTS = {
  'exact': 'exact Gaussian curve',
  'rdp': 'Renyi accountant',
  'pld': 'privacy loss distribution',
}


def soundness(
  calibration: str, *, epsilon: float, delta: float, sampling_rate: float
) -> tuple[bool, str]:
  """Whether an epsilon may rely on a rule, and why, in a few words.

  Args:
    calibration: One of `CALIBRATIONS`.
    epsilon: The target, > 0.
    delta: In (0, 1).
    sampling_rate: q in (0, 1].

  Raises:
    ValueError: If there is no such rule.
  """
  _validate.one_of('calibration', calibration, CALIBRATIONS)
  if calibration == 'printed':
    own = paper.moment_bound_epsilon(
      epsilon * epsilon / (2 * -math.log(delta)), delta
    )
    text = statement_lib.format_epsilon(own)
    return False, f'Theorem 1; its own moment bound gives epsilon {text}'
  if calibration == 'tight':
    if sampling_rate == 1:
      return True, 'moment bound, which holds for q = 1'
    return False, 'moment bound linear in q, which is false for q < 1'
  return True, _ACCOUNTANTS[calibration]


def schedule_for_every_round(
  calibration: str,
  *,
  epsilon: float,
  delta: float,
  theta: float | schedule_lib.NoiseShape,
  rounds: int,
  sampling_rate: float,
  sensitivity: float,
) -> schedule_lib.NoiseSchedule:
  """The noise that a rule sets for one release of a client, in every round.

  Args:
    calibration: One of `CALIBRATIONS`.
    epsilon: The target, > 0.
    delta: In (0, 1).
    theta: Ratio of the variances of successive rounds, > 0; or another shape
      of the noise, for the accountants: the paper's formulas need a theta.
    rounds: M. The accountants calibrate to a client that releases in every one
      of them: they give no credit for missed rounds.
    sampling_rate: q in (0, 1], for which the paper's two formulas reduce noise.
    sensitivity: L2 sensitivity of one release, > 0.

  Returns:
    The schedule, in the unit of `sensitivity`.

  Raises:
    ValueError: If an argument is out of range, or no noise meets the target.
  """
  _validate.one_of('calibration', calibration, CALIBRATIONS)
  _validate.rate('sampling_rate', sampling_rate)
  if calibration in ACCOUNTED:
    return calibrate(
      epsilon, delta, theta, rounds, sensitivity, accountant=calibration
    )
  if isinstance(theta, schedule_lib.NoiseShape):
    if not isinstance(theta, schedule_lib.GeometricShape):
      raise ValueError(
        f'calibration must be one of {", ".join(ACCOUNTED)} with a schedule'
        f' that is not geometric, got {calibration!r}'
      )
    theta = theta.theta
  formula = paper.tight_moment_stddev
  if calibration == 'printed':
    formula = paper.theorem1_stddev
  stddev = formula(theta, rounds, epsilon, delta, sampling_rate, sensitivity)
  return schedule_lib.GeometricSchedule(theta, rounds, stddev)


# However a sum of terms is rounded, it must not exceed the budget.
_MARGIN = 1e-10


# All plans that are compared have the same target.
@functools.lru_cache(maxsize=256, typed=True)
def equivalent_noise_multiplier(
  epsilon: float, delta: float, accountant: str = 'exact'
) -> float:
  """z_eff of the one unsampled Gaussian release that delivers the target.

  Args:
    epsilon: Target, > 0.
    delta: In (0, 1).
    accountant: As for `accounting.delivered_epsilon`.

  Raises:
    ValueError: If an argument is out of range.
  """
  return calibrate(epsilon, delta, 1.0, 1, accountant=accountant).initial_stddev


def initial_noise_multipliers(
  planned: np.ndarray | sparse.csr_array,
  theta: float | schedule.NoiseShape,
  releases_per_round: int,
  budget: float,
  spent: np.ndarray | float = 0.0,
  completed: int = 0,
) -> np.ndarray:
  """Returns z_{k,1} of every client.

  Args:
    planned: bool [clients, rounds], who is to take part in which round; sparse
      if there are many.
    theta: Ratio of the noise variances of successive rounds, > 0; or another
      shape of the noise.
    releases_per_round: t >= 1, number of releases of a client in a round.
    budget: B > 0: 1 / `equivalent_noise_multiplier`^2.
    spent: What each client has already spent of it, [clients].
    completed: The rounds 1..completed are over.

  Returns:
    float64 [clients]; inf for a client without a future round or without
    budget left: it must not take part.

  Raises:
    ValueError: If an argument is out of range or a result is not representable.
  """
  shape = schedule.as_shape(theta)
  releases_per_round = _validate.integer(
    'releases_per_round', releases_per_round
  )
  budget = _validate.positive('budget', budget)
  clients, rounds = planned.shape
  completed = _validate.integer('completed', completed, 0, rounds)
  left = budget - np.broadcast_to(np.asarray(spent, np.float64), [clients])
  # Relative to the largest term of each client, so that no power overflows.
  exponents = -shape.log_variances(rounds)[completed:]
  future = sparse.csr_array(planned)[:, completed:]
  future.eliminate_zeros()
  ends = future.indptr
  taking_part = (np.diff(ends) > 0) & (left > 0)
  result = np.full([clients], np.inf)
  for client in np.flatnonzero(taking_part):
    own = exponents[future.indices[ends[client] : ends[client + 1]]]
    log_sum = own.max() + np.log(np.sum(np.exp(own - own.max())))
    log_square = log_sum + np.log(releases_per_round / left[client])
    with np.errstate(over='ignore'):
      result[client] = np.exp(log_square / 2) * (1 + _MARGIN)
  wrong = taking_part & ~((result > 1e-300) & (result < 1e300))
  if wrong.any():
    raise ValueError(
      f'{shape.setting} must leave the noise of round 1 representable, got'
      f' {shape} over {rounds} rounds'
    )
  return result


def without_lost_round(
  initial: np.ndarray,
  planned: np.ndarray | sparse.csr_array,
  theta: float | schedule.NoiseShape,
  completed: int,
) -> np.ndarray:
  """Leaves a lost round out, if its repetition costs more than it is worth.

  After an interruption, the clients of the next round may have spent most of
  their budget on it already. If they take part in no other round, and all
  clients share the noise, then a repetition raises the noise of all rounds. Its
  worth is measured by the sum of 1/z^2 over the rounds to come.

  Args:
    initial: z_{k,1} of every client, from `initial_noise_multipliers`.
    planned: As there, like the other arguments.
    theta: As there.
    completed: The rounds 1..completed are over.

  Returns:
    `initial`, with inf for the clients of the next round if it is left out.
  """
  shape = schedule.as_shape(theta)
  clients, rounds = planned.shape
  future = sparse.csr_array(planned)[:, completed:]
  later = np.asarray(future[:, 1:].sum(axis=1)).reshape(clients) > 0
  lost = np.asarray(future[:, :1].sum(axis=1)).reshape(clients) > 0
  z = np.where(np.isfinite(initial), initial, 0.0)
  z_all, z_later = z.max(initial=0.0), z[later].max(initial=0.0)
  if z_later == 0 or (later & lost).any():
    return initial
  exponents = -shape.log_variances(rounds)[completed:]
  worth = np.exp(exponents - exponents.max())
  with np.errstate(over='ignore'):
    gain = (z_all / z_later) ** 2
  if worth[1:].sum() * gain <= worth.sum():
    return initial
  return np.where(later, initial, np.inf)


def new_maximum_rounds(alpha_d: Any, rounds: int) -> int:
  """Returns M' = ceil(alpha_d * M), in exact arithmetic.

  In binary64, 0.55 * 100 is above 55, and its ceiling is 56. `alpha_d` is read
  as the decimal number that it prints as.

  >>> new_maximum_rounds(0.55, 100), new_maximum_rounds('9/10', 27)
  (55, 25)

  Args:
    alpha_d: In (0, 1]: a float, a string, a Decimal or a Fraction.
    rounds: The *current* maximum number of rounds M. With the original one, a
      second refinement would change nothing.

  Returns:
    The new maximum, at least 1 and at most `rounds`.

  Raises:
    ValueError: If an argument is out of range.
  """
  rounds = _validate.integer('rounds', rounds)
  try:
    exact = fractions.Fraction(str(alpha_d))
  except (ValueError, ZeroDivisionError):
    exact = fractions.Fraction(0)
  if not 0 < exact <= 1 or isinstance(alpha_d, bool):
    raise ValueError(f'alpha_d must be a number in (0, 1], got {alpha_d!r}')
  return math.ceil(exact * rounds)


def refine_stddev(
  theta: float,
  past_stddevs: Iterable[float] | np.ndarray,
  new_rounds: int,
  budget: float,
) -> float:
  """Returns the sigma' with which future rounds spend what is left.

  Round n = m+1..M' then gets the noise of
  `GeometricSchedule(theta, new_rounds, sigma').stddev(n)`: the exponent keeps
  counting from round 1. A later call, with the noise that the rounds before it
  really had, is exact again.

  >>> budget = 30.0  # thirty rounds of unit noise
  >>> round(refine_stddev(1.0, [1.0] * 10, 24, budget) ** 2, 12)
  0.7

  Args:
    theta: Ratio of the variances of successive rounds, > 0.
    past_stddevs: Noise standard deviations of rounds 1..m as released, [m]; any
      series, which may be empty.
    new_rounds: New maximum number of rounds M', > m.
    budget: B, the allowed sum of 1/variance over all rounds:
      1 / (sensitivity * gaussian_noise_multiplier(epsilon, delta))^2, or
      `precision()` of the calibrated schedule.

  Returns:
    sigma', the standard deviation that round 1 would have had, rounded up by a
    few units in the last place so that rounding does not overspend.

  Raises:
    ValueError: If M' <= m, so that no round is left and training stops here; if
      the budget is spent; or if an argument is out of range.
  """
  theta = _validate.positive('theta', theta)
  new_rounds = _validate.integer('new_rounds', new_rounds)
  budget = _validate.positive('budget', budget)
  past = [
    _validate.positive(f'past_stddevs of round {n}', stddev)
    for n, stddev in enumerate(past_stddevs, start=1)
  ]
  done = len(past)
  if new_rounds <= done:
    raise ValueError(
      f'new_rounds must exceed the {done} rounds already released, got'
      f' {new_rounds}: no release is left, training stops'
    )
  spent = math.fsum((1 / stddev) / stddev for stddev in past)
  left = math.nextafter(budget - _log_space.round_up(spent), 0)
  if not left > 0:
    raise ValueError(
      f'budget must exceed the {spent:.17g} already spent by {done} rounds, got'
      f' {budget!r}: no release is left, training stops'
    )
  # sum_{n=m+1..M'} theta^(1-n) = theta^(-m) R(theta, M' - m)
  log_future = _log_space.log_precision_sum(theta, new_rounds - done)
  log_future -= done * math.log(theta)
  stddev = _log_space.representable(
    "the refined noise standard deviation sigma'",
    0.5 * (log_future - math.log(left)),
  )
  # exp and log with an exponent of size e lose e units in the last place.
  return _log_space.round_up(stddev, 16 + 2 * int(abs(log_future)))
