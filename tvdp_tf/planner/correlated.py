r"""The noise that correlated noise would leave in the last model, same budget.

A factorized mechanism releases C x + z, where x are the sums of the rounds and
z has independent values. From it, it computes x + L z with L C = 1: the noise
of a round depends on that of other rounds. Tree aggregation and banded matrices
are such mechanisms, and so is independent noise, with a diagonal C.

A user is in the rounds of a set S, and moves the sum of each by at most 1, in
any direction. So the release moves by at most

  sens^2 = max over users of sum_{i, j in S} |(C'C)_ij|,

over all columns of the user together. Where they overlap, as in a tree whose
root is a sum of all rounds, their lengths add up, not their squares. The noise
in the last model has the variance

  sens^2 |L'a|^2 / mu^2,

where a are the weights of the rounds in it (`best_schedule.impulse_response`).
"""

import dataclasses

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.planner import best_schedule


@dataclasses.dataclass(frozen=True)
class Factorization:
  """A mechanism of correlated Gaussian noise.

  Attributes:
    name: Name of the mechanism, in words.
    factor: C, float64 [n, rounds].
    noise: L, float64 [rounds, n].
  """

  name: str
  factor: np.ndarray
  noise: np.ndarray

  def squared_sensitivity(self, planned: np.ndarray) -> float:
    """Returns sens^2.

    Args:
      planned: bool [users, rounds], who is in which round.
    """
    products = np.abs(self.factor.T @ self.factor)
    patterns = np.unique(planned, axis=0).astype(np.float64)
    return float(np.einsum('ui,ij,uj->u', patterns, products, patterns).max())

  def variance(self, response: np.ndarray, planned: np.ndarray) -> float:
    """Variance of the noise in the last model, times mu^2.

    Args:
      response: a, float64 [rounds].
      planned: As for `squared_sensitivity`.
    """
    seen = response @ self.noise
    return self.squared_sensitivity(planned) * float(seen @ seen)


def independent(
  name: str, shape: privacy.NoiseShape, rounds: int
) -> Factorization:
  """Independent noise in every round.

  Args:
    name: Name of the mechanism, in words.
    shape: Shape of its variances.
    rounds: M.
  """
  logs = shape.log_variances(rounds)
  stddevs = np.exp((logs - logs.mean()) / 2)
  return Factorization(name, np.diag(1 / stddevs), np.diag(stddevs))


def tree(rounds: int) -> Factorization:
  """Tree aggregation, in the efficient form that TFF has (Honaker, 2015).

  The nodes are sums of 2^h rounds; a prefix is the sum of complete subtrees,
  and each of these is estimated from all of its nodes.

  Args:
    rounds: M.
  """
  rows: list[np.ndarray] = []
  # (last round of a node, height) -> the estimate before its factor.
  buffers: dict[tuple[int, int], np.ndarray] = {}
  count = sum(rounds >> h for h in range(rounds.bit_length()))
  prefixes = np.zeros([rounds + 1, count])
  for end in range(1, rounds + 1):
    height = 0
    while end % 2**height == 0:
      row = np.zeros(rounds)
      row[end - 2**height : end] = 1
      buffer = np.zeros(count)
      buffer[len(rows)] = 1
      rows.append(row)
      if height:
        half = 2 ** (height - 1)
        left = buffers[end - half, height - 1]
        buffer += (left + buffers[end, height - 1]) / 2
      buffers[end, height] = buffer
      height += 1
    largest = height - 1
    prefixes[end] = prefixes[end - 2**largest] + buffers[end, largest] / (
      2 - 0.5**largest
    )
  return Factorization(
    "tree aggregation, TFF's", np.stack(rows), np.diff(prefixes, axis=0)
  )


def banded_root(rounds: int, bands: int) -> Factorization:
  """The square root of the matrix of prefix sums, cut to a band.

  Its coefficients are those of (1 - x)^(-1/2): Kalinin and Lampert, "Banded
  Square Root Matrix Factorization", 2024. One band is constant noise.

  Args:
    rounds: M.
    bands: Number of bands, from 1 to `rounds`.
  """
  k = np.arange(1, bands)
  coefficients = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
  factor = sum(
    np.diag(np.full(rounds - i, value), -i)
    for i, value in enumerate(coefficients)
  )
  words = f'{bands} band' + 's' * (bands > 1)
  return Factorization(
    f'banded square root, {words}', np.asarray(factor), np.linalg.inv(factor)
  )


def best_banded_root(
  response: np.ndarray, planned: np.ndarray
) -> Factorization:
  """The banded root, of two or more bands, with the least noise in the model.

  Args:
    response: As for `Factorization.variance`.
    planned: As for `Factorization.variance`.
  """
  rounds = len(response)
  return min(
    (banded_root(rounds, bands) for bands in range(min(2, rounds), rounds + 1)),
    key=lambda found: found.variance(response, planned),
  )


def compare(
  response: np.ndarray,
  planned: np.ndarray,
  squared_mu: float,
  noise_multipliers: np.ndarray,
) -> tuple[tuple[str, float], ...]:
  """Standard deviations in the last model, relative to that of a plan.

  Args:
    response: As for `Factorization.variance`.
    planned: As for `Factorization.variance`, for the alternatives. Secret
      sampling does not reduce their noise, but it may reduce the plan's.
    squared_mu: mu^2, the budget of the alternatives.
    noise_multipliers: The plan's own, independent noise, float64 [rounds].

  Returns:
    Pairs (name, standard deviation), the smallest first.
  """
  rounds = len(response)
  own = float(response**2 @ noise_multipliers**2)
  best = best_schedule.advise(response, privacy.GeometricShape(1.0)).schedule
  candidates = (
    independent('independent, constant', privacy.GeometricShape(1.0), rounds),
    independent(
      'independent, best for a user in every round',
      privacy.ListedShape(best),
      rounds,
    ),
    tree(rounds),
    best_banded_root(response, planned),
  )
  found = {
    each.name: float(
      np.sqrt(each.variance(response, planned) / squared_mu / own)
    )
    for each in candidates
  }
  found['as planned'] = 1.0
  # The plan comes first among equals.
  return tuple(
    sorted(
      found.items(), key=lambda row: (round(row[1], 3), row[0] != 'as planned')
    )
  )
