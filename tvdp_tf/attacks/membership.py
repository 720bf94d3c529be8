r"""Membership inference: which examples was a model trained on?

The game. There are n pairs of examples, each assigned to a user. For every
model and every pair, a fair coin decides on which of the two the user trains:
the member. The other one is not used. So all sizes are public, and flipping a
coin replaces one example of one user. An (epsilon, delta) for replacing one
example limits what that reveals.

The attacker knows everything except the coins and the noise: all settings, the
initial weights, who takes part when, and both examples of every pair (the
paper's D_a, which overlaps with the users' data). It sees the global models
that the server broadcasts: only the last one, or those after all rounds. It
does not see single uploads. The server does, so an epsilon against the server
holds against this attacker as well.

The attacker trains shadow models with the code and settings of the target, and
with its own coins. There are three attacks. Each gives an example a score,
which is above 0 if the attack takes the example for a member:

  shadow            Shokri et al. (2017), the paper's Table III: a classifier
                    learns from the last shadow models to tell outputs on
                    members from outputs on others (a logistic regression).
  lira              Carlini et al. (2022), online: the likelihood ratio of the
                    last model's log-odds on an example, between the Gaussians
                    of the shadow models with it and of those without it.
  lira_all_rounds   The same on the mean of the log-odds after every round.

**Metrics** measure how well an attack tells members from others, with standard
errors. All metrics are over the examples of all trials. Examples of one trial
share a model, so the standard errors come from resampling trials, never
examples.

**The epsilon that is shown** is a lower bound with confidence. It is computed
in two ways. The first takes one pair at random from each trial. Trials are
independent runs, so `lower_bound` applies to these scores, with its thresholds
and Clopper-Pearson limits. But this discards most of the evidence.

The second uses all pairs. Those of one trial share a model and are not
independent, but their coins are. Steinke, Nasr and Jagielski, "Privacy Auditing
with One (1) Training Run" (2023), consider a mechanism that is
(epsilon, delta)-private in n coins. They show that v or more of r guesses are
right with probability at most

  p(v) = P[B >= v] + 2 n delta max_i P[v > B >= v - i] / i,

B ~ Binomial(r, e^epsilon / (1 + e^epsilon)). The number of right guesses in
each trial is dominated by a variable with these tails. Trials are independent,
so their total is dominated by the sum of these variables, whose distribution is
a convolution. (If all coins were treated as those of one run, delta would count
as if it could occur in all trials together.) An epsilon is refuted if it makes
the observed number of right guesses too unlikely.

The attacker guesses that the example with the larger score is the member: first
in all pairs, then only in the quarter of each trial's pairs whose scores differ
most. Every bound takes its share of the error, so all hold at once.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy import special, stats
from sklearn import linear_model, pipeline, preprocessing

from tvdp_tf import _validate
from tvdp_tf.attacks import lower_bound

ATTACKS = ('shadow', 'lira', 'lira_all_rounds')

# Weight, in shadow models, of the joint variance that an example's own variance
# is shrunk to: from about 64 models on, half of them with the example, its own
# outweighs it. (With fewer models, Carlini et al. use the joint variance.)
_PRIOR_MODELS = 32.0
# Far below the resolution of float32.
_LEAST_VARIANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class Models:
  """Models in the game, and what the attacker sees of them.

  Attributes:
    outputs: float [models, rounds, n, 2, classes], outputs of the model after
      each round on both examples of every pair: logits; or, [..., 1], the score
      of the second of two classes.
    labels: int [n, 2], labels of the examples.
    members: bool [models, n, 2]: exactly one of each pair was trained on.
  """

  outputs: np.ndarray
  labels: np.ndarray
  members: np.ndarray

  def __post_init__(self):
    if not (self.members.sum(axis=-1) == 1).all():
      raise ValueError('members must have exactly one member in each pair')
    if not np.isfinite(self.outputs).all():
      raise ValueError('outputs must be finite')


def _logits(outputs: np.ndarray) -> np.ndarray:
  if outputs.shape[-1] == 1:
    outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=-1)
  return outputs.astype(np.float64)


def log_odds(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """ln(p / (1 - p)), p the probability of the label: the scaled confidence.

  Args:
    outputs: float [..., classes] or [..., 1], as in `Models`.
    labels: int [...], or broadcastable to it.

  Returns:
    float64 [...]; exact where p is so close to 1 that 1 - p rounds to 0.
  """
  logits = _logits(outputs)
  own = np.broadcast_to(labels, logits.shape[:-1])[..., np.newaxis]
  others = logits.copy()
  np.put_along_axis(others, own, -np.inf, axis=-1)
  of_label = np.take_along_axis(logits, own, axis=-1)[..., 0]
  return of_label - special.logsumexp(others, axis=-1)


def _moments(
  values: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns count, mean and variance over each example's chosen models."""
  count = chosen.sum(axis=0)
  mean = np.where(chosen, values, 0).sum(axis=0) / count
  squares = np.where(chosen, (values - mean) ** 2, 0).sum(axis=0)
  joint = squares.sum() / np.maximum((count - 1).sum(), 1)
  variance = (_PRIOR_MODELS * joint + squares) / (_PRIOR_MODELS + count - 1)
  return count, mean, np.maximum(variance, _LEAST_VARIANCE)


