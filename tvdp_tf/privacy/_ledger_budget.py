r"""What clients have spent, and whether one more release fits.

Without sampling, a client's Gaussian releases are one Gaussian release with
1/z^2 = sum of 1/z_m^2, and a cap on that sum is a valid privacy filter: z_m and
the number of releases may depend on what was released before. A set of releases
fits where either holds, both of which prove it:

  sum of (z_0 / z_m)^2 <= 1, z_0 the smallest multiplier that meets the target,
  in integer arithmetic, rounded up;
  the exact epsilon of the equivalent release (`accounting.delivered_epsilon`),
  rounded up, is within the target.

So a schedule fits that is calibrated to the target either way, to the last
bit, and no release more. Pure epsilons add up, as exact fractions.

With Poisson sampling a round costs every client the same, whoever is drawn, and
epsilon is the Renyi accountant's. In a ledger of one run the order is the best
for it, chosen at the end: valid for noise that was fixed in advance, not for
noise that depends on what was released. Several runs may depend on each other,
as when settings are tuned; their rounds may differ in noise and sampling rate.
For them the order a is fixed in the header: where the sum of the conditional
Renyi divergences of order a stays below a fixed bound, whatever is released,
that of all releases does (Feldman and Zrnic, 2021, theorem 3.1; Lecuyer, 2021).
The bound is what converts to the target at that order.
"""

import abc
import fractions
import functools
import math
from collections.abc import Mapping

import numpy as np

from tvdp_tf.privacy import _ledger_format as format_lib
from tvdp_tf.privacy import _rdp, accounting, gaussian, noise_distance

# Running sums are good to 1e-12 or so; within this much of the limit the
# releases themselves are looked at.
_NEAR = 1e-9
# Up to here releases are listed one by one, as the accountants take them.
_MAX_LISTED = 1_000_000
_FIXED_POINT_BITS = 160

# How often each amount (noise multiplier or pure epsilon) was released.
Releases = Mapping[float, int]


@functools.lru_cache(maxsize=4096)
def _epsilon_of_mu(mu: float, delta: float) -> float:
  return gaussian.epsilon_of_mu(mu, delta)


def _listed(releases: Releases) -> np.ndarray:
  """Noise multipliers > 0, ascending, one a release; or an upper bound."""
  values = np.array(sorted(releases), np.float64)
  counts = np.array([releases[value] for value in values.tolist()])
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


class Budget(abc.ABC):
  """What every client has spent. Amounts are checked before they come here."""

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
      count: Releases of each client.
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
    """Adds releases, whether or not they fit; arguments as `affordable`."""

  @abc.abstractmethod
  def epsilon(
    self, client: int, amount: float = 0.0, count: int = 0, rate: float = 1.0
  ) -> float:
    """What a client has spent, with `count` more releases; rounded up."""

  @abc.abstractmethod
  def epsilons(self) -> np.ndarray:
    """What every client has spent, float64 [clients]."""


