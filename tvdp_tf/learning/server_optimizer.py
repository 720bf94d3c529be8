r"""How the server applies the mean update: momentum, decay and averaging.

With D_m the clients' mean update in round m = 1..M, noise included,

  v_m = momentum v_{m-1} + D_m
  w_m = w_{m-1} + s_m (D_m + momentum v_m)             (Nesterov's momentum)
  s_m = 1 - (1 - final_step) (m - 1) / (M - 1)
  a_m = sum_{j <= m} average^(m-j) w_j / sum_{j <= m} average^(m-j)

The clients receive w_m; a_m is evaluated and exported. All of this is
post-processing of what the clients have released, and costs no privacy. The TFF
version is in `tvdp_tf.federated.learning_process`.
"""

import dataclasses

from tvdp_tf import _validate


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
  """The server optimizer above; by default, it adds the mean update unchanged.

  Attributes:
    momentum: In [0, 1).
    average: The weight of the past in the average, in [0, 1); 0 averages
      nothing: a_m = w_m.
    final_step: Step of the last round divided by that of the first, in (0, 1].
    rounds: M, for the decay; later rounds use the step of round M.

  Raises:
    ValueError: If a number is out of its range.
  """

  momentum: float = 0.0
  average: float = 0.0
  final_step: float = 1.0
  rounds: int = 1

  def __post_init__(self):
    for name in ('momentum', 'average'):
      value = _validate.non_negative(name, getattr(self, name))
      if value >= 1:
        raise ValueError(f'{name} must be a number in [0, 1), got {value!r}')
    _validate.rate('final_step', self.final_step)
    _validate.integer('rounds', self.rounds)

  @property
  def is_plain(self) -> bool:
    """Whether the new model is the old one plus the mean update."""
    return (self.momentum, self.average, self.final_step) == (0.0, 0.0, 1.0)

  def step(self, completed: int) -> float:
    """Returns s_m after this many completed rounds."""
    share = min(1.0, completed / max(1, self.rounds - 1))
    return 1 - (1 - self.final_step) * share