def likelihood_ratios(
  shadow_values: np.ndarray,
  shadow_members: np.ndarray,
  target_values: np.ndarray,
) -> np.ndarray:
  """LiRA: log-likelihood ratios of Gaussians with and without the example.

  Few shadow models reveal little about a single example. Its variances are
  shrunk towards those of all examples, and the distance of its two means
  towards the average distance, according to their errors (empirical Bayes).

  Args:
    shadow_values: float [shadow models, ...], one number per example.
    shadow_members: bool, of the same shape; for every example, there is a model
      with it and one without it.
    target_values: float [target models, ...].

  Returns:
    float64 [target models, ...]: ln p(value | member) - ln p(value | other).

  Raises:
    ValueError: If an example is in all shadow models or in none.
  """
  shadow_values = np.asarray(shadow_values, np.float64)
  if (shadow_members.all(axis=0) | ~shadow_members.any(axis=0)).any():
    raise ValueError(
      'shadow_members must have, for each example, a model with it and one'
      ' without'
    )
  n_in, mean_in, var_in = _moments(shadow_values, shadow_members)
  n_out, mean_out, var_out = _moments(shadow_values, ~shadow_members)
  error = var_in / n_in + var_out / n_out
  distance = mean_in - mean_out
  average = np.average(distance, weights=1 / error)
  between = max(distance.var() - error.mean(), 0.0)
  distance = average + between / (between + error) * (distance - average)
  # Both means, given their distance.
  weight_in, weight_out = n_in / var_in, n_out / var_out
  without = (weight_out * mean_out + weight_in * (mean_in - distance)) / (
    weight_in + weight_out
  )
  return (
    (target_values - without) ** 2 / var_out
    - (target_values - without - distance) ** 2 / var_in
    + np.log(var_out / var_in)
  ) / 2


