"""How each mechanism makes a run private: `build(settings, federation)`."""

from collections.abc import Callable

from tvdp_tf.experiments import federation
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.experiments.plans.base import BudgetSpentError, Plan, Round
from tvdp_tf.experiments.plans.central import CentralPlan
from tvdp_tf.experiments.plans.gradient import GradientPlan
from tvdp_tf.experiments.plans.laplace import LaplacePlan
from tvdp_tf.experiments.plans.noiseless import NoiselessPlan
from tvdp_tf.experiments.plans.paper import PaperPlan

__all__ = ['PLANS', 'BudgetSpentError', 'Plan', 'Round', 'build']

PLANS: dict[str, Callable[..., Plan]] = {
  'paper': PaperPlan,
  'gradient': GradientPlan,
  'central': CentralPlan,
  'laplace': LaplacePlan,
  'none': NoiselessPlan,
}


def build(
  settings: settings_lib.TrainingSettings, fed: federation.Federation
) -> Plan:
  """Calibrates the mechanism of the settings.

  Raises:
    ValueError: If no noise meets the target.
  """
  return PLANS[settings.mechanism](settings, fed)
