r"""Theorem 3 and Corollary 1: the convergence bound, printed and corrected.

  F(w(M)) - F* <= A^M Theta + noise + drift,  A = 1 + 2 rho phi

With R and S the sums of `_series`, k = q L Ds^2 ln(1/delta) / eps^2, and the
noise of Theorem 1:

  printed    noise = k (theta - 1) S R / (U - 1)
  corrected  noise = k d sum_k p_k^2 S R

The printed U - 1 (eq_convergnece_bound) is a slip for theta - 1, which cancels
the quotient in R: as printed the noise costs nothing at theta = 1 and helps
below. The factor d sum p_k^2, the number of parameters over the number of
users, is missing: E||sum p_k n_k||^2 = d sigma^2 sum p_k^2.

A is `descent.contraction`. The drift L_c H(tau) of Corollary 1 (`single`)
assumes a reference that is never reset; with one that is reset every round it
accumulates to L_c H(tau) (1 - A^M) / (1 - A).

The corrected form keeps the paper's noise calibration, which is itself unsound,
and the paper's gap between one step and tau steps. `sound_bound` has neither.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tvdp_tf import _validate
from tvdp_tf.privacy import _rounding, _series, descent
from tvdp_tf.privacy import drift as drift_lib

FORMS = descent.FORMS
DRIFTS = ('none', 'single', 'accumulated')


@dataclasses.dataclass(frozen=True)
class ConvergenceSetting:
  """What the bound depends on besides the number of rounds.

  Attributes:
    contraction: A in (0, 1), see `contraction`.
    initial_gap: Theta = F(w(0)) - F*, > 0.
    theta: Ratio of the variances of successive rounds, > 0.
    smoothness: L > 0.
    sensitivity: L2 sensitivity Ds of one upload, > 0.
    epsilon: The epsilon that Theorem 1 claims for its noise, > 0.
    delta: The delta that it claims, in (0, 1).
    sampling_rate: q in (0, 1].
    users: U >= 2; the printed form needs it.
    dimension: d, number of model parameters; the corrected form needs it.
    sum_squared_weights: sum of p_k^2 over the users of a round, in (0, 1], 1/K
      for equal weights; the corrected form needs it.
    lipschitz: L_c > 0; `drift` and a fixed number of steps need it, as the
      following two.
    gradient_divergence: gamma >= 0.
    learning_rate: eta > 0.

  Raises:
    ValueError: If an attribute that is given is out of range.
  """

  contraction: float
  initial_gap: float
  theta: float
  smoothness: float
  sensitivity: float
  epsilon: float
  delta: float
  sampling_rate: float = 1.0
  users: int | None = None
  dimension: int | None = None
  sum_squared_weights: float | None = None
  lipschitz: float | None = None
  gradient_divergence: float | None = None
  learning_rate: float | None = None

  def __post_init__(self):
    checks: dict[str, Callable[[str, Any], float]] = {
      'contraction': _validate.open_unit,
      'initial_gap': _validate.positive,
      'theta': _validate.positive,
      'smoothness': _validate.positive,
      'sensitivity': _validate.positive,
      'epsilon': _validate.positive,
      'delta': _validate.open_unit,
      'sampling_rate': _validate.rate,
      'users': lambda name, value: _validate.integer(name, value, 2),
      'dimension': _validate.integer,
      'sum_squared_weights': _validate.rate,
      'lipschitz': _validate.positive,
      'gradient_divergence': _validate.non_negative,
      'learning_rate': _validate.positive,
    }
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value is not None or field.default is not None:
        object.__setattr__(
          self, field.name, checks[field.name](field.name, value)
        )

  def required(self, name: str, purpose: str) -> float:
    """The value of an optional attribute, or one clear error."""
    value = getattr(self, name)
    if value is None:
      raise ValueError(f'{name} must be given for {purpose}, got None')
    return value

  def noise_coefficient(self, form: str) -> float:
    """The factor of S R in the noise term; negative if printed, theta < 1."""
    _validate.one_of('form', form, FORMS)
    scale = self.sensitivity / self.epsilon
    common = (self.sampling_rate * self.smoothness * scale * scale) * -math.log(
      self.delta
    )
    if form == 'printed':
      users = self.required('users', "form 'printed'")
      return common * (self.theta - 1) / (users - 1)
    dimension = self.required('dimension', "form 'corrected'")
    weights = self.required('sum_squared_weights', "form 'corrected'")
    return common * dimension * weights

  def drift(self, local_steps: float) -> float:
    """L_c H(local_steps)."""
    purpose = 'a bound with drift'
    return self.required('lipschitz', purpose) * drift_lib.divergence_gap(
      local_steps,
      self.required('gradient_divergence', purpose),
      self.required('learning_rate', purpose),
      self.smoothness,
    )


@dataclasses.dataclass(frozen=True)
class BoundTerms:
  """The bound of F(w(M)) - F*, term by term.

  Attributes:
    decay: A^M Theta, what is left of the initial gap.
    noise: What the noise adds; as printed, negative for theta < 1.
    drift: What the local steps add.
  """

  decay: float
  noise: float
  drift: float

  @property
  def total(self) -> float:
    """The bound."""
    return self.decay + self.noise + self.drift


def convergence_terms(
  setting: ConvergenceSetting,
  rounds: float,
  form: str = 'corrected',
  drift: str = 'none',
  local_steps: float | None = None,
) -> BoundTerms:
  """The terms of `convergence_bound`, same arguments."""
  rounds = _validate.positive('rounds', rounds)
  _validate.one_of('drift', drift, DRIFTS)
  log_a = math.log(setting.contraction)
  sums = _rounding.exp_or_inf(
    _series.log_noise_sum(setting.theta, setting.contraction, rounds)
    + _series.log_precision_sum(setting.theta, rounds)
  )
  coefficient = setting.noise_coefficient(form)
  gap = 0.0
  if drift != 'none':
    if local_steps is None:
      raise ValueError(f"local_steps must be given for drift '{drift}'")
    gap = setting.drift(local_steps)
    if drift == 'accumulated':
      gap *= math.expm1(rounds * log_a) / (setting.contraction - 1)
  return BoundTerms(
    decay=math.exp(rounds * log_a) * setting.initial_gap,
    # As printed nothing is added at theta = 1, even where the sums overflow.
    noise=coefficient * sums if coefficient else 0.0,
    drift=gap,
  )


def convergence_bound(
  setting: ConvergenceSetting,
  rounds: float,
  form: str = 'corrected',
  drift: str = 'none',
  local_steps: float | None = None,
) -> float:
  """The bound of F(w(M)) - F* after M rounds.

  Args:
    setting: Everything but the number of rounds.
    rounds: M > 0, real: the planner minimises over it.
    form: 'corrected', or 'printed' as in the paper.
    drift: 'none' (Theorem 3), 'single' (L_c H(tau), Corollary 1) or
      'accumulated' (reference reset every round).
    local_steps: tau >= 0 for the drift.

  Returns:
    The sum of the decay, the noise and the drift; inf where it overflows.

  Raises:
    ValueError: If an argument is out of range or the setting lacks one that the
      form needs.
  """
  return convergence_terms(setting, rounds, form, drift, local_steps).total
