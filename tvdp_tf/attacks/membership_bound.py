r"""The epsilon that membership inference shows: a lower bound with confidence.

Two bounds. The first takes one pair at random from each trial. Trials are
independent runs, so that its scores are for `lower_bound`: thresholds,
Clopper-Pearson limits and all. But it throws most of the evidence away.

The second uses all pairs. Those of a trial share a model and are not
independent, but their coins are: Steinke, Nasr and Jagielski, "Privacy Auditing
with One (1) Training Run" (2023), show for a mechanism that is (epsilon, delta)
of n coins that r guesses are right v times or more with at most probability

  p(v) = P[B >= v] + 2 n delta max_i P[v > B >= v - i] / i,

B ~ Binomial(r, e^epsilon / (1 + e^epsilon)). Independent trials are each no
better than a variable with these tails, and their sum no better than the sum:
its distribution is a convolution. (Had all coins been taken for those of one
run, the delta of all would count as if it could strike together.) An epsilon
under which as many right guesses as were seen are too unlikely is refuted.

The attacker guesses the example of a pair with the larger score, in all pairs,
and then only in the quarter of each trial's pairs where scores differ most.
Every bound takes its share of the error, so that all hold at once.
"""

import numpy as np
from scipy import special

from tvdp_tf import _validate
from tvdp_tf.attacks import lower_bound

# Shares of the pairs in which to guess, set before any data is seen.
_GUESSED = (1.0, 0.25)
_BOUNDS = len(_GUESSED) + 1

# Above it nothing is told apart; no number of trials comes close.
_LARGEST_EPSILON = 60.0


def _upper_tail(
  guesses: int, pairs: int, epsilon: float, delta: float
) -> np.ndarray:
  """Bounds of P[right >= v] in a trial, v = 0 to `guesses`; descending."""
  v = np.arange(guesses + 1)
  binomial = special.bdtrc(v - 1, guesses, special.expit(epsilon))
  tail = binomial.copy()
  for right in range(1, guesses + 1):
    below = binomial[right - 1 :: -1] - binomial[right]
    tail[right] += 2 * pairs * delta * np.max(below / v[1 : right + 1])
  tail[0] = 1.0
  return np.minimum.accumulate(np.minimum(tail, 1.0))


def guesses_p_value(
  right: int,
  trials: int,
  guesses: int,
  pairs: int,
  epsilon: float,
  delta: float,
) -> float:
  """Probability, at most, of so many right guesses if (epsilon, delta) held.

  Args:
    right: Of `trials * guesses`.
    trials: Independent runs of the mechanism.
    guesses: Of each trial; a number set in advance.
    pairs: n, the coins of each trial, >= `guesses`.
    epsilon: >= 0.
    delta: In [0, 1).

  Returns:
    The probability.
  """
  tail = _upper_tail(guesses, pairs, epsilon, delta)
  probabilities = -np.diff(tail, append=0.0)
  size = trials * guesses + 1
  total = np.fft.irfft(np.fft.rfft(probabilities, 2 * size) ** trials)
  return float(np.clip(total[right:size].sum(), 0.0, 1.0))


def guesses_lower_bound(
  right: int,
  trials: int,
  guesses: int,
  pairs: int,
  delta: float,
  error: float,
) -> float:
  """The epsilon that so many right guesses show.

  Args:
    right: Of `trials * guesses`.
    trials: Independent runs of the mechanism.
    guesses: Of each trial; a number set in advance.
    pairs: n, the coins of each trial, >= `guesses`.
    delta: In (0, 1).
    error: Probability in (0, 1) with which the bound may be wrong.

  Returns:
    The bound, rounded down; 0 if nothing is shown.
  """
  low, high = 0.0, _LARGEST_EPSILON
  arguments = (right, trials, guesses, pairs)
  if guesses_p_value(*arguments, low, delta) > error:
    return 0.0
  while high - low > 1e-4:
    middle = (low + high) / 2
    if guesses_p_value(*arguments, middle, delta) > error:
      high = middle
    else:
      low = middle
  return low


def epsilon_lower_bound(
  members: np.ndarray,
  others: np.ndarray,
  delta: float,
  confidence: float = 0.95,
) -> float:
  """The largest of the bounds above, all of which hold at once.

  Args:
    members: Scores of the member of each pair, [trials, n].
    others: Scores of the other one, of that shape.
    delta: In (0, 1).
    confidence: In (0, 1): the bound is true with this probability, whatever
      the mechanism.

  Returns:
    Epsilon is at least this; 0 if nothing is shown.

  Raises:
    ValueError: If an argument is out of range, or trials are too few.
  """
  delta = _validate.open_unit('delta', delta)
  error = (1 - _validate.open_unit('confidence', confidence)) / _BOUNDS
  trials, pairs = members.shape
  _validate.integer('trials', trials, lower_bound.MINIMUM_TRIALS)
  differences = members - others
  # Surest first; ties, which speak for neither, count as wrong.
  order = np.argsort(-np.abs(differences), axis=1, kind='stable')
  right = np.take_along_axis(differences > 0, order, axis=1)
  bounds = []
  for share in _GUESSED:
    guesses = max(1, round(share * pairs))
    bounds.append(
      guesses_lower_bound(
        int(right[:, :guesses].sum()), trials, guesses, pairs, delta, error
      )
    )
  chosen = np.random.default_rng(0).integers(pairs, size=trials)
  one_a_trial = (np.arange(trials), chosen)
  shown = lower_bound.empirical_lower_bound(
    members[one_a_trial], others[one_a_trial], delta, 1 - error
  )
  return max(*bounds, shown.epsilon_lower_bound)