class ClientBudget(Budget):
  """Every client is charged for its own releases."""

  def __init__(
    self, header: format_lib.LedgerHeader, target: float, delta: float
  ):
    self._target = target
    self._delta = delta
    self._laplace = header.accounting == format_lib.LAPLACE
    self._smallest = 0.0
    if not self._laplace and self._target < math.inf:
      self._smallest = gaussian.gaussian_noise_multiplier(
        self._target, self._delta
      )
    self._releases: dict[int, dict[float, int]] = {}
    # Upper bounds of what was spent, as a fraction of the target.
    self._spent = np.zeros(header.clients)

  def _fraction(self, amounts: np.ndarray, count: int) -> np.ndarray:
    """Upper bound of the part of the target that releases cost; or inf."""
    with np.errstate(all='ignore'):
      part: np.ndarray = self._smallest / amounts
      part = amounts / self._target if self._laplace else part * part
      # A normal number: products of smaller ones are not good to 2^-53.
      part = np.maximum(part, np.finfo(np.float64).tiny) * count
    return np.where(np.isnan(part), np.inf, part * (1 + 2.0**-48))

  def affordable(self, clients, amounts, count, rate=1.0):
    del rate
    if self._target == math.inf:
      return np.ones(clients.shape, bool)
    amounts = np.broadcast_to(amounts, clients.shape)
    after = self._spent[clients] + self._fraction(amounts, count)
    fits = after * (1 + 2.0**-50) <= 1 - _NEAR
    near = ~fits & (after <= 2)
    for i in np.flatnonzero(near).tolist():
      releases = self._with(int(clients[i]), float(amounts[i]), count)
      fits[i] = self._epsilon(releases) <= self._target
    return fits

  def charge(self, clients, amounts, count, rate=1.0):
    del rate
    amounts = np.broadcast_to(amounts, clients.shape)
    cost = self._fraction(amounts, count)
    self._spent[clients] = (self._spent[clients] + cost) * (1 + 2.0**-50)
    pairs = zip(clients.tolist(), amounts.tolist(), strict=True)
    for client, amount in pairs:
      releases = self._releases.setdefault(client, {})
      releases[amount] = releases.get(amount, 0) + count

  def epsilon(self, client, amount=0.0, count=0, rate=1.0):
    del rate
    return self._epsilon(self._with(client, amount, count))

  def epsilons(self):
    result = np.zeros(self._spent.shape)
    for client in self._releases:
      result[client] = self.epsilon(client)
    return result

  def _with(self, client: int, amount: float, count: int) -> Releases:
    releases = dict(self._releases.get(client, {}))
    if count:
      releases[amount] = releases.get(amount, 0) + count
    return releases

  def _epsilon(self, releases: Releases) -> float:
    if not releases:
      return 0.0
    if self._laplace:
      return self._laplace_epsilon(releases)
    if 0.0 in releases:
      return math.inf
    mu = accounting.equivalent_mu(_listed(releases))
    epsilon = _epsilon_of_mu(mu, self._delta)
    # Rounded up twice, it may exceed by some units in the last place a target
    # that is proven to be met.
    if epsilon > self._target and _within(releases, self._smallest):
      return self._target
    return epsilon

  def _laplace_epsilon(self, releases: Releases) -> float:
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


# Integer orders alone: their moments are sums, 3 ms a round.
_FAST_ORDERS = np.array([*range(2, 65), 128, 256, 512, 1024], np.float64)


class PoissonBudget(Budget):
  """Every round is charged to every client at the one run's sampling rate."""

  def __init__(
    self, header: format_lib.LedgerHeader, target: float, delta: float
  ):
    self._target = target
    self._delta = delta
    self._rate = 1.0
    self._clients = header.clients
    self._releases: dict[float, int] = {}
    self._version = 0
    self._cached = (0, 0.0)
    self._moments = np.zeros_like(_FAST_ORDERS)
    self._pending: list[float] = []

  def affordable(self, clients, amounts, count, rate=1.0):
    self._rate = rate
    multiplier = float(amounts[0])
    fits = self._quick_epsilon(multiplier) <= self._target or (
      self.epsilon(0, multiplier, count, rate) <= self._target
    )
    return np.full(clients.shape, fits)

  def charge(self, clients, amounts, count, rate=1.0):
    self._rate = rate
    multiplier = float(amounts[0])
    self._releases[multiplier] = self._releases.get(multiplier, 0) + count
    self._pending += [multiplier] * count
    self._version += 1

  def epsilon(self, client, amount=0.0, count=0, rate=1.0):
    releases = dict(self._releases)
    if count:
      self._rate = rate
      releases[amount] = releases.get(amount, 0) + count
      return self._epsilon(releases)
    if self._cached[0] != self._version:
      self._cached = (self._version, self._epsilon(releases))
    return self._cached[1]

  def epsilons(self):
    return np.full(self._clients, self.epsilon(0))

  def _epsilon(self, releases: Releases) -> float:
    if 0.0 in releases:
      return math.inf
    return accounting.delivered_epsilon(
      _listed(releases), self._delta, 'rdp', 'poisson', self._rate
    )

  def _quick_epsilon(self, multiplier: float) -> float:
    """An upper bound of epsilon after one more round; inf if out of reach."""
    if self._rate == 1 or multiplier == 0 or 0.0 in self._releases:
      return math.inf
    from dp_accounting import rdp as rdp_lib  # noqa: PLC0415

    self._moments += self._moments_of(self._pending)
    self._pending = []
    moments = self._moments + self._moments_of([multiplier])
    rdp = moments / (_FAST_ORDERS - 1) * (1 + 1e-9)
    epsilon, _ = rdp_lib.compute_epsilon(_FAST_ORDERS, rdp, self._delta)
    return math.inf if math.isnan(epsilon) else float(epsilon)

  def _moments_of(self, multipliers: list[float]) -> np.ndarray:
    if not multipliers:
      return np.zeros_like(_FAST_ORDERS)
    values, counts = np.unique(multipliers, return_counts=True)
    return _rdp.poisson_moments(values, counts, self._rate, _FAST_ORDERS)


