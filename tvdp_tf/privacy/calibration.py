"""Noise for a target: the schedule that delivers epsilon, and no more.

Replaces the paper's Theorem 1 (eq_DP noise), whose printed noise delivers more
than the epsilon that it is computed from. Without sampling the answer is a
closed form: sigma = Ds * z * sqrt(R(theta, M)) with z the exact noise
multiplier of one Gaussian release, whatever theta is. Otherwise the scale of
the whole series is searched for, on the very schedule that is returned.
"""

import math
from collections.abc import Callable

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import (
  _rounding,
  accounting,
  gaussian,
)
from tvdp_tf.privacy import schedule as schedule_lib

# What is delivered lies in [_LOWEST, 1] times the target; the search stops
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
    stddev = _rounding.representable(
      'the noise standard deviation of round 1',
      log_multiplier + math.log(self._sensitivity),
    )
    return self._shape.schedule(self._rounds, stddev)

  def ratio(self, log_multiplier: float) -> float:
    """Delivered over target epsilon."""
    schedule = self.schedule(log_multiplier)
    return self._account(schedule.noise_multipliers(self._sensitivity)) / (
      self._target
    )

  def solve(self, start: float) -> float:
    """Ln of a first noise multiplier with a ratio in [_LOWEST, 1]."""
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
    """Ln of the first noise multiplier from its closed form."""
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
    """(low, high, ratio at low > 1, ratio at high <= 1)."""
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
          f'epsilon must be below what no noise delivers, got {self._target!r}:'
          ' at this delta and sampling rate even the least noise delivers'
          f' {at_high * self._target:.6g}'
        ) from None
      if at_low > 1:
        return low, high, at_low, at_high
      high, at_high, width = low, at_low, 2 * width


def _unsampled_start(
  epsilon: float, delta: float, shape: schedule_lib.NoiseShape, rounds: int
) -> float:
  """Ln of the first noise multiplier of unsampled releases."""
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
  """Like `calibrate`, by any accounting.

  Args:
    account: The epsilon at `delta` of noise multipliers [rounds]; it falls as
      they grow.
    epsilon: As of `calibrate`.
    delta: The same.
    theta: The same.
    rounds: The same.
    sensitivity: The same.

  Raises:
    ValueError: If an argument is out of range, or the target out of reach.
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
    sampling_rate: q in (0, 1]; plays no part with sampling `none`.

  Returns:
    A schedule of that shape, a `GeometricSchedule` for a theta; its standard
    deviations are in the unit of `sensitivity`.

  Raises:
    ValueError: If an argument is out of range; if the accountant is not sound
      for that sampling (`accounting.is_sound`): noise is never calibrated to a
      claim; if there is no exact accountant for it; or if the target is out of
      the accountant's reach.
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
    # Renyi accounting is cheap, and close.
    cheap = calibrate(
      *(epsilon, delta, theta, rounds, sensitivity),
      *('rdp', sampling, sampling_rate),
    )
    start = math.log(cheap.initial_stddev) - math.log(sensitivity)
  return search.schedule(search.solve(start))
