r"""Lower bounds of epsilon, with confidence, from the scores of an attack.

An attack gives each run a score, large if it believes in data set D and small
if it believes in the neighboring data set D'. Whatever the threshold, a
mechanism that is (epsilon, delta)-DP limits its success so that

  TPR <= e^epsilon FPR + delta  and  1 - FPR <= e^epsilon (1 - TPR) + delta,

with TPR and FPR the probabilities that it says D under D and under D'. So
measured rates refute an epsilon that is too small:

  epsilon >= ln((TPR - delta) / FPR),  epsilon >= ln((1 - FPR - delta) / FNR).

The threshold is chosen on the first half of the trials, and its rates are
counted on the second half. Each Clopper-Pearson limit holds with probability
1 - alpha/2, hence both at once with 1 - alpha (Bonferroni). Both inequalities
use the same two limits, so the larger of the two holds with the same
confidence. `empirical_lower_bound` assumes nothing else about the mechanism.

Few trials show little: n trials without a single error show no more than about
ln(n / ln(2 / alpha)), see `largest_lower_bound`.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from tvdp_tf import _validate
from tvdp_tf.privacy import gaussian

NO_ASSUMPTION = 'none: any mechanism, independent trials'
GAUSSIAN_ASSUMPTION = (
  'the trade-off between the two errors of the best attack is that of one '
  'Gaussian release'
)

MINIMUM_TRIALS = 4
# Number of thresholds to try; more take time, but do not show more.
_CANDIDATES = 1000
_CURVE_POINTS = 400
# Limits so wide that a lucky tail does not mislead the choice.
_SELECTION_ERROR = 1e-3

# (lower limits of TPR, upper limits of FPR) -> lower bounds of epsilon.
_Bound = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class LowerBound:
  """What the scores show about epsilon.

  Attributes:
    epsilon_lower_bound: Epsilon is at least this, with `confidence`; 0 if
      nothing is shown.
    delta: The delta at which the bound holds.
    confidence: Probability over the trials that the bound is true.
    trials: Number of trials under D, and also under D'; half of them were used
      to choose the threshold.
    threshold: A score above it is taken for D.
    tpr: Fraction of the evaluated trials under D that were taken for D.
    fpr: Fraction of the evaluated trials under D' that were taken for D.
    tpr_lower_limit: The probability behind `tpr` is at least this.
    fpr_upper_limit: The probability behind `fpr` is at most this; both limits
      hold at once with `confidence`.
    assumption: What is assumed about the mechanism.
  """

  epsilon_lower_bound: float
  delta: float
  confidence: float
  trials: int
  threshold: float
  tpr: float
  fpr: float
  tpr_lower_limit: float
  fpr_upper_limit: float
  assumption: str

  def to_json_dict(self) -> dict[str, str | float | int]:
    """Returns the attributes, ready for `json.dumps`."""
    return dataclasses.asdict(self)


def rate_limits(
  successes: np.ndarray | int, trials: int, error: float
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the Clopper-Pearson limits of a probability: (lower, upper).

  Args:
    successes: Counts in [0, trials].
    trials: Number of independent trials, >= 1.
    error: Probability in (0, 1) with which each single limit may be wrong.

  Returns:
    float64 arrays of the shape of `successes`.
  """
  k = np.asarray(successes, np.float64)
  with np.errstate(invalid='ignore'):
    lower = special.betaincinv(np.maximum(k, 0.5), trials - k + 1, error)
    upper = special.betaincinv(k + 1, np.maximum(trials - k, 0.5), 1 - error)
  return np.where(k == 0, 0.0, lower), np.where(k == trials, 1.0, upper)


def _log_ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
  """Returns ln(numerator / denominator), or 0 where it would be negative."""
  shown = numerator > denominator  # The denominator is never 0.
  return np.log(np.where(shown, numerator / denominator, 1.0))


def _epsilon_bound(delta: float) -> _Bound:
  def bound(tpr, fpr):
    return np.maximum(
      _log_ratio(tpr - delta, fpr), _log_ratio(1 - fpr - delta, 1 - tpr)
    )

  return bound


def _mu_bound(tpr: np.ndarray, fpr: np.ndarray) -> np.ndarray:
  """The mu of a Gaussian trade-off: Phi^-1(TPR) - Phi^-1(FPR)."""
  return np.maximum(special.ndtri(tpr) - special.ndtri(fpr), 0.0)


