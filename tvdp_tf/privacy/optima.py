r"""The number of rounds and the theta that minimize the convergence bound.

The paper's Corollary 2 claims that the bound is convex in M; it is not.
However, with tau fixed, the corrected bound G(M) = A^M Theta + k S R is
strictly quasi-convex for every theta > 0, because

  G'(M) / A^M = Theta ln A
    + k theta [ln th/(th-1)] [v/(th-A)] [(e^(Mv) - 1)/v + (1 - th^-M)/ln th]

with v = ln(theta/A) is strictly increasing from a negative value. So there is
one minimizer, found by bisection on this form, in which nothing cancels. The
printed objective (eq_op_upper) has k (theta - 1)/(U - 1) instead of k. It has
one minimizer for theta > 1. Otherwise it has none, and decreases forever.

With T = M tau fixed, the drift depends on M and no such theorem holds, so every
M = 1..T is tried. The paper solves its printed first-order condition
(eq: First-order derivative) instead, which is the derivative of no objective.

The following is not in the paper. Among all series of variances with the budget
B = sum 1/variance, the one that minimizes the last iterate's noise is geometric
with theta = sqrt(A). The best number of rounds then has a closed form
(`optimal_plan`).
"""

import dataclasses
import math
from collections.abc import Callable

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space, convergence


@dataclasses.dataclass(frozen=True)
class OptimalRounds:
  """The number of rounds at which the bound is smallest.

  Attributes:
    real: M*, the stationary point among the real numbers.
    rounds: The best integer number of rounds, >= 1.
    bound: The bound at `real`.
    is_minimum: False for the root of the paper's printed condition for fixed T,
      which minimizes nothing; `rounds` is then the nearest integer.
  """

  real: float
  rounds: int
  bound: float
  is_minimum: bool = True


def _mean_power(log_ratio: float, rounds: float) -> float:
  """Integral of e^(x log_ratio) for x from 0 to `rounds`; inf on overflow."""
  if abs(log_ratio) < 1e-300:
    return rounds
  try:
    return math.expm1(rounds * log_ratio) / log_ratio
  except OverflowError:
    return math.inf


def _slope_factor(log_ratio: float) -> float:
  """Returns log_ratio / expm1(log_ratio), which is 1 at 0."""
  return log_ratio / math.expm1(log_ratio) if log_ratio else 1.0


def _noise_slope(setting: convergence.ConvergenceSetting) -> float:
  """The constant factor theta [ln theta/(theta-1)] [v/(theta-A)]."""
  log_theta = math.log(setting.theta)
  v = log_theta - math.log(setting.contraction)
  bracket = _slope_factor(log_theta) * _slope_factor(v)
  return setting.theta * bracket / setting.contraction


def bound_derivative(
  setting: convergence.ConvergenceSetting,
  rounds: float,
  form: str = 'corrected',
  total_steps: float | None = None,
) -> float:
  """The derivative of the bound with respect to the number of rounds M.

  Args:
    setting: Everything but the number of rounds.
    rounds: M > 0.
    form: 'corrected', or 'printed' as in eq: First-order derivative.
    total_steps: None if tau is fixed; otherwise T, and L_c dH(T/M)/dM is added
      in the same form.

  Returns:
    dG/dM. At theta = A, where the printed quotient is 0/0, it is the limit.

  Raises:
    ValueError: If an argument is out of range, or missing in the setting.
  """
  rounds = _validate.positive('rounds', rounds)
  log_a, log_theta = math.log(setting.contraction), math.log(setting.theta)
  v = log_theta - log_a

  def mean_power(log_ratio: float) -> float:
    # A^M times `_mean_power`: either factor alone may overflow.
    scale = _log_space.exp_or_inf(rounds * (log_a + max(log_ratio, 0.0)))
    return scale * _mean_power(-abs(log_ratio), rounds)

  decay = setting.initial_gap * math.exp(rounds * log_a) * log_a
  noise = setting.noise_coefficient(form) * _noise_slope(setting)
  total = decay + noise * (mean_power(v) + mean_power(-log_theta))
  if total_steps is not None:
    purpose = 'a fixed number of steps'
    total += setting.required(
      'lipschitz', purpose
    ) * convergence.divergence_gap_derivative(
      total_steps,
      rounds,
      setting.required('gradient_divergence', purpose),
      setting.required('learning_rate', purpose),
      setting.smoothness,
      form,
    )
  return total


