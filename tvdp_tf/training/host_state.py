"""What a checkpoint holds beside the state of the learning process."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tvdp_tf.training import metrics as round_metrics


class HostState(NamedTuple):
  """What a checkpoint holds beside the process's state.

  Attributes:
    total: The number of rounds planned.
    last_loss: That of the plateau detector.
    releases: The length of the plan's history.
    plan: The plan's snapshot.
    rows: The metrics of all rounds; the last may lack its evaluation.
  """

  total: int
  last_loss: float
  releases: int
  plan: Mapping[str, np.ndarray]
  rows: list[round_metrics.Row]

  def to_arrays(self) -> dict[str, np.ndarray]:
    """By name, for a checkpoint."""
    columns = round_metrics.columns(self.rows)
    return {
      'total': np.array(self.total),
      'last_loss': np.array(self.last_loss),
      'releases': np.array(self.releases),
      **{f'plan_{name}': value for name, value in self.plan.items()},
      **{f'row_{name}': value for name, value in columns.items()},
    }

  @classmethod
  def parse(
    cls, completed: int, arrays: Mapping[str, np.ndarray]
  ) -> 'HostState':
    """The reverse of `to_arrays`, maybe of a damaged file.

    Args:
      completed: The number of rounds completed.
      arrays: Of `to_arrays`.

    Raises:
      KeyError: If one is missing.
      ValueError: If they cannot be those of so many rounds.
    """

    def part(prefix: str) -> dict[str, np.ndarray]:
      return {
        name.removeprefix(prefix): value
        for name, value in arrays.items()
        if name.startswith(prefix)
      }

    host = cls(
      int(arrays['total']),
      float(arrays['last_loss']),
      int(arrays['releases']),
      part('plan_'),
      round_metrics.rows(part('row_'), completed),
    )
    if not completed <= min(host.total, host.releases):
      raise ValueError('it must hold as many releases as rounds')
    return host
