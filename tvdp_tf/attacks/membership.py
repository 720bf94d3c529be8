r"""Membership inference: which examples was a model trained on?

The game. There are n pairs of examples, each dealt to a user. For every model
and every pair a fair coin decides which of the two the user trains on, the
member; the other one is not seen. All sizes are thus public, and flipping a
coin replaces one example of one user: what an (epsilon, delta) for replacing
one example limits.

The attacker knows everything but the coins and the noise: all settings, the
initial weights, who takes part when, and both examples of every pair (the
paper's D_a, which overlaps with the users' data). It sees the global models
that the server broadcasts: the last one alone, or those after all rounds. It
does not see single uploads. The server does; an epsilon against the server
holds for this attacker all the more.

With the code and settings of the target the attacker trains shadow models, with
coins of its own. Three attacks, each a score for an example that is above 0
where it takes the example for a member:

  shadow            Shokri et al. (2017), the paper's Table III: a classifier
                    learns from the last shadow models to tell outputs on
                    members from outputs on others (a logistic regression).
  lira              Carlini et al. (2022), online: the likelihood ratio of the
                    last model's log-odds on an example, between the Gaussians
                    of the shadow models with it and of those without it.
  lira_all_rounds   The same on the mean of the log-odds after every round.
"""

import dataclasses

import numpy as np
from scipy import special
from sklearn import linear_model, pipeline, preprocessing

ATTACKS = ('shadow', 'lira', 'lira_all_rounds')

# Shadow models whose joint variance an example's own is shrunk to: from about
# 64 models on, half of them with the example, its own outweighs it. (Below,
# Carlini et al. use the joint one.)
_PRIOR_MODELS = 32.0
# Far below what float32 tells apart.
_LEAST_VARIANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class Models:
  """Models in the game, and what the attacker sees of them.

  Attributes:
    outputs: float [models, rounds, n, 2, classes]: on both examples of every
      pair, of the model after each round: logits; or, [..., 1], the score of
      the second of two classes.
    labels: int [n, 2], of the examples.
    members: bool [models, n, 2]: exactly one of each pair was trained on.
  """

  outputs: np.ndarray
  labels: np.ndarray
  members: np.ndarray

  def __post_init__(self):
    if not (self.members.sum(axis=-1) == 1).all():
      raise ValueError('members must be exactly one of each pair')
    if not np.isfinite(self.outputs).all():
      raise ValueError('outputs must be finite')


def _logits(outputs: np.ndarray) -> np.ndarray:
  if outputs.shape[-1] == 1:
    outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=-1)
  return outputs.astype(np.float64)


def log_odds(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """ln(p / (1 - p)), p the probability of the label: the scaled confidence.

  Args:
    outputs: float [..., classes] or [..., 1], as of `Models`.
    labels: int [...], or what broadcasts to it.

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
  """Over the chosen models of each example: count, mean, variance of one."""
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
  """LiRA: log likelihood ratios of Gaussians with and without the example.

  Few shadow models tell little about one example. Its variances are shrunk to
  those of all examples, and the distance of its two means to the average
  distance, by as much as their errors call for (empirical Bayes).

  Args:
    shadow_values: float [shadow models, ...], one number an example.
    shadow_members: bool, of that shape; for every example there is a model
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
      'shadow_members must hold a model with and one without each example'
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
  """What the shadow attack's classifier sees, float64 [examples, features].

  The log-odds of the label and the sorted probabilities of all classes.
  """
  probabilities = np.sort(special.softmax(_logits(outputs), axis=-1), axis=-1)
  odds = log_odds(outputs, labels)[..., np.newaxis]
  features = np.concatenate([odds, probabilities], axis=-1)
  return features.reshape(-1, features.shape[-1])


def shadow_model_scores(shadows: Models, targets: Models) -> np.ndarray:
  """The attack of Shokri et al. on the models after the last round.

  Args:
    shadows: The shadow models.
    targets: The models under attack; their `members` are not looked at.

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
    targets: The models under attack; their `members` are not looked at.

  Returns:
    For each of `ATTACKS` float64 [targets, n, 2].
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
