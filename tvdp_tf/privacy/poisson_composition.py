"""Epsilon of Poisson-sampled releases while they happen, one by one.

`accounting.delivered_epsilon` composes a whole list: asked after each of M
rounds it computes M^2 / 2 moments. Moments of Renyi accounting add up over the
rounds, so that here a round costs the moments of that round alone.
"""

import itertools

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.privacy import _rdp, accounting


class PoissonComposition:
  """What Poisson-sampled Gaussian releases have delivered so far.

  >>> composition = PoissonComposition(sampling_rate=0.1, delta=1e-5)
  >>> composition.add(1.0)
  >>> composition.add(2.0)
  >>> round(composition.epsilon(), 4)
  2.1426
  """

  def __init__(self, sampling_rate: float, delta: float):
    """Starts without releases.

    Args:
      sampling_rate: q in (0, 1], with which every user is drawn.
      delta: In (0, 1).

    Raises:
      ValueError: If an argument is out of range.
    """
    self._rate = _validate.rate('sampling_rate', sampling_rate)
    self._delta = _validate.open_unit('delta', delta)
    self._multipliers: list[float] = []
    # Order -> (releases that are in it, their moments' sum).
    self._sums: dict[float, tuple[int, float]] = {}

  def add(self, noise_multiplier: float) -> None:
    """Adds the release of a round, noise relative to what a user contributes.

    Raises:
      ValueError: If the noise multiplier is not a finite number > 0.
    """
    self._multipliers.append(
      _validate.positive('noise_multiplier', noise_multiplier)
    )

  def epsilon(self) -> float:
    """As `delivered_epsilon` with accountant 'rdp', but for rounding."""
    if not self._multipliers:
      return 0.0
    if not self._is_ordinary():
      return accounting.delivered_epsilon(
        self._multipliers, self._delta, 'rdp', 'poisson', self._rate
      )
    return _rdp.epsilon_of_moments(self._moment_at, self._delta)

  def _is_ordinary(self) -> bool:
    """Whether no limiting case of `accounting` applies."""
    return (
      1e-50 <= self._rate < 1
      and min(self._multipliers) >= 1e-50
      and max(self._multipliers) <= 1e50
    )

  def _moment_at(self, order: float) -> float:
    done, total = self._sums.get(order, (0, 0.0))
    # One by one: the sum is the same to the bit whenever it is asked for.
    for multiplier, equal in itertools.groupby(self._multipliers[done:]):
      moment = _rdp.poisson_moments(
        np.array([multiplier]), np.array([1]), self._rate, np.array([order])
      )[0]
      for _ in equal:
        total += float(moment)
    self._sums[order] = (len(self._multipliers), total)
    return total
