r"""What every client has spent, and whether more releases fit the target.

There is one `Spending` in memory for each target. A ledger has one for all its
runs and one for each run. A mechanism has one for its run, up to the current
round (`Mechanism.spending`); the statement, the metrics and the noise of later
rounds are computed from it.

Without sampling, a client's Gaussian releases are one Gaussian release with

  mu^2 = sum of 1/z_m^2,

where mu is that of Gaussian differential privacy (Dong, Roth and Su, 2022) and
mu^2 is twice the rho of zCDP (Bun and Steinke, 2016). A cap on that sum is a
valid privacy filter: z_m and the number of releases may depend on what was
released before. A set of releases fits if one of these holds, each of which
proves it:

  sum of (z_0 / z_m)^2 <= 1, z_0 the smallest multiplier that meets the target,
  in integer arithmetic, rounded up;
  the exact epsilon of the equivalent release (`accounting.delivered_epsilon`),
  rounded up, is within the target.

So a schedule that is calibrated to the target in either way fits exactly, and
no further release does. Pure epsilons add up as exact fractions.

With Poisson sampling a round costs every client the same, whoever is drawn, and
epsilon comes from the Renyi accountant. If the best order for the releases is
chosen at the end, the epsilon is valid for noise that was fixed in advance, but
not for noise that depends on earlier releases. Several runs may depend on each
other, as in tuning, and their rounds may differ in noise and sampling rate. The
same is true of a run whose noise differs from round to round and that continues
after an interruption: what it releases again depends on when it was
interrupted. For these the order a is fixed in the header. If the sum of the
conditional Renyi divergences of order a stays below a fixed bound, whatever is
released, then so does the divergence of all releases (Feldman and Zrnic, 2021,
theorem 3.1; Lecuyer, 2021). The bound is the one that converts to the target at
that order.
"""

import abc
import fractions
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tvdp_tf.privacy import _ledger_format as format_lib
from tvdp_tf.privacy import (
  _rdp,
  _released,
  accounting,
  gaussian,
  noise_distance,
)

# Bounds the relative rounding error of a running sum of positive terms.
ROUNDED_UP = 1 + 1e-12
# Larger than the share of a budget that calibration leaves by rounding.
_LEFT_BY_ROUNDING = 1e-9
# The relative rounding error of running sums is about 1e-12. This close to the
# limit, the releases themselves are checked.
_NEAR = 1e-9
# Up to this number, releases are listed one by one, as the accountants do.
_MAX_LISTED = 1_000_000
_FIXED_POINT_BITS = 160

# How often each amount (noise multiplier or pure epsilon) was released.
Releases = Mapping[float, int]


@functools.lru_cache(maxsize=4096)
def _epsilon_of_mu(mu: float, delta: float) -> float:
  return gaussian.epsilon_of_mu(mu, delta)


# Cached by (noise multiplier, sampling rate, order), because one takes half a
# second at order 2^14.
_round_moment = functools.lru_cache(maxsize=4096)(_rdp.round_moment)


def _listed(releases: Releases) -> np.ndarray:
  """Noise multipliers > 0, ascending, one per release.

  If there are too many, equal ones are merged into one, rounded down.
  """
  values = np.array(sorted(releases), np.float64)
  counts = np.array([releases[value] for value in values.tolist()], np.int64)
  if counts.sum() <= _MAX_LISTED:
    return np.repeat(values, counts)
  return np.sort(values / np.sqrt(counts) * (1 - 2.0**-50))


