"""Splits of a data set over users: seeded, complete and disjoint."""

import numpy as np

from tvdp_tf import _validate


def _check(num_examples: int, users: int) -> None:
  _validate.integer('users', users)
  if users > num_examples:
    raise ValueError(
      f'users must be at most the number of training examples, '
      f'{num_examples}, got {users}'
    )


def iid(num_examples: int, users: int, seed: int) -> list[np.ndarray]:
  """Shuffles the examples and deals them out evenly.

  Args:
    num_examples: Size of the data set.
    users: U, at most `num_examples`.
    seed: Seed of the shuffle.

  Returns:
    A sorted int64 index array per user; sizes differ by at most one.

  Raises:
    ValueError: If `users` is out of its range.
  """
  _check(num_examples, users)
  order = np.random.default_rng(seed).permutation(num_examples)
  return [np.sort(part) for part in np.array_split(order, users)]


def dirichlet(
  labels: np.ndarray, users: int, concentration: float, seed: int
) -> list[np.ndarray]:
  """Splits each class over the users by a Dirichlet(concentration) draw.

  This label skew is the usual non-IID benchmark (Hsu et al., 2019; Yurochkin et
  al., 2019): small concentrations give users few classes and unequal sizes,
  large ones approach an even split. A user without examples is given one
  example of the largest user, so that everyone can train.

  Args:
    labels: Integer array [n].
    users: U, at most n.
    concentration: Parameter of the symmetric Dirichlet distribution, > 0.
    seed: Seed of the draw.

  Returns:
    A sorted, non-empty int64 index array per user.

  Raises:
    ValueError: If `users` or `concentration` is out of its range.
  """
  _check(len(labels), users)
  concentration = _validate.positive('concentration', concentration)
  rng = np.random.default_rng(seed)
  parts: list[list[int]] = [[] for _ in range(users)]
  for label in np.unique(labels):
    members = rng.permutation(np.flatnonzero(labels == label))
    # Normalized gamma draws: numpy's dirichlet returns NaN for tiny values.
    shares = rng.standard_gamma(concentration, users)
    total = shares.sum()
    shares = shares / total if total > 0 else np.eye(users)[rng.integers(users)]
    ends = np.round(np.cumsum(shares) * len(members)).astype(int)
    for user, share in enumerate(np.split(members, ends[:-1])):
      parts[user].extend(share.tolist())
  for part in parts:
    if not part:
      part.append(max(parts, key=len).pop())
  return [np.sort(np.array(part, np.int64)) for part in parts]
