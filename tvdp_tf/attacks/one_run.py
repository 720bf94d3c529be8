r"""A lower bound of epsilon from one run, by guessing coins.

Fair coins choose one example of each of m pairs, the canaries. An attacker who
sees the run guesses g of the coins and abstains from the others; C of its
guesses are right. A mechanism that hides one example limits this success. This
is the audit of Steinke, Nasr and Jagielski, "Privacy Auditing with One (1)
Training Run" (2023), with the analysis of Mahloujifar, Melis and Chaudhuri,
"Auditing f-Differential Privacy in One Run" (2024), which loses almost nothing
to delta.

With I a canary drawn at random, let

  r_i = P[I is guessed right, C >= i],  h_i = P[I is guessed wrong, C >= i].

Flipping the coin of I turns a right guess of it into a wrong one, and C into
C - 1, while the data change by one example. Suppose that under a mechanism, an
event of probability p under a data set has at least probability f(p) under the
neighboring one (f convex). Then h_i >= f(r_(i+1)). From P[C >= c] = t follow
r_c >= t c / m and, step by step down to i = 0, lower limits of r_i and h_i,
because P[C = i] adds i / m to the former and (g - i) / m to the latter. If
r_0 + h_0, which is g / m, would have to be larger, then P[C >= c] is below t.
With t = 1 - confidence, this many right guesses refute f.

For (epsilon, delta), f(p) = max(0, (p - delta) / e^epsilon,
1 - delta - e^epsilon (1 - p)), and nothing is assumed about the mechanism. In
this case, Steinke et al. have another limit of P[C >= c], by a binomial
variable, which is lower if m delta is small. A number of right guesses is too
large if either limit says so. For one Gaussian release, f(p) =
Phi(Phi^-1(p) - mu), which shows more for mechanisms that are such releases.

Nothing is assumed about scores, either, and coins only have to be independent
of each other. So canaries of several clients form one test: the run as a whole
is a function of all coins, a coin changes one example of one client, and an
(epsilon, delta) is stated about just this change, whatever the other examples
are and however later rounds depend on earlier ones. The number of guesses must
not depend on which of them are right: `planned_guesses` chooses it from what is
known before the run.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from tvdp_tf import _validate
from tvdp_tf.attacks import lower_bound
from tvdp_tf.privacy import gaussian

# p -> the least probability, on a neighboring data set, of an event with
# probability p.
TradeOff = Callable[[float], float]

# Beyond these, no feasible number of guesses makes a difference.
_LARGEST_EPSILON = 60.0
_LARGEST_MU = 40.0
_BISECTIONS = 40
# How many different numbers of guesses to consider.
_PLANS = 24


@dataclasses.dataclass(frozen=True)
class OneRunBound:
  """What right guesses show about epsilon.

  Attributes:
    epsilon_lower_bound: Epsilon is at least this, with `confidence`; 0 if
      nothing is shown.
    delta: The delta at which the bound holds.
    confidence: Probability over coins and noise that the bound is true.
    canaries: m.
    guesses: g, which was fixed before the run.
    right: C, how many guesses were right.
    assumption: What is assumed about the mechanism.
  """

  epsilon_lower_bound: float
  delta: float
  confidence: float
  canaries: int
  guesses: int
  right: int
  assumption: str

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the attributes, ready for `json.dumps`."""
    return dataclasses.asdict(self)


def epsilon_trade_off(epsilon: float, delta: float) -> TradeOff:
  """Returns the f of all mechanisms that are (epsilon, delta)-DP.

  Args:
    epsilon: >= 0, up to 700.
    delta: In [0, 1).
  """
  grown = math.exp(epsilon)

  def trade_off(p: float) -> float:
    return max(0.0, (p - delta) / grown, 1 - delta - grown * (1 - p))

  return trade_off


def gaussian_trade_off(mu: float) -> TradeOff:
  """Returns the f of one Gaussian release with noise multiplier 1 / mu."""

  def trade_off(p: float) -> float:
    return float(special.ndtr(special.ndtri(min(p, 1.0)) - mu))

  return trade_off


