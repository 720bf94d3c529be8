"""The rules of `--calibration` that set the noise, by their names.

printed  Theorem 1 as printed, unsound (`paper.theorem1_stddev`)
tight    the paper's moment bound, solved exactly (`paper.tight_moment_stddev`)
exact, rdp, pld  an accountant, without sampling (`calibration.calibrate`)
"""

import math

from tvdp_tf import _validate
from tvdp_tf.privacy import calibration as calibration_lib
from tvdp_tf.privacy import paper
from tvdp_tf.privacy import schedule as schedule_lib
from tvdp_tf.privacy import statement as statement_lib

# For a mechanism with a guarantee: noise is not calibrated to a claim.
ACCOUNTED = ('exact', 'rdp', 'pld')
CALIBRATIONS = ('printed', 'tight', *ACCOUNTED)

_ACCOUNTANTS = {
  'exact': 'exact Gaussian curve',
  'rdp': 'Renyi accountant',
  'pld': 'privacy loss distribution',
}


def soundness(
  calibration: str, *, epsilon: float, delta: float, sampling_rate: float
) -> tuple[bool, str]:
  """Whether an epsilon may rest on a rule, and why, in a few words.

  Args:
    calibration: One of `CALIBRATIONS`.
    epsilon: The target, > 0.
    delta: In (0, 1).
    sampling_rate: q in (0, 1].

  Raises:
    ValueError: If there is no such rule.
  """
  _validate.one_of('calibration', calibration, CALIBRATIONS)
  if calibration == 'printed':
    own = paper.moment_bound_epsilon(
      epsilon * epsilon / (2 * -math.log(delta)), delta
    )
    text = statement_lib.format_epsilon(own)
    return False, f'Theorem 1; its own moment bound gives epsilon {text}'
  if calibration == 'tight':
    if sampling_rate == 1:
      return True, 'moment bound, which holds for q = 1'
    return False, 'moment bound linear in q, which is false for q < 1'
  return True, _ACCOUNTANTS[calibration]


def schedule_for_every_round(
  calibration: str,
  *,
  epsilon: float,
  delta: float,
  theta: float | schedule_lib.NoiseShape,
  rounds: int,
  sampling_rate: float,
  sensitivity: float,
) -> schedule_lib.NoiseSchedule:
  """The noise that a rule sets for one release of a client in a round.

  Args:
    calibration: One of `CALIBRATIONS`.
    epsilon: The target, > 0.
    delta: In (0, 1).
    theta: Ratio of the variances of successive rounds, > 0; or another shape
      of the noise, for the accountants: the paper's formulas are for a theta.
    rounds: M. The accountants calibrate to a client that releases in every one
      of them: no credit for rounds missed.
    sampling_rate: q in (0, 1], by which the paper's two formulas take off.
    sensitivity: L2 sensitivity of one release, > 0.

  Returns:
    The schedule, in the unit of `sensitivity`.

  Raises:
    ValueError: If an argument is out of range, or no noise meets the target.
  """
  _validate.one_of('calibration', calibration, CALIBRATIONS)
  _validate.rate('sampling_rate', sampling_rate)
  if calibration in ACCOUNTED:
    return calibration_lib.calibrate(
      epsilon, delta, theta, rounds, sensitivity, accountant=calibration
    )
  if isinstance(theta, schedule_lib.NoiseShape):
    if not isinstance(theta, schedule_lib.GeometricShape):
      raise ValueError(
        f'calibration must be one of {", ".join(ACCOUNTED)} with a schedule'
        f' that is not geometric, got {calibration!r}'
      )
    theta = theta.theta
  formula = paper.tight_moment_stddev
  if calibration == 'printed':
    formula = paper.theorem1_stddev
  stddev = formula(theta, rounds, epsilon, delta, sampling_rate, sensitivity)
  return schedule_lib.GeometricSchedule(theta, rounds, stddev)
