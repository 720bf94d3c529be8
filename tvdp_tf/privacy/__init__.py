"""Schedules, accountants, calibration and planning; NumPy and SciPy only.

Importing this package loads neither TensorFlow nor TensorFlow Federated;
dp_accounting is imported by the functions that use it.
"""

from tvdp_tf.privacy.accounting import (
  ACCOUNTANTS,
  SAMPLINGS,
  delivered_epsilon,
  is_sound,
)
from tvdp_tf.privacy.budget import Budget
from tvdp_tf.privacy.calibration import (
  calibrate,
  new_maximum_rounds,
  refine_stddev,
  schedule_for_every_round,
)
from tvdp_tf.privacy.claims import CheckedClaim, check_claim
from tvdp_tf.privacy.convergence import (
  BoundTerms,
  ConvergenceSetting,
  contraction,
  convergence_bound,
  convergence_terms,
  descent_coefficient,
  divergence_gap,
  divergence_gap_derivative,
  sound_bound,
)
from tvdp_tf.privacy.gaussian import (
  gaussian_delta,
  gaussian_epsilon,
  gaussian_noise_multiplier,
)
from tvdp_tf.privacy.ledger import (
  BudgetExceededError,
  LedgerError,
  LedgerHeader,
  LedgerRecord,
  LedgerRun,
  NoiseReuseError,
  PrivacyLedger,
  laplace_epsilon_of_release,
  release_id,
)
from tvdp_tf.privacy.ledger_audit import LedgerAudit
from tvdp_tf.privacy.ledger_audit import audit as audit_ledger
from tvdp_tf.privacy.optima import (
  OptimalPlan,
  OptimalRounds,
  bound_derivative,
  optimal_plan,
  optimal_rounds,
  optimal_theta,
)
from tvdp_tf.privacy.paper import (
  moment_bound_delta,
  moment_bound_epsilon,
  theorem1_log_stddev,
  theorem1_stddev,
  theorem2_stddev,
  tight_moment_stddev,
)
from tvdp_tf.privacy.schedule import (
  GeometricSchedule,
  GeometricShape,
  ListedSchedule,
  ListedShape,
  NoiseSchedule,
  NoiseShape,
  listed_shape,
)
from tvdp_tf.privacy.selection import (
  best_of_runs_epsilon,
  calibrate_best_of_runs,
  draw_number_of_runs,
)
from tvdp_tf.privacy.sensitivity import (
  SensitivityRule,
  gradient_rule,
  gradient_sum_rule,
  paper_rule,
  projection_rule,
  update_rule,
)
from tvdp_tf.privacy.statement import PrivacyStatement

__all__ = [
  'ACCOUNTANTS',
  'SAMPLINGS',
  'BoundTerms',
  'Budget',
  'BudgetExceededError',
  'CheckedClaim',
  'ConvergenceSetting',
  'GeometricSchedule',
  'GeometricShape',
  'LedgerAudit',
  'LedgerError',
  'LedgerHeader',
  'LedgerRecord',
  'LedgerRun',
  'ListedSchedule',
  'ListedShape',
  'NoiseReuseError',
  'NoiseSchedule',
  'NoiseShape',
  'OptimalPlan',
  'OptimalRounds',
  'PrivacyLedger',
  'PrivacyStatement',
  'SensitivityRule',
  'audit_ledger',
  'best_of_runs_epsilon',
  'bound_derivative',
  'calibrate',
  'calibrate_best_of_runs',
  'check_claim',
  'contraction',
  'convergence_bound',
  'convergence_terms',
  'delivered_epsilon',
  'descent_coefficient',
  'divergence_gap',
  'divergence_gap_derivative',
  'draw_number_of_runs',
  'gaussian_delta',
  'gaussian_epsilon',
  'gaussian_noise_multiplier',
  'gradient_rule',
  'gradient_sum_rule',
  'is_sound',
  'laplace_epsilon_of_release',
  'listed_shape',
  'moment_bound_delta',
  'moment_bound_epsilon',
  'new_maximum_rounds',
  'optimal_plan',
  'optimal_rounds',
  'optimal_theta',
  'paper_rule',
  'projection_rule',
  'refine_stddev',
  'release_id',
  'schedule_for_every_round',
  'sound_bound',
  'theorem1_log_stddev',
  'theorem1_stddev',
  'theorem2_stddev',
  'tight_moment_stddev',
  'update_rule',
]
