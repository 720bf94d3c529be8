r"""Each client's noise from its own planned participations.

A client that takes part in the rounds P_k, with t releases in each, spends

  sum_{m in P_k} t / z_{k,m}^2,  z_{k,m}^2 = (v_m / v_1) z_{k,1}^2

of the budget B = 1/z_eff^2, z_eff the noise multiplier of the one Gaussian
release that delivers (epsilon, delta). So each client can have the z_{k,1} that
spends its budget exactly, and after any change of plan the one that spends what
is left (cf. `refinement`):

  z_{k,1}^2 = sum_{m in P_k, m > done} t (v_1 / v_m) / (B - spent_k)

No amplification is claimed: who takes part when is taken as known to all.
"""

import functools

import numpy as np
from scipy import sparse

from tvdp_tf import _validate
from tvdp_tf.privacy import calibration, schedule

# A sum of terms, however it is rounded, must not exceed the budget.
_MARGIN = 1e-10


# Of one target, for every plan that is compared.
@functools.lru_cache(maxsize=256, typed=True)
def equivalent_noise_multiplier(
  epsilon: float, delta: float, accountant: str = 'exact'
) -> float:
  """z_eff of the one unsampled Gaussian release that delivers the target.

  Args:
    epsilon: Target, > 0.
    delta: In (0, 1).
    accountant: As of `accounting.delivered_epsilon`.

  Raises:
    ValueError: If an argument is out of range.
  """
  return calibration.calibrate(
    epsilon, delta, 1.0, 1, accountant=accountant
  ).initial_stddev


def initial_noise_multipliers(
  planned: np.ndarray | sparse.csr_array,
  theta: float | schedule.NoiseShape,
  releases_per_round: int,
  budget: float,
  spent: np.ndarray | float = 0.0,
  completed: int = 0,
) -> np.ndarray:
  """z_{k,1} of every client.

  Args:
    planned: bool [clients, rounds], who is to take part in which round; sparse
      where there are many.
    theta: Ratio of the noise variances of successive rounds, > 0; or another
      shape of the noise.
    releases_per_round: t >= 1, releases of a client in a round.
    budget: B > 0: 1 / `equivalent_noise_multiplier`^2.
    spent: What each client has spent of it already, [clients].
    completed: The rounds 1..completed are over.

  Returns:
    float64 [clients]; inf for a client without a round to come or a budget
    left: it must not take part.

  Raises:
    ValueError: If an argument is out of range or a result not representable.
  """
  shape = schedule.as_shape(theta)
  releases_per_round = _validate.integer(
    'releases_per_round', releases_per_round
  )
  budget = _validate.positive('budget', budget)
  clients, rounds = planned.shape
  completed = _validate.integer('completed', completed, 0, rounds)
  left = budget - np.broadcast_to(np.asarray(spent, np.float64), [clients])
  # Relative to the largest term of each client, lest a power overflow.
  exponents = -shape.log_variances(rounds)[completed:]
  future = sparse.csr_array(planned)[:, completed:]
  future.eliminate_zeros()
  ends = future.indptr
  taking_part = (np.diff(ends) > 0) & (left > 0)
  result = np.full([clients], np.inf)
  for client in np.flatnonzero(taking_part):
    own = exponents[future.indices[ends[client] : ends[client + 1]]]
    log_sum = own.max() + np.log(np.sum(np.exp(own - own.max())))
    log_square = log_sum + np.log(releases_per_round / left[client])
    with np.errstate(over='ignore'):
      result[client] = np.exp(log_square / 2) * (1 + _MARGIN)
  wrong = taking_part & ~((result > 1e-300) & (result < 1e300))
  if wrong.any():
    raise ValueError(
      f'{shape.setting} must leave the noise of round 1 representable, got'
      f' {shape} over {rounds} rounds'
    )
  return result