def _above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
  """Counts the scores above each threshold."""
  return len(scores) - np.searchsorted(np.sort(scores), thresholds, 'right')


def _candidates(
  scores: np.ndarray, alternative: np.ndarray, count: int
) -> np.ndarray:
  """Returns about `count` thresholds, ascending; dense at extreme rates."""
  values = np.unique(np.concatenate([scores, alternative]))
  # Thresholds halfway between successive values.
  thresholds = np.append(values[:-1] / 2 + values[1:] / 2, values[-1])
  used = []
  for ordered in (np.sort(scores), np.sort(alternative)):
    ranks = np.geomspace(1, len(ordered), count // 4).astype(int)
    used += [ordered[ranks - 1], ordered[-ranks]]
  places = np.searchsorted(values, np.concatenate(used))
  return thresholds[np.union1d(places, np.maximum(places - 1, 0))]


def _choose_threshold(
  scores: np.ndarray, alternative: np.ndarray, error: float, bound: _Bound
) -> float:
  """Chooses the threshold that would show most on these scores."""
  error = min(error, _SELECTION_ERROR)
  thresholds = _candidates(scores, alternative, _CANDIDATES)
  tpr, _ = rate_limits(_above(scores, thresholds), len(scores), error)
  _, fpr = rate_limits(_above(alternative, thresholds), len(scores), error)
  shown = bound(tpr, fpr)
  return float(thresholds[np.argmax(shown if shown.any() else tpr - fpr)])


def _checked_scores(name: str, scores: np.ndarray) -> np.ndarray:
  array = np.asarray(scores, np.float64)
  allowed = (
    f'a one-dimensional array of at least {MINIMUM_TRIALS} finite numbers'
  )
  if array.ndim != 1 or len(array) < MINIMUM_TRIALS:
    raise ValueError(f'{name} must be {allowed}, got shape {array.shape}')
  if not np.isfinite(array).all():
    wrong = array[~np.isfinite(array)][0]
    raise ValueError(f'{name} must be {allowed}, got {wrong!r}')
  return array


def _evaluate(
  scores, alternative_scores, delta, confidence, bound, to_epsilon, assumption
) -> LowerBound:
  scores = _checked_scores('scores', scores)
  alternative = _checked_scores('alternative_scores', alternative_scores)
  if len(alternative) != len(scores):
    raise ValueError(
      f'alternative_scores must be as long as scores, got {len(alternative)}'
      f' and {len(scores)}'
    )
  error = (1 - confidence) / 2
  half = len(scores) // 2
  threshold = _choose_threshold(scores[:half], alternative[:half], error, bound)
  trials = len(scores) - half
  true_positives = int(np.sum(scores[half:] > threshold))
  false_positives = int(np.sum(alternative[half:] > threshold))
  tpr, _ = rate_limits(true_positives, trials, error)
  _, fpr = rate_limits(false_positives, trials, error)
  return LowerBound(
    epsilon_lower_bound=to_epsilon(float(bound(tpr, fpr))),
    delta=delta,
    confidence=confidence,
    trials=len(scores),
    threshold=threshold,
    tpr=true_positives / trials,
    fpr=false_positives / trials,
    tpr_lower_limit=float(tpr),
    fpr_upper_limit=float(fpr),
    assumption=assumption,
  )


def empirical_lower_bound(
  scores: np.ndarray,
  alternative_scores: np.ndarray,
  delta: float,
  confidence: float = 0.95,
) -> LowerBound:
  """Computes what the scores show, for any mechanism.

  Args:
    scores: Finite scores of independent runs on D, [trials]; larger speaks for
      D.
    alternative_scores: Scores of as many runs on D'.
    delta: In (0, 1).
    confidence: In (0, 1).

  Returns:
    The bound.

  Raises:
    ValueError: If an argument is out of range, or trials are too few.
  """
  delta = _validate.open_unit('delta', delta)
  confidence = _validate.open_unit('confidence', confidence)
  return _evaluate(
    *(scores, alternative_scores, delta, confidence),
    _epsilon_bound(delta),
    lambda epsilon: epsilon,
    NO_ASSUMPTION,
  )


def gaussian_lower_bound(
  scores: np.ndarray,
  alternative_scores: np.ndarray,
  delta: float,
  confidence: float = 0.95,
) -> LowerBound:
  """Computes what the scores show IF the mechanism's trade-off is Gaussian.

  Then one point (FPR, TPR) determines the whole trade-off, mu = Phi^-1(TPR) -
  Phi^-1(FPR), and with it epsilon at any delta (Nasr et al., "Tight Auditing of
  Differentially Private Machine Learning", 2023). This shows a large epsilon
  with few trials, because the tails are not counted but extrapolated. For a
  mechanism with another trade-off, the bound can be false. The assumption is
  true for Gaussian noise on data that nothing else randomizes; it may be false
  for many noisy steps of which only the result is seen.

  Args:
    scores: As for `empirical_lower_bound`.
    alternative_scores: As for `empirical_lower_bound`.
    delta: In (0, 1).
    confidence: In (0, 1), given the assumption.

  Returns:
    The bound, with its `assumption`.

  Raises:
    ValueError: If an argument is out of range, or there are too few trials.
  """
  delta = _validate.open_unit('delta', delta)
  confidence = _validate.open_unit('confidence', confidence)
  return _evaluate(
    *(scores, alternative_scores, delta, confidence),
    _mu_bound,
    # `epsilon_of_mu` rounds up, by less than this.
    lambda mu: gaussian.epsilon_of_mu(mu, delta) * (1 - 1e-9),
    GAUSSIAN_ASSUMPTION,
  )


def largest_lower_bound(
  trials: int, delta: float, confidence: float = 0.95
) -> float:
  """Returns the most that `empirical_lower_bound` can show, without any error.

  >>> round(largest_lower_bound(10_000, 1e-3), 3)
  7.211

  Args:
    trials: Number of trials under each data set, >= 4.
    delta: In (0, 1).
    confidence: In (0, 1).

  Raises:
    ValueError: If an argument is out of range.
  """
  trials = _validate.integer('trials', trials, MINIMUM_TRIALS)
  delta = _validate.open_unit('delta', delta)
  error = (1 - _validate.open_unit('confidence', confidence)) / 2
  evaluated = trials - trials // 2
  tpr, _ = rate_limits(evaluated, evaluated, error)
  _, fpr = rate_limits(0, evaluated, error)
  return float(_epsilon_bound(delta)(tpr, fpr))


def trials_to_show(
  epsilon: float, delta: float, confidence: float = 0.95
) -> int:
  """Returns the fewest trials with `largest_lower_bound` above `epsilon`.

  Args:
    epsilon: >= 0.
    delta: In (0, 1).
    confidence: In (0, 1).

  Returns:
    An even number of trials under each data set.

  Raises:
    ValueError: If an argument is out of range, or no number is large enough.
  """
  epsilon = _validate.non_negative('epsilon', epsilon)
  delta = _validate.open_unit('delta', delta)
  error = (1 - _validate.open_unit('confidence', confidence)) / 2
  # Without errors, TPR >= r and FPR <= 1 - r with r = error^(1/n), and
  # r - delta > e^epsilon (1 - r) from 1 - r = (1 - delta) / (1 + e^epsilon) on.
  log_r = math.log1p(-(1 - delta) * special.expit(-epsilon))
  if log_r == 0:
    raise ValueError(
      'epsilon must be small enough for a finite number of trials, got'
      f' {epsilon!r}'
    )
  evaluated = math.floor(math.log(error) / log_r) + 1
  return max(2 * evaluated, MINIMUM_TRIALS)


def roc_curve(scores: np.ndarray, alternative_scores: np.ndarray) -> np.ndarray:
  """Computes rates at about 400 thresholds, from high to low.

  The thresholds are dense where either rate is near 0 or 1.

  Args:
    scores: Scores of runs on D, [trials].
    alternative_scores: Scores of runs on D', [trials].

  Returns:
    float64 [thresholds, 3]: threshold, false and true positive rate.
  """
  values = _candidates(scores, alternative_scores, _CURVE_POINTS)[::-1]
  return np.stack(
    [
      values,
      _above(alternative_scores, values) / len(alternative_scores),
      _above(scores, values) / len(scores),
    ],
    axis=1,
  )
