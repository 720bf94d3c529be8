r"""Theorem 3 and Corollary 1: the convergence bound, printed and corrected.

**The contraction A** (`contraction`) is the factor by which a round shrinks the
gap to F*.

  A = 1 + 2 rho phi,  phi = (eta^2 L / 2) c - eta

c is the second moment of the mean of K of U gradients, drawn without
replacement, over the squared norm of the full gradient:

  corrected  c = [(U-K) B^2 + U (K-1)] / (K (U-1))
  printed    c = [(U-K) B^2 + (K-1)/U] / (K (U-1))

The printed form loses a factor U^2 (sum_k g_k = U grad F, eq_delta_fk), so
noise-free gradient descent with all users violates the bound as printed.

**Lemma 1** bounds how far local steps drift from centralized gradient descent.

  H(x) = gamma/L ((1 + eta L)^x - 1) - eta gamma x

The formula is right for full participation, no noise, no active clipping, and a
reference that restarts from the global model every round; the paper uses it
where none of these holds. Its derivative by the number of rounds M, at a fixed
number T of local steps, is printed without eta and 1/L:

  printed    (gamma T / M^2) [1 - (1 + eta L)^(T/M) ln(1 + eta L)]
  corrected  (gamma T / M^2) [eta - (1/L) (1 + eta L)^(T/M) ln(1 + eta L)]

The paper's condition on tau for it to be negative is therefore spurious: the
corrected derivative is negative for every tau >= 1.

**The bound** uses both:

  F(w(M)) - F* <= A^M Theta + noise + drift,  A = 1 + 2 rho phi

With R and S the sums of `_log_space`, k = q L Ds^2 ln(1/delta) / eps^2, and the
noise of Theorem 1:

  printed    noise = k (theta - 1) S R / (U - 1)
  corrected  noise = k d sum_k p_k^2 S R

The printed U - 1 (eq_convergnece_bound) is a slip for theta - 1, which cancels
the quotient in R. As printed, the noise costs nothing at theta = 1, and helps
below it. The factor d sum p_k^2, the number of parameters over the number of
users, is missing: E||sum p_k n_k||^2 = d sigma^2 sum p_k^2.

The drift L_c H(tau) of Corollary 1 (`single`) assumes a reference that is never
reset. If it is reset every round, the drift accumulates to
L_c H(tau) (1 - A^M) / (1 - A).

The corrected form keeps the paper's noise calibration, which is itself unsound,
and the paper's gap between one step and tau steps. `sound_bound` has neither.

**What is proved** for tau local steps of K of U users is `sound_bound`. The
paper's Corollary 1 contracts once per round although tau steps are taken, and
adds the drift of one round only. Here the reference is reset to the global
model every round, so the contraction is that of tau steps and the drift
accumulates; the noise is used as given, whatever it was calibrated to.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tvdp_tf import _validate
from tvdp_tf.privacy import _log_space

FORMS = ('printed', 'corrected')


def descent_coefficient(
  eta: float,
  smoothness: float,
  users: int,
  users_per_round: int,
  dissimilarity_squared: float,
  form: str = 'corrected',
) -> float:
  """Returns phi: up to noise, F falls by -phi ||grad F||^2 per round.

  phi = (eta^2 L / 2) c - eta, with
  c = [(U-K) B^2 + U (K-1)] / (K (U-1)), the second moment of the mean of K
  gradients drawn without replacement, over ||grad F||^2.

  Args:
    eta: Learning rate, > 0.
    smoothness: L > 0.
    users: U >= 2.
    users_per_round: K, 1 <= K <= U.
    dissimilarity_squared: B^2 >= 1 of the paper's local dissimilarity.
    form: 'corrected', or 'printed' with U (K-1) replaced by (K-1)/U.

  Returns:
    phi, negative if the step makes progress.

  Raises:
    ValueError: If an argument is out of range.
  """
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  users = _validate.integer('users', users, 2)
  users_per_round = _validate.integer(
    'users_per_round', users_per_round, 1, users
  )
  dissimilarity_squared = _validate.positive(
    'dissimilarity_squared', dissimilarity_squared
  )
  _validate.one_of('form', form, FORMS)
  if dissimilarity_squared < 1:
    raise ValueError(
      'dissimilarity_squared must be a finite number >= 1, got'
      f' {dissimilarity_squared!r}'
    )
  together = (users_per_round - 1) * (
    users if form == 'corrected' else 1 / users
  )
  apart = (users - users_per_round) * dissimilarity_squared
  second_moment = (apart + together) / (users_per_round * (users - 1))
  return eta * eta * smoothness / 2 * second_moment - eta


def contraction(
  eta: float,
  smoothness: float,
  users: int,
  users_per_round: int,
  dissimilarity_squared: float,
  pl_constant: float,
  form: str = 'corrected',
) -> float:
  """Returns A = 1 + 2 rho phi, the factor by which a round shrinks the gap.

  >>> contraction(0.3, 1.0, 100, 100, 1.0, 1.0)
  0.49

  Args:
    eta: Learning rate, > 0.
    smoothness: L > 0.
    users: U >= 2.
    users_per_round: K, 1 <= K <= U.
    dissimilarity_squared: B^2 >= 1.
    pl_constant: rho > 0 of the Polyak-Lojasiewicz condition.
    form: 'corrected', or 'printed' as in the paper.

  Returns:
    A. The printed form is returned as it is, even if negative.

  Raises:
    ValueError: If an argument is out of range, or if the corrected A is not in
      (0, 1), where the bound says nothing.
  """
  pl_constant = _validate.positive('pl_constant', pl_constant)
  phi = descent_coefficient(
    eta, smoothness, users, users_per_round, dissimilarity_squared, form
  )
  factor = 1 + 2 * pl_constant * phi
  if form == 'corrected' and not 0 < factor < 1:
    raise ValueError(
      'contraction must be a number strictly between 0 and 1, got'
      f' {factor!r} for eta={eta!r}, smoothness={smoothness!r},'
      f' pl_constant={pl_constant!r}: reduce eta'
    )
  return factor


# If eta L and eta L x are below this, the closed form cancels, and the binomial
# series converges.
_SERIES_BELOW = 0.5


def _expm1(x: float) -> float:
  try:
    return math.expm1(x)
  except OverflowError:
    return math.inf


def _log1p_excess(u: float) -> float:
  """Returns u - ln(1 + u), accurate for small u > 0."""
  if u > 0.1:
    return u - math.log1p(u)
  total = 0.0
  for k in range(18, 1, -1):
    total = total * -u + 1 / k
  return u * u * total


def divergence_gap(
  x: float, gamma: float, eta: float, smoothness: float
) -> float:
  """Returns H(x), the bound on the distance after x local steps (Lemma 1).

  >>> round(divergence_gap(5, gamma=1.3, eta=0.1, smoothness=2.0), 6)
  0.317408

  Args:
    x: Number of local steps, >= 0; in the planner it is T/M, a real number.
    gamma: Bound on the gradient divergence, >= 0.
    eta: Learning rate, > 0.
    smoothness: L > 0.

  Returns:
    H(x); inf if it overflows, 0 at x = 0 and x = 1, negative between.

  Raises:
    ValueError: If an argument is out of range.
  """
  x = _validate.non_negative('x', x)
  gamma = _validate.non_negative('gamma', gamma)
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  if gamma == 0 or x in (0, 1):
    return 0.0
  u = eta * smoothness
  growth = math.log1p(u)
  if max(u, u * x) >= _SERIES_BELOW:
    if x < 0.5:
      return gamma / smoothness * (_expm1(x * growth) - u * x)
    # The same value, without cancellation for x near 1.
    more = x - 1
    return gamma / smoothness * ((1 + u) * _expm1(more * growth) - u * more)
  # sum_{k>=2} C(x, k) u^k: no cancellation, ratio of terms below u x / 3.
  term = 1.0
  total = 0.0
  for k in range(2, 60):
    total += term
    term *= u * (x - k) / (k + 1)
  return gamma * eta * (x * (x - 1) / 2 * u * total)


def divergence_gap_derivative(
  total_steps: float,
  rounds: float,
  gamma: float,
  eta: float,
  smoothness: float,
  form: str = 'corrected',
) -> float:
  """Returns d H(T/M) / dM at fixed T.

  Args:
    total_steps: T > 0, local steps over all rounds.
    rounds: M > 0.
    gamma: Bound on the gradient divergence, >= 0.
    eta: Learning rate, > 0.
    smoothness: L > 0.
    form: 'corrected', or 'printed' as in the paper (without eta and 1/L).

  Returns:
    The derivative; -inf if it overflows.

  Raises:
    ValueError: If an argument is out of range.
  """
  total_steps = _validate.positive('total_steps', total_steps)
  rounds = _validate.positive('rounds', rounds)
  gamma = _validate.non_negative('gamma', gamma)
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  _validate.one_of('form', form, FORMS)
  if gamma == 0:
    return 0.0
  growth = math.log1p(eta * smoothness)
  power_minus_1 = _expm1(total_steps / rounds * growth)
  if form == 'printed':
    bracket = (1 - growth) - power_minus_1 * growth
  else:
    excess = _log1p_excess(eta * smoothness)
    bracket = (excess - power_minus_1 * growth) / smoothness
  return gamma * total_steps / rounds / rounds * bracket


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
    lipschitz: L_c > 0; `drift` and a fixed number of steps need it and the
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
    """Returns an optional attribute, or raises a clear error without it."""
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
    """Returns L_c H(local_steps)."""
    purpose = 'a bound with drift'
    return self.required('lipschitz', purpose) * divergence_gap(
      local_steps,
      self.required('gradient_divergence', purpose),
      self.required('learning_rate', purpose),
      self.smoothness,
    )


@dataclasses.dataclass(frozen=True)
class BoundTerms:
  """The bound on F(w(M)) - F*, term by term.

  Attributes:
    decay: A^M Theta, what is left of the initial gap.
    noise: What the noise adds; negative for theta < 1 in the printed form.
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
  """Returns the terms of `convergence_bound`, with the same arguments."""
  rounds = _validate.positive('rounds', rounds)
  _validate.one_of('drift', drift, DRIFTS)
  log_a = math.log(setting.contraction)
  sums = _log_space.exp_or_inf(
    _log_space.log_noise_sum(setting.theta, setting.contraction, rounds)
    + _log_space.log_precision_sum(setting.theta, rounds)
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
    # As printed, theta = 1 adds nothing, even where the sums overflow.
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
  """Returns the bound on F(w(M)) - F* after M rounds.

  Args:
    setting: Everything but the number of rounds.
    rounds: M > 0; real, because the planner minimizes over it.
    form: 'corrected', or 'printed' as in the paper.
    drift: 'none' (Theorem 3), 'single' (L_c H(tau), Corollary 1) or
      'accumulated' (reference reset every round).
    local_steps: tau >= 0 for the drift.

  Returns:
    The sum of the decay, the noise and the drift; inf if it overflows.

  Raises:
    ValueError: If an argument is out of range, or if the setting lacks an
      attribute that the form needs.
  """
  return convergence_terms(setting, rounds, form, drift, local_steps).total


def sound_bound(
  initial_gap: float,
  rounds: int,
  theta: float,
  initial_stddev: float,
  pl_constant: float,
  eta: float,
  smoothness: float,
  users: int,
  users_per_round: int,
  local_steps: int,
  gradient_divergences: Sequence[float],
  lipschitz: float,
  dimension: int,
) -> float:
  """A proved bound on E[F(w(M))] - F* for tau local steps and K of U users.

  With A = (1 - rho eta (2 - eta L))^tau and
  g_k = (gamma_k/L) ((1 + eta L)^tau - 1):

    A^M Theta + [L_c H(tau) + V] (1 - A^M)/(1 - A)
      + L d sigma^2 / (2K) S(theta, A, M),
    V = (L/2) (U-K)/(K (U-1)) mean_k g_k^2

  It holds for convex, L-smooth, L_c-Lipschitz local losses with the
  Polyak-Lojasiewicz condition and clipping that is never active; it is 10 to
  400 times larger than what small simulations show.

  Args:
    initial_gap: Theta = F(w(0)) - F*, > 0.
    rounds: M >= 1.
    theta: Ratio of the variances of successive rounds, > 0.
    initial_stddev: Noise standard deviation of round 1, whatever its origin.
    pl_constant: rho, 0 < rho <= L.
    eta: Learning rate, 0 < eta <= 1/L.
    smoothness: L > 0.
    users: U >= 2.
    users_per_round: K, 1 <= K <= U.
    local_steps: tau >= 1.
    gradient_divergences: gamma_k >= 0 of every user, [U]; H takes their mean.
    lipschitz: L_c > 0.
    dimension: d >= 1, number of model parameters.

  Returns:
    The bound; inf if it overflows.

  Raises:
    ValueError: If an argument is out of range.
  """
  initial_gap = _validate.positive('initial_gap', initial_gap)
  rounds = _validate.integer('rounds', rounds)
  theta = _validate.positive('theta', theta)
  initial_stddev = _validate.positive('initial_stddev', initial_stddev)
  pl_constant = _validate.positive('pl_constant', pl_constant)
  eta = _validate.positive('eta', eta)
  smoothness = _validate.positive('smoothness', smoothness)
  users = _validate.integer('users', users, 2)
  users_per_round = _validate.integer(
    'users_per_round', users_per_round, 1, users
  )
  local_steps = _validate.integer('local_steps', local_steps)
  lipschitz = _validate.positive('lipschitz', lipschitz)
  dimension = _validate.integer('dimension', dimension)
  gammas = [
    _validate.non_negative('gradient_divergences', g)
    for g in gradient_divergences
  ]
  if len(gammas) != users:
    raise ValueError(
      f'gradient_divergences must be {users} numbers, one per user, got'
      f' {len(gammas)}'
    )
  if eta * smoothness > 1:
    raise ValueError(
      f'eta must be at most 1/smoothness = {1 / smoothness!r}, got {eta!r}'
    )
  step = pl_constant * eta * (2 - eta * smoothness)
  if not 0 < step < 1:
    raise ValueError(
      'pl_constant must be such that rho eta (2 - eta L) is strictly between 0'
      f' and 1, got {pl_constant!r} and hence {step!r}'
    )
  log_a = local_steps * math.log1p(-step)
  # The bound grows with A, so that this is above it where A underflows.
  factor = max(math.exp(log_a), sys.float_info.min)
  try:
    growth = math.expm1(local_steps * math.log1p(eta * smoothness)) / smoothness
    spread = sum((gamma * growth) ** 2 for gamma in gammas) / users
    divergence = divergence_gap(
      local_steps, sum(gammas) / users, eta, smoothness
    )
  except OverflowError:
    return math.inf
  selection = (
    smoothness
    / 2
    * (users - users_per_round)
    / (users_per_round * (users - 1))
    * spread
  )
  rounds_left = math.expm1(rounds * log_a) / math.expm1(log_a)
  noise = _log_space.exp_or_inf(
    _log_space.log_noise_sum(theta, factor, rounds)
    + 2 * math.log(initial_stddev)
  )
  return (
    math.exp(rounds * log_a) * initial_gap
    + (lipschitz * divergence + selection) * rounds_left
    + smoothness * dimension / (2 * users_per_round) * noise
  )