def _within(releases: Releases, smallest: float) -> bool:
  """Whether sum of (smallest / z)^2 <= 1, rounded up."""
  numerator, denominator = smallest.as_integer_ratio()
  total = 0
  for value, count in releases.items():
    over, under = value.as_integer_ratio()
    dividend = ((numerator * under) ** 2) << _FIXED_POINT_BITS
    total -= count * (-dividend // (denominator * over) ** 2)
  return total <= 1 << _FIXED_POINT_BITS


class Spending(abc.ABC):
  """What every client has spent. The caller must have checked the amounts.

  Attributes:
    clients: Number of clients.
    target_epsilon: What each of them may spend; inf for no limit.
    delta: The delta of all epsilons.
  """

  def __init__(self, clients: int, target_epsilon: float, delta: float):
    self.clients = clients
    self.target_epsilon = target_epsilon
    self.delta = delta

  @abc.abstractmethod
  def affordable(
    self,
    clients: np.ndarray,
    amounts: np.ndarray,
    count: int,
    rate: float = 1.0,
  ) -> np.ndarray:
    """Whether `count` more releases fit into the target; bool [k].

    Args:
      clients: int [k].
      amounts: Noise multipliers or pure epsilons of one release, float64 [k]
        (or [1], for all).
      count: Number of releases of each client.
      rate: Sampling rate of the release; 1 without sampling.
    """

  @abc.abstractmethod
  def charge(
    self,
    clients: np.ndarray,
    amounts: np.ndarray,
    count: int,
    rate: float = 1.0,
  ):
    """Adds releases, even if they do not fit; arguments as for `affordable`."""

  def record(
    self,
    clients: Sequence[int],
    noise_multipliers: Sequence[float] | None = None,
    releases_per_client: int = 1,
    laplace_epsilon: float | None = None,
    rate: float = 1.0,
  ):
    """Adds a round of new releases; arguments as for `PrivacyLedger.record`.

    Args:
      clients: Who takes part.
      noise_multipliers: Noise multiplier of each release, or one for all.
      releases_per_client: Number of releases of each client.
      laplace_epsilon: Pure epsilon of each, instead of `noise_multipliers`.
      rate: Sampling rate of the release; 1 without sampling.
    """
    amounts = (
      [laplace_epsilon] if noise_multipliers is None else noise_multipliers
    )
    self.charge(
      np.array(clients, np.int64),
      np.array(amounts, np.float64),
      releases_per_client,
      rate,
    )

  @abc.abstractmethod
  def epsilon(
    self, client: int, amount: float = 0.0, count: int = 0, rate: float = 1.0
  ) -> float:
    """What a client has spent, with `count` more releases; rounded up."""

  @abc.abstractmethod
  def epsilons(self) -> np.ndarray:
    """What every client has spent, float64 [clients]."""

  @abc.abstractmethod
  def worst_epsilon(self) -> float:
    """What the client that spent the most has spent; cheap in every round."""

  @abc.abstractmethod
  def by_spending(self) -> list[int]:
    """The clients, from the one that has spent the least to the most."""

  @abc.abstractmethod
  def noise_multipliers(self, client: int) -> np.ndarray:
    """Noise multipliers of all releases that count for a client."""

  @property
  def squared_mu(self) -> np.ndarray:
    """Sum of 1/z^2 of each client, rounded to nearest, float64 [clients].

    Raises:
      NotImplementedError: If the releases are not unsampled Gaussian ones.
    """
    raise NotImplementedError(f'{type(self).__name__} has no sum of 1/z^2')

  def spent_of(self, budget: float) -> np.ndarray:
    """`squared_mu`, rounded up; float64 [clients].

    What only rounding leaves of a budget counts as spent: it would buy noise
    that drowns the model.

    Args:
      budget: Squared mu that each client may spend.
    """
    spent = self.squared_mu * ROUNDED_UP
    return np.where(spent > budget * (1 - _LEFT_BY_ROUNDING), budget, spent)


class _ClientSpending(Spending):
  """Every client is charged for its own releases."""

  def __init__(self, clients: int, target_epsilon: float, delta: float):
    super().__init__(clients, target_epsilon, delta)
    self._releases = _released.ClientReleases(clients)
    # Upper bounds on what was spent, as a fraction of the target.
    self._spent = np.zeros(clients)

  @abc.abstractmethod
  def _part(self, amounts: np.ndarray) -> np.ndarray:
    """The fraction of the target that one release costs, rounded to nearest."""

  @abc.abstractmethod
  def _epsilon(self, releases: Releases) -> float:
    """The epsilon of one or more releases, rounded up."""

  def _fraction(self, amounts: np.ndarray, count: int) -> np.ndarray:
    """Upper bound on the fraction of the target that releases cost; or inf."""
    with np.errstate(all='ignore'):
      # Use a normal number: products of smaller ones are not exact to 2^-53.
      part = np.maximum(self._part(amounts), np.finfo(np.float64).tiny)
      part = part * count
    return np.where(np.isnan(part), np.inf, part * (1 + 2.0**-48))

  def affordable(self, clients, amounts, count, rate=1.0):
    del rate
    if self.target_epsilon == math.inf:
      return np.ones(clients.shape, bool)
    amounts = np.broadcast_to(amounts, clients.shape)
    after = self._spent[clients] + self._fraction(amounts, count)
    fits = after * (1 + 2.0**-50) <= 1 - _NEAR
    near = ~fits & (after <= 2)
    for i in np.flatnonzero(near).tolist():
      releases = self._with(int(clients[i]), float(amounts[i]), count)
      fits[i] = self._epsilon(releases) <= self.target_epsilon
    return fits

  def charge(self, clients, amounts, count, rate=1.0):
    del rate
    amounts = np.broadcast_to(amounts, clients.shape)
    cost = self._fraction(amounts, count)
    self._spent[clients] = (self._spent[clients] + cost) * (1 + 2.0**-50)
    self._releases.add(clients, amounts, count)

  def epsilon(self, client, amount=0.0, count=0, rate=1.0):
    del rate
    releases = self._with(client, amount, count)
    return self._epsilon(releases) if releases else 0.0

  def epsilons(self):
    result = np.zeros(self.clients)
    for client in self._releases.clients():
      result[client] = self.epsilon(client)
    return result

  def worst_epsilon(self):
    return float(self.epsilons().max())

  def by_spending(self):
    return np.argsort(self.epsilons(), kind='stable').tolist()

  def noise_multipliers(self, client):
    return _listed(self._releases.of(client))

  def _with(self, client: int, amount: float, count: int) -> Releases:
    releases = self._releases.of(client)
    if count:
      releases[amount] = releases.get(amount, 0) + count
    return releases


class GaussianSpending(_ClientSpending):
  """Gaussian releases, each charged to the client that makes it."""

  def __init__(self, clients: int, target_epsilon: float, delta: float):
    super().__init__(clients, target_epsilon, delta)
    self._squared_mu = np.zeros(clients)

  @functools.cached_property
  def _smallest(self) -> float:
    """z_0: the smallest noise multiplier that meets the target."""
    if self.target_epsilon == math.inf:
      return 0.0
    return gaussian.gaussian_noise_multiplier(self.target_epsilon, self.delta)

  def _part(self, amounts):
    part = self._smallest / amounts
    return part * part

  def charge(self, clients, amounts, count, rate=1.0):
    super().charge(clients, amounts, count, rate)
    with np.errstate(all='ignore'):
      # A tiny amount is still more than 0, except for infinite noise.
      least = np.where(np.isinf(amounts), 0.0, np.finfo(np.float64).tiny)
      squared_mu = np.maximum(amounts**-2.0, least)
      self._squared_mu[clients] += count * squared_mu

  @property
  def squared_mu(self) -> np.ndarray:
    return self._squared_mu.copy()

  def _worst(self) -> int:
    """The client that has spent the most."""
    # Rounding may have changed the order of sums that are this close. Clients
    # with the same bits in both sums are taken to have the same releases.
    least = self._squared_mu.max() / ROUNDED_UP**2
    close = np.flatnonzero(self._squared_mu >= least)
    sums = (self._squared_mu[close].tolist(), self._spent[close].tolist())
    of_sums = dict(zip(zip(*sums, strict=True), close.tolist(), strict=True))
    return max(of_sums.values(), key=self.epsilon)

  def worst_epsilon(self):
    return self.epsilon(self._worst())

  def by_spending(self):
    worst = self._worst()
    order = np.argsort(self._squared_mu, kind='stable').tolist()
    order.remove(worst)
    return [*order, worst]

  def _epsilon(self, releases):
    if 0.0 in releases:
      return math.inf
    mu = accounting.equivalent_mu(_listed(releases))
    epsilon = _epsilon_of_mu(mu, self.delta)
    # It was rounded up twice, and may exceed a target that is proven to be met
    # by some units in the last place.
    if epsilon > self.target_epsilon and _within(releases, self._smallest):
      return self.target_epsilon
    return epsilon


class LaplaceSpending(_ClientSpending):
  """Releases of pure epsilon, each charged to the client that makes it."""

  def _part(self, amounts):
    return amounts / self.target_epsilon

  def noise_multipliers(self, client):
    return 1 / super().noise_multipliers(client)

  def _epsilon(self, releases):
    if math.inf in releases:
      return math.inf
    total = sum(
      fractions.Fraction(amount) * count for amount, count in releases.items()
    )
    try:
      epsilon = float(total)
    except OverflowError:
      return math.inf
    return epsilon if epsilon >= total else math.nextafter(epsilon, math.inf)


class _CommonSpending(Spending):
  """Every round is charged to every client, whoever was drawn."""

  def epsilons(self):
    return np.full(self.clients, self.epsilon(0))

  def worst_epsilon(self):
    return self.epsilon(0)

  def by_spending(self):
    return list(range(self.clients))


def _is_ordinary(multiplier: float, rate: float) -> bool:
  """Whether no limiting case of `accounting` applies to a sampled round."""
  return (
    _rdp.SMALLEST_RATE <= rate < 1
    and _rdp.SMALLEST_MULTIPLIER <= multiplier <= _rdp.LARGEST_MULTIPLIER
  )


class PoissonSpending(_CommonSpending):
  """Poisson-sampled rounds of one run, at the best Renyi order for them.

  Renyi moments add up over the rounds, so `worst_epsilon` and `affordable` only
  compute the moments of one round. `epsilon` composes the whole list, so its
  result does not depend on the order of the rounds.

  >>> spending = PoissonSpending(clients=10, target_epsilon=5.0, delta=1e-5)
  >>> for z in (1.0, 2.0):
  ...   spending.record([], [z], rate=0.1)
  >>> round(spending.worst_epsilon(), 4)
  2.1426
  """

  def __init__(self, clients: int, target_epsilon: float, delta: float):
    super().__init__(clients, target_epsilon, delta)
    # Sampling rate of the run; 0 if none of its rounds is recorded.
    self._rate = 0.0
    # In the order of the rounds.
    self._multipliers: list[float] = []
    # Whether no limiting case of `accounting` applies to any of them.
    self._ordinary = True
    # Order -> (number of rounds summed, sum of their moments).
    self._sums: dict[float, tuple[int, float]] = {}
    self._listed_epsilon = (0, 0.0)

  def affordable(self, clients, amounts, count, rate=1.0):
    multiplier = float(amounts[0])
    # Either proves it. Try the rounded-up sum first, and then the whole list.
    fits = (
      self._summed_epsilon(multiplier, count, rate, 1 + _NEAR)
      <= self.target_epsilon
      or self.epsilon(0, multiplier, count, rate) <= self.target_epsilon
    )
    return np.full(clients.shape, fits)

  def charge(self, clients, amounts, count, rate=1.0):
    if rate > self._rate:
      self._rate = rate
      self._sums.clear()
    multiplier = float(amounts[0])
    self._multipliers += [multiplier] * count
    self._ordinary = self._ordinary and _is_ordinary(multiplier, rate)

  def epsilon(self, client, amount=0.0, count=0, rate=1.0):
    if count:
      more = [*self._multipliers, *[amount] * count]
      return self._epsilon_of(more, max(rate, self._rate))
    if self._listed_epsilon[0] != len(self._multipliers):
      epsilon = self._epsilon_of(self._multipliers, self._rate)
      self._listed_epsilon = (len(self._multipliers), epsilon)
    return self._listed_epsilon[1]

  def worst_epsilon(self):
    if self._multipliers and self._ordinary:
      return self._summed_epsilon()
    return self.epsilon(0)

  def noise_multipliers(self, client):
    return np.array(self._multipliers, np.float64)

  def _epsilon_of(self, multipliers: list[float], rate: float) -> float:
    if 0.0 in multipliers:
      return math.inf
    return accounting.delivered_epsilon(
      multipliers, self.delta, 'rdp', 'poisson', rate
    )

  def _summed_epsilon(
    self,
    amount: float = 1.0,
    count: int = 0,
    rate: float = 0.0,
    rounded_up: float = 1.0,
  ) -> float:
    """Epsilon with `count` more rounds, from the sums; inf if out of reach.

    Args:
      amount: Noise multiplier of these rounds.
      count: Number of these rounds.
      rate: Sampling rate of these rounds.
      rounded_up: Factor that the sums are multiplied by.
    """
    rate = max(rate, self._rate)
    # A run has one rate: sums at another one are not worth keeping.
    of_the_run = rate == self._rate or not self._multipliers
    ordinary = self._ordinary and (not count or _is_ordinary(amount, rate))
    if not (ordinary and of_the_run):
      return math.inf

    def moment_at(order: float) -> float:
      moment = self._moment_at(order)
      if count:
        moment += count * _round_moment(amount, rate, order)
      return moment * rounded_up

    return _rdp.epsilon_of_moments(moment_at, self.delta)

  def _moment_at(self, order: float) -> float:
    done, total = self._sums.get(order, (0, 0.0))
    # Add one by one, so that the sum has the same bits whenever it is computed.
    for multiplier in self._multipliers[done:]:
      total += _round_moment(multiplier, self._rate, order)
    self._sums[order] = (len(self._multipliers), total)
    return total


class RenyiSpending(_CommonSpending):
  """Poisson-sampled rounds of any runs, at one order fixed in advance."""

  def __init__(
    self, clients: int, target_epsilon: float, delta: float, order: float
  ):
    super().__init__(clients, target_epsilon, delta)
    self._order = order
    # How often each (noise multiplier, sampling rate) was released.
    self._releases: dict[tuple[float, float], int] = {}
    # Moment of one round, for each key of `_releases`.
    self._moments: dict[tuple[float, float], float] = {}

  def affordable(self, clients, amounts, count, rate=1.0):
    epsilon = self.epsilon(0, float(amounts[0]), count, rate)
    return np.full(clients.shape, epsilon <= self.target_epsilon)

  def charge(self, clients, amounts, count, rate=1.0):
    key = (float(amounts[0]), rate)
    self._releases[key] = self._releases.get(key, 0) + count
    if key not in self._moments:
      self._moments[key] = _round_moment(*key, self._order)

  def epsilon(self, client, amount=0.0, count=0, rate=1.0):
    releases = dict(self._releases)
    if count:
      releases[amount, rate] = releases.get((amount, rate), 0) + count
    if not releases:
      return 0.0
    moments = self._moments
    moment = math.fsum(
      times
      * (moments[key] if key in moments else _round_moment(*key, self._order))
      for key, times in releases.items()
    )
    return _rdp.epsilon_at(
      np.array([self._order]), np.array([moment]), self.delta
    )

  def noise_multipliers(self, client):
    return np.repeat(
      np.array([multiplier for multiplier, _ in self._releases], np.float64),
      np.array([*self._releases.values()], np.int64),
    )


def of(
  header: format_lib.LedgerHeader, target_epsilon: float, delta: float
) -> Spending:
  """Returns an empty `Spending` of the kind that a ledger's header requires.

  Args:
    header: The header.
    target_epsilon: What may be spent; inf for no limit.
    delta: What the noise leaves of the header's delta (`left_of_delta`).
  """
  what = (header.clients, target_epsilon, delta)
  if header.accounting == format_lib.LAPLACE:
    return LaplaceSpending(*what)
  if header.sampling != format_lib.POISSON:
    return GaussianSpending(*what)
  if header.renyi_order is None:
    return PoissonSpending(*what)
  return RenyiSpending(*what, header.renyi_order)


def left_of_delta(
  delta: float, target_epsilon: float, distance: float
) -> float:
  """The part of a delta that the noise generators leave for the accountants.

  If they take too much, it is all of it: then nothing is proven, see
  `is_gaussian_enough`.

  Args:
    delta: Delta of the ledger.
    target_epsilon: The epsilon promised at it.
    distance: `noise_distance` of all runs together.
  """
  if distance == 0 or not is_gaussian_enough(delta, target_epsilon, distance):
    return delta
  share = noise_distance.share_of_distance(target_epsilon, distance)
  return math.nextafter(delta - share, 0.0)


def is_gaussian_enough(
  delta: float, target_epsilon: float, distance: float
) -> bool:
  """Whether the noise generators take little of a delta, and at most half."""
  if distance == 0:
    return True
  if target_epsilon == math.inf:
    return False
  share = noise_distance.share_of_distance(target_epsilon, distance)
  return share < noise_distance.LARGEST_SHARE and share <= delta / 2