def is_refuted(
  right: int, guesses: int, canaries: int, error: float, trade_off: TradeOff
) -> bool:
  """Whether this many right guesses have probability below `error` under f.

  Args:
    right: c, from 0 to `guesses`.
    guesses: g, from 1 to `canaries`.
    canaries: m.
    error: In (0, 1).
    trade_off: f, convex and not decreasing, f(p) <= p.
  """
  share = guesses / canaries
  r, h = error * right / canaries, error * (guesses - right) / canaries
  for i in range(right - 1, -1, -1):
    least = trade_off(r)
    if least > h:
      r, h = r + i / (guesses - i) * (least - h), least
      # More than all guesses, so no distribution has this tail.
      if r + h > share:
        return True
    elif i < right - 1:
      return False  # Nothing grows anymore.
  return False


def _is_refuted_by_binomial(
  right: int,
  guesses: int,
  canaries: int,
  error: float,
  epsilon: float,
  delta: float,
) -> bool:
  """Like `is_refuted`, for (epsilon, delta), by Steinke et al. (2023).

  P[C >= c] <= P[B >= c] + 2 m delta max_i P[c > B >= c - i] / i, where
  B ~ Binomial(g, e^epsilon / (1 + e^epsilon)).
  """
  p = special.expit(epsilon)
  tail = special.bdtrc(right - 1, guesses, p) if right else 1.0
  if tail > error or not right:
    return False
  i = np.arange(1, right + 1)
  below = np.where(i == right, 1.0, special.bdtrc(right - i - 1, guesses, p))
  tail += 2 * canaries * delta * float(np.max((below - tail) / i))
  return bool(tail <= error)


def refutes_epsilon(
  right: int,
  guesses: int,
  canaries: int,
  error: float,
  epsilon: float,
  delta: float,
) -> bool:
  """Whether this many right guesses refute (epsilon, delta) at `error`.

  Args:
    right: c, from 0 to `guesses`.
    guesses: g, from 1 to `canaries`.
    canaries: m.
    error: In (0, 1).
    epsilon: >= 0.
    delta: In [0, 1).
  """
  return is_refuted(
    right, guesses, canaries, error, epsilon_trade_off(epsilon, delta)
  ) or _is_refuted_by_binomial(right, guesses, canaries, error, epsilon, delta)


def _largest_refuted(refuted: Callable[[float], bool], largest: float) -> float:
  """Returns the largest refuted parameter, rounded down; 0 if there is none."""
  if not refuted(0.0):
    return 0.0
  low, high = 0.0, largest
  for _ in range(_BISECTIONS):
    middle = (low + high) / 2
    if refuted(middle):
      low = middle
    else:
      high = middle
    if high - low < 1e-5:
      break
  return low


def _checked(right, guesses, canaries, delta, confidence):
  _validate.integer('canaries', canaries)
  _validate.integer('guesses', guesses, 1, canaries)
  _validate.integer('right', right, 0, guesses)
  _validate.open_unit('delta', delta)
  return 1 - _validate.open_unit('confidence', confidence)


def epsilon_lower_bound(
  right: int,
  guesses: int,
  canaries: int,
  delta: float,
  confidence: float = 0.95,
) -> OneRunBound:
  """Computes what the guesses show, for any mechanism.

  Args:
    right: C, the number of right guesses.
    guesses: g, fixed before the run.
    canaries: m, each with its own fair coin.
    delta: In (0, 1).
    confidence: In (0, 1).

  Returns:
    The bound.

  Raises:
    ValueError: If an argument is out of range.
  """
  error = _checked(right, guesses, canaries, delta, confidence)
  epsilon = _largest_refuted(
    lambda value: refutes_epsilon(
      right, guesses, canaries, error, value, delta
    ),
    _LARGEST_EPSILON,
  )
  return OneRunBound(
    *(epsilon, delta, confidence, canaries, guesses, right),
    'none: any mechanism, independent fair coins',
  )


