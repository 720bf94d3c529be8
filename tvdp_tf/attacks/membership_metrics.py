"""How well an attack tells members from others, and how sure that is.

All metrics are over the examples of all trials. Examples of one trial share a
model: the standard errors come from resampling trials, never examples.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import stats

FALSE_POSITIVE_RATE = 1e-3

_RESAMPLES = 200


@dataclasses.dataclass(frozen=True)
class Metrics:
  """How well an attack did; each with its standard error over the trials.

  Attributes:
    success: The share of right answers at threshold 0, members and others
      weighing the same; 1/2 is guessing. The paper's success rate.
    success_stderr: Its standard error.
    auc: The probability that a member scores above another; ties count half.
    auc_stderr: Its standard error.
    tpr: The share of members found where at most 0.1 % of the others are taken
      for members (Carlini et al., 2022).
    tpr_stderr: Its standard error.
  """

  success: float
  success_stderr: float
  auc: float
  auc_stderr: float
  tpr: float
  tpr_stderr: float


def success_rate(members: np.ndarray, others: np.ndarray) -> float:
  """Balanced accuracy of taking scores above 0 for members."""
  return (float(np.mean(members > 0)) + float(np.mean(others <= 0))) / 2


def area_under_curve(members: np.ndarray, others: np.ndarray) -> float:
  """The area under the ROC curve; ties count half."""
  members, others = members.ravel(), others.ravel()
  ranks = stats.rankdata(np.concatenate([members, others]))
  above = ranks[: len(members)].sum() - len(members) * (len(members) + 1) / 2
  return float(above / (len(members) * len(others)))


def true_positive_rate(
  members: np.ndarray,
  others: np.ndarray,
  false_positive_rate: float = FALSE_POSITIVE_RATE,
) -> float:
  """The share of members above the lowest threshold that allows it.

  Args:
    members: Scores of members.
    others: Scores of the others.
    false_positive_rate: At most this share of the others may be above the
      threshold: of fewer than 1,000 none at all, for 0.1 %.

  Returns:
    The share.
  """
  descending = np.sort(others, axis=None)[::-1]
  allowed = int(false_positive_rate * len(descending))
  if allowed >= len(descending):
    return 1.0
  return float(np.mean(members > descending[allowed]))


def split(
  scores: np.ndarray, members: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Scores [trials, n, 2] as those of members and of the others, [trials, n].

  Args:
    scores: Of both examples of every pair.
    members: bool, of that shape, exactly one of each pair.

  Returns:
    Both, pair by pair.
  """
  shape = scores.shape[:-1]
  return scores[members].reshape(shape), scores[~members].reshape(shape)


def measure(members: np.ndarray, others: np.ndarray) -> Metrics:
  """All metrics with their standard errors.

  Args:
    members: Scores of members, [trials, n].
    others: Scores of the others, of that shape.

  Returns:
    The metrics.
  """
  metrics: tuple[Callable[..., float], ...] = (
    success_rate,
    area_under_curve,
    true_positive_rate,
  )
  rng = np.random.default_rng(0)  # The same scores, the same numbers.
  trials = len(members)
  resampled = []
  for _ in range(_RESAMPLES):
    chosen = rng.integers(trials, size=trials)
    resampled.append([m(members[chosen], others[chosen]) for m in metrics])
  errors = np.std(resampled, axis=0)
  values: list[float] = []
  for metric, error in zip(metrics, errors.tolist(), strict=True):
    values += [metric(members, others), error]
  return Metrics(*values)