def _features(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Inputs of the shadow attack's classifier, float64 [examples, features].

  These are the log-odds of the label and all sorted class probabilities.
  """
  probabilities = np.sort(special.softmax(_logits(outputs), axis=-1), axis=-1)
  odds = log_odds(outputs, labels)[..., np.newaxis]
  features = np.concatenate([odds, probabilities], axis=-1)
  return features.reshape(-1, features.shape[-1])


def shadow_model_scores(shadows: Models, targets: Models) -> np.ndarray:
  """Runs the attack of Shokri et al. on the models after the last round.

  Args:
    shadows: The shadow models.
    targets: The models under attack; their `members` are not used.

  Returns:
    float64 [targets, n, 2]: log-odds of membership.
  """
  classifier = pipeline.make_pipeline(
    preprocessing.StandardScaler(), linear_model.LogisticRegression()
  )
  classifier.fit(
    _features(shadows.outputs[:, -1], shadows.labels), shadows.members.ravel()
  )
  scores = classifier.decision_function(
    _features(targets.outputs[:, -1], targets.labels)
  )
  return scores.reshape(targets.members.shape)


def scores(shadows: Models, targets: Models) -> dict[str, np.ndarray]:
  """Runs all attacks.

  Args:
    shadows: The shadow models.
    targets: The models under attack; their `members` are not used.

  Returns:
    For each of `ATTACKS`, float64 [targets, n, 2].
  """
  seen, under_attack = (
    log_odds(models.outputs, models.labels) for models in (shadows, targets)
  )
  return {
    'shadow': shadow_model_scores(shadows, targets),
    'lira': likelihood_ratios(
      seen[:, -1], shadows.members, under_attack[:, -1]
    ),
    'lira_all_rounds': likelihood_ratios(
      seen.mean(axis=1), shadows.members, under_attack.mean(axis=1)
    ),
  }


FALSE_POSITIVE_RATE = 1e-3

_RESAMPLES = 200


@dataclasses.dataclass(frozen=True)
class Metrics:
  """An attack's success, with standard errors over the trials.

  Attributes:
    success: Fraction of right answers at threshold 0, with equal weight for
      members and others; 1/2 is guessing. The paper's success rate.
    success_stderr: Its standard error.
    auc: Probability that a member scores above another example; ties count
      half.
    auc_stderr: Its standard error.
    tpr: Fraction of members found if at most 0.1 % of the others are taken for
      members (Carlini et al., 2022).
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
  """Computes the TPR at the lowest threshold with at most a given FPR.

  Args:
    members: Scores of members.
    others: Scores of the others.
    false_positive_rate: At most this fraction of the others may be above the
      threshold. With 0.1 % of fewer than 1,000 others, none may be.

  Returns:
    The fraction of members above the threshold.
  """
  descending = np.sort(others, axis=None)[::-1]
  allowed = int(false_positive_rate * len(descending))
  if allowed >= len(descending):
    return 1.0
  return float(np.mean(members > descending[allowed]))


def split_scores(
  scores: np.ndarray, members: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Splits scores [trials, n, 2] into members' and others', [trials, n] each.

  Args:
    scores: Scores of both examples of every pair.
    members: bool, of the same shape; exactly one of each pair is True.

  Returns:
    The scores of members and of others, pair by pair.
  """
  shape = scores.shape[:-1]
  return scores[members].reshape(shape), scores[~members].reshape(shape)


def measure(members: np.ndarray, others: np.ndarray) -> Metrics:
  """Computes all metrics with their standard errors.

  Args:
    members: Scores of members, [trials, n].
    others: Scores of the others, of the same shape.

  Returns:
    The metrics.
  """
  metrics: tuple[Callable[..., float], ...] = (
    success_rate,
    area_under_curve,
    true_positive_rate,
  )
  rng = np.random.default_rng(0)  # Reproducible.
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


# Fractions of the pairs in which to guess, fixed before any data are seen.
_GUESSED = (1.0, 0.25)
_BOUNDS = len(_GUESSED) + 1

# Beyond it, numbers are indistinguishable; no number of trials comes close.
_LARGEST_EPSILON = 60.0


def _upper_tail(
  guesses: int, pairs: int, epsilon: float, delta: float
) -> np.ndarray:
  """Bounds P[right >= v] in a trial for v = 0 to `guesses`; descending."""
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
  """Bounds the probability of at least `right` guesses under (epsilon, delta).

  Args:
    right: Number of right guesses, out of `trials * guesses`.
    trials: Number of independent runs of the mechanism.
    guesses: Number of guesses in each trial, fixed in advance.
    pairs: n, the number of coins in each trial, >= `guesses`.
    epsilon: >= 0.
    delta: In [0, 1).

  Returns:
    An upper bound on the probability.
  """
  tail = _upper_tail(guesses, pairs, epsilon, delta)
  probabilities = -np.diff(tail, append=0.0)
  size = trials * guesses + 1
  total = np.fft.irfft(np.fft.rfft(probabilities, 2 * size) ** trials)
  rounded = 1e-13 * trials  # More than what the transforms round.
  return float(np.clip(total[right:size].sum() + rounded, 0.0, 1.0))


def guesses_lower_bound(
  right: int,
  trials: int,
  guesses: int,
  pairs: int,
  delta: float,
  error: float,
) -> float:
  """Computes the epsilon that this many right guesses show.

  Args:
    right: Number of right guesses, out of `trials * guesses`.
    trials: Number of independent runs of the mechanism.
    guesses: Number of guesses in each trial, fixed in advance.
    pairs: n, the number of coins in each trial, >= `guesses`.
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
  """Returns the largest of the bounds above, which all hold at once.

  Args:
    members: Scores of the member of each pair, [trials, n].
    others: Scores of the other example, of the same shape.
    delta: In (0, 1).
    confidence: In (0, 1): the bound is true with this probability, for any
      mechanism.

  Returns:
    Epsilon is at least this; 0 if nothing is shown.

  Raises:
    ValueError: If an argument is out of range, or there are too few trials.
  """
  delta = _validate.open_unit('delta', delta)
  error = (1 - _validate.open_unit('confidence', confidence)) / _BOUNDS
  trials, pairs = members.shape
  _validate.integer('trials', trials, lower_bound.MINIMUM_TRIALS)
  differences = members - others
  # Most confident first; ties, which favor neither, count as wrong.
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