# By (noise multiplier, sampling rate, order): half a second at order 2^14.
_round_moment = functools.lru_cache(maxsize=4096)(_rdp.round_moment)


class RenyiBudget(Budget):
  """Every round is charged to every client, at one order fixed in advance."""

  def __init__(
    self, header: format_lib.LedgerHeader, target: float, delta: float
  ):
    assert header.renyi_order is not None
    self._target = target
    self._delta = delta
    self._order = header.renyi_order
    self._clients = header.clients
    # How often each (noise multiplier, sampling rate) was released.
    self._releases: dict[tuple[float, float], int] = {}

  def affordable(self, clients, amounts, count, rate=1.0):
    fits = self.epsilon(0, float(amounts[0]), count, rate) <= self._target
    return np.full(clients.shape, fits)

  def charge(self, clients, amounts, count, rate=1.0):
    key = (float(amounts[0]), rate)
    self._releases[key] = self._releases.get(key, 0) + count

  def epsilon(self, client, amount=0.0, count=0, rate=1.0):
    releases = dict(self._releases)
    if count:
      releases[amount, rate] = releases.get((amount, rate), 0) + count
    if not releases:
      return 0.0
    moment = math.fsum(
      times * _round_moment(multiplier, rate, self._order)
      for (multiplier, rate), times in releases.items()
    )
    return _rdp.epsilon_at(
      np.array([self._order]), np.array([moment]), self._delta
    )

  def epsilons(self):
    return np.full(self._clients, self.epsilon(0))


def budget_of(
  header: format_lib.LedgerHeader, target_epsilon: float, distance: float = 0.0
) -> Budget:
  """A budget of the kind that the header calls for, nothing spent.

  Args:
    header: The header.
    target_epsilon: What may be spent.
    distance: `noise_distance` of the runs that spend it, which costs of delta.
  """
  delta = left_of_delta(header.delta, target_epsilon, distance)
  if header.sampling != format_lib.POISSON:
    return ClientBudget(header, target_epsilon, delta)
  if header.renyi_order is None:
    return PoissonBudget(header, target_epsilon, delta)
  return RenyiBudget(header, target_epsilon, delta)


def left_of_delta(
  delta: float, target_epsilon: float, distance: float
) -> float:
  """What the noise generators leave of a delta for the accountants.

  All of it where they take too much: then nothing is proven, see
  `is_gaussian_enough`.

  Args:
    delta: The ledger's.
    target_epsilon: What is promised at it.
    distance: `noise_distance` of all runs together.
  """
  if distance == 0 or not is_gaussian_enough(delta, target_epsilon, distance):
    return delta
  share = noise_distance.share_of_distance(target_epsilon, distance)
  return math.nextafter(delta - share, 0.0)


def is_gaussian_enough(
  delta: float, target_epsilon: float, distance: float
) -> bool:
  """Whether the noise generators take little of a delta, at most half."""
  if distance == 0:
    return True
  if target_epsilon == math.inf:
    return False
  share = noise_distance.share_of_distance(target_epsilon, distance)
  return share < noise_distance.LARGEST_SHARE and share <= delta / 2
