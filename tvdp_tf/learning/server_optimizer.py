r"""What the server does with the mean update: momentum, decay, an average.

With D_m the clients' mean update in round m = 1..M, noise included,

  v_m = momentum v_{m-1} + D_m
  w_m = w_{m-1} + s_m (D_m + momentum v_m)             (Nesterov's momentum)
  s_m = 1 - (1 - final_step) (m - 1) / (M - 1)
  a_m = sum_{j <= m} average^(m-j) w_j / sum_{j <= m} average^(m-j)

The clients are sent w_m; what is evaluated and exported is a_m. All of it is
post-processing of what the clients have released, and costs no privacy. In
TFF: `tvdp_tf.federated.learning_process`.
"""

import dataclasses

import numpy as np

from tvdp_tf import _validate


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
  """See above; by default the mean update is added as it is.

  Attributes:
    momentum: In [0, 1).
    average: The weight of the past in the average, in [0, 1); at 0 it is w_m.
    final_step: The last round's step over the first one's, in (0, 1].
    rounds: M, for the decay; later rounds take the last one's step.

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

  def impulse_response(self, rounds: int) -> np.ndarray:
    """How much D_m moves the model at the end, if nothing shrinks it.

    a_m of the last (averaged) model sum_m a_m D_m, float64 [rounds].
    """
    response = np.zeros(rounds)
    weights = self.average ** np.arange(rounds - 1, -1, -1.0)
    weights /= weights.sum()
    for start in range(rounds):
      velocity = model = 0.0
      for m in range(start, rounds):
        update = 1.0 if m == start else 0.0
        velocity = self.momentum * velocity + update
        model += self.step(m) * (update + self.momentum * velocity)
        response[start] += weights[m] * model
    return response

  def step(self, completed: int) -> float:
    """s_m after so many completed rounds."""
    share = min(1.0, completed / max(1, self.rounds - 1))
    return 1 - (1 - self.final_step) * share