def _bisect(rises: Callable[[float], float], low: float, high: float) -> float:
  """Returns the root of a function negative at `low`, positive at `high`."""
  for _ in range(200):
    middle = (low + high) / 2
    if not low < middle < high:
      break
    if rises(middle) < 0:
      low = middle
    else:
      high = middle
  return (low + high) / 2


def _stationary_rounds(
  setting: convergence.ConvergenceSetting, form: str
) -> float:
  """The one root of the derivative at fixed tau."""
  coefficient = setting.noise_coefficient(form)
  if coefficient <= 0:
    raise ValueError(
      "theta must be > 1 for form 'printed', got"
      f' {setting.theta!r}: the printed bound decreases in M forever and has no'
      ' minimum'
    )
  log_theta = math.log(setting.theta)
  log_a = math.log(setting.contraction)
  v = log_theta - log_a
  target = setting.initial_gap * -log_a / (coefficient * _noise_slope(setting))

  def excess(rounds: float) -> float:
    return _mean_power(v, rounds) + _mean_power(-log_theta, rounds) - target

  high = 1.0
  while excess(high) < 0:
    high *= 2
  return _bisect(excess, 0.0, high)


def _best_integer(real: float, bound: Callable[[float], float]) -> int:
  below = max(1, math.floor(real))
  return min((below, below + 1), key=bound)


def _with_fixed_steps(
  setting: convergence.ConvergenceSetting, total_steps: int
) -> OptimalRounds:
  def bound(rounds: float) -> float:
    return convergence.convergence_bound(
      setting,
      rounds,
      drift='single',
      local_steps=total_steps / rounds,
    )

  def slope(rounds: float) -> float:
    return bound_derivative(setting, rounds, total_steps=total_steps)

  best = min(range(1, total_steps + 1), key=bound)
  low, high = max(1, best - 1), min(total_steps, best + 1)
  real = float(best)
  if low < high and slope(low) < 0 < slope(high):
    real = _bisect(slope, low, high)
  return OptimalRounds(real, best, bound(real))


def _printed_condition(
  setting: convergence.ConvergenceSetting, total_steps: int
) -> OptimalRounds:
  def slope(rounds: float) -> float:
    return bound_derivative(setting, rounds, 'printed', total_steps)

  if not slope(1) < 0 < slope(total_steps):
    raise ValueError(
      'theta must be such that the printed condition changes sign in [1, T] for'
      f" form 'printed' with total_steps, got {setting.theta!r}"
    )
  root = _bisect(slope, 1.0, float(total_steps))
  value = convergence.convergence_bound(
    setting, root, 'printed', 'single', total_steps / root
  )
  return OptimalRounds(root, max(1, round(root)), value, is_minimum=False)


def optimal_rounds(
  setting: convergence.ConvergenceSetting,
  form: str = 'corrected',
  total_steps: int | None = None,
) -> OptimalRounds:
  """The number of rounds M* that minimizes the convergence bound.

  Args:
    setting: Everything but the number of rounds.
    form: 'corrected', or 'printed' as in eq_op_upper (tau fixed) and
      eq: First-order derivative (T fixed).
    total_steps: None if the number of local steps in a round does not depend on
      M; otherwise T = M tau, and the drift L_c H(T/M) is part of the bound.

  Returns:
    M*, the best integer and the bound at M*.

  Raises:
    ValueError: If there is no minimum (form 'printed' and theta <= 1), if an
      argument is out of range, or if the setting lacks a needed attribute.
  """
  if total_steps is not None:
    total_steps = _validate.integer('total_steps', total_steps)
    if form == 'printed':
      return _printed_condition(setting, total_steps)
    setting.noise_coefficient(form)
    return _with_fixed_steps(setting, total_steps)

  def bound(rounds: float) -> float:
    return convergence.convergence_bound(setting, rounds, form)

  real = _stationary_rounds(setting, form)
  return OptimalRounds(real, _best_integer(real, bound), bound(real))