def gaussian_lower_bound(
  right: int,
  guesses: int,
  canaries: int,
  delta: float,
  confidence: float = 0.95,
) -> OneRunBound:
  """Computes what guesses show IF the mechanism's trade-off is Gaussian.

  Args:
    right: As for `epsilon_lower_bound`, like the other arguments.
    guesses: g.
    canaries: m.
    delta: In (0, 1).
    confidence: In (0, 1), given the assumption.

  Returns:
    The bound, with its `assumption`.

  Raises:
    ValueError: If an argument is out of range.
  """
  error = _checked(right, guesses, canaries, delta, confidence)
  mu = _largest_refuted(
    lambda value: is_refuted(
      right, guesses, canaries, error, gaussian_trade_off(value)
    ),
    _LARGEST_MU,
  )
  return OneRunBound(
    # `epsilon_of_mu` rounds up, by less than this.
    gaussian.epsilon_of_mu(mu, delta) * (1 - 1e-9),
    *(delta, confidence, canaries, guesses, right),
    lower_bound.GAUSSIAN_ASSUMPTION,
  )


def expected_guesses(
  separations: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Expected numbers of guesses from Gaussian scores, and of right ones.

  The score of a canary is a log-likelihood ratio, N(mu^2 / 2, mu^2) in favor of
  the truth; its coin is guessed if the score's absolute value is above a
  threshold.

  Args:
    separations: mu of each canary, float [m], >= 0.
    thresholds: float [t], >= 0.

  Returns:
    Expected numbers of guesses and of right guesses, float64 [t] each.
  """
  mu = np.maximum(np.asarray(separations, np.float64), 1e-9)
  values, counts = np.unique(np.round(mu, 3), return_counts=True)
  values = np.maximum(values, 1e-9)
  over = np.asarray(thresholds)[:, np.newaxis] / values
  right = special.ndtr(values / 2 - over) @ counts
  wrong = special.ndtr(-values / 2 - over) @ counts
  return right + wrong, right


def planned_guesses(
  separations: np.ndarray,
  delta: float,
  confidence: float = 0.95,
  bound: Callable[..., OneRunBound] = epsilon_lower_bound,
) -> tuple[int, OneRunBound]:
  """Plans the number of guesses that reliably shows most.

  It is the number with the largest bound if the right guesses are one standard
  deviation fewer than expected.

  Args:
    separations: mu of each canary, float [m]: how many standard deviations of
      the noise its two examples are apart over all releases, as far as is known
      before the run.
    delta: As for `bound`.
    confidence: As for `bound`.
    bound: `epsilon_lower_bound` or `gaussian_lower_bound`.

  Returns:
    The number of guesses, and the bound that they then show.
  """
  m = len(separations)
  scale = float(np.max(separations))
  thresholds = np.linspace(0, scale * (scale / 2 + 4.5), 2000)
  guesses, right = expected_guesses(separations, thresholds)
  wanted = np.unique(np.geomspace(max(1, m / 1000), m, _PLANS).astype(int))
  best: tuple[int, OneRunBound] | None = None
  for count in wanted.tolist():
    share = np.interp(-count, -guesses, right / np.maximum(guesses, 1e-300))
    spread = math.sqrt(count * max(share * (1 - share), 0.0))
    right_then = max(0, math.floor(share * count - spread))
    found = bound(right_then, count, m, delta, confidence)
    if best is None or found.epsilon_lower_bound > best[1].epsilon_lower_bound:
      best = count, found
  assert best is not None
  return best


def count_right(
  scores: np.ndarray, coins: np.ndarray, guesses: int
) -> tuple[int, np.ndarray]:
  """Counts how many of the most confident guesses are right.

  Args:
    scores: float [m]: above 0 if the attacker believes in the first example;
      confident if far from 0.
    coins: bool [m]: whether it was the first example.
    guesses: How many of the coins to guess.

  Returns:
    C, and bool [m] in the order of confidence: whether each guess is right. A
    score of 0 favors neither and counts as wrong.
  """
  order = np.argsort(-np.abs(scores), kind='stable')
  right = (scores * np.where(coins, 1.0, -1.0) > 0)[order]
  return int(right[:guesses].sum()), right