def optimal_theta(contraction: float) -> float:
  """Returns sqrt(A), the theta with the least noise in the last model.

  It is below 1: the noise should decrease.

  >>> optimal_theta(0.81)
  0.9

  Args:
    contraction: A in (0, 1).

  Returns:
    The ratio of the variances of successive rounds.

  Raises:
    ValueError: If A is out of range.
  """
  return math.sqrt(_validate.open_unit('contraction', contraction))


@dataclasses.dataclass(frozen=True)
class OptimalPlan:
  """The best geometric series for a budget, and its number of rounds.

  Attributes:
    theta: sqrt(A).
    real: M*, the best number of rounds among the real numbers.
    rounds: The best integer number of rounds, >= 1.
    initial_stddev: Noise standard deviation of round 1 that spends the budget
      in `rounds` rounds.
    minimum: The bound at M*.
    bound: The bound at `rounds`.
  """

  theta: float
  real: float
  rounds: int
  initial_stddev: float
  minimum: float
  bound: float


def optimal_plan(
  contraction: float, initial_gap: float, budget: float, noise_weight: float
) -> OptimalPlan:
  """The theta and number of rounds that minimize the bound, in closed form.

  It minimizes A^M Theta + c0 sum_m A^(M-m) v_m over M and all positive
  variances v_1..v_M with sum 1/v_m = B. The result is theta = sqrt(A) and, with
  c = c0 / (B (1 - sqrt A)^2), M* = 2 ln(c/(Theta + c)) / ln A, where the bound
  is Theta c / (Theta + c).

  >>> plan = optimal_plan(0.9, initial_gap=2.0, budget=50.0, noise_weight=1.0)
  >>> plan.rounds, round(plan.real, 3), round(plan.bound, 6)
  (4, 4.437, 1.58637)

  Args:
    contraction: A in (0, 1).
    initial_gap: Theta = F(w(0)) - F*, > 0.
    budget: B > 0, the sum over the rounds of 1/variance:
      1 / (sensitivity * gaussian_noise_multiplier(epsilon, delta))^2.
    noise_weight: c0 > 0, what a unit variance adds to the bound:
      L d sum p_k^2 / 2.

  Returns:
    The plan.

  Raises:
    ValueError: If an argument is out of range.
  """
  theta = optimal_theta(contraction)
  initial_gap = _validate.positive('initial_gap', initial_gap)
  budget = _validate.positive('budget', budget)
  noise_weight = _validate.positive('noise_weight', noise_weight)
  log_a = math.log(contraction)
  # 1 - sqrt(A) without cancellation for A near 1.
  cost = noise_weight / budget / math.expm1(log_a / 2) ** 2
  real = -2 * math.log1p(initial_gap / cost) / log_a

  def bound(rounds: float) -> float:
    left = math.exp(rounds * log_a)
    noise = math.expm1(rounds * log_a / 2) ** 2
    return left * initial_gap + cost * noise

  rounds = _best_integer(real, bound)
  log_sum = _log_space.log_precision_sum(theta, rounds)
  log_budget = math.log(budget)
  initial_stddev = _log_space.representable(
    'the noise standard deviation of round 1', 0.5 * (log_sum - log_budget)
  )
  return OptimalPlan(
    theta=theta,
    real=real,
    rounds=rounds,
    # So that its rounds never cost more than the budget.
    initial_stddev=_log_space.round_up(
      initial_stddev, 32 + 2 * int(abs(log_sum) + abs(log_budget))
    ),
    minimum=initial_gap * (cost / (initial_gap + cost)),
    bound=bound(rounds),
  )
