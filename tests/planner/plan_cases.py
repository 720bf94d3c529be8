"""The paper's MNIST setting, to plan."""

from tvdp_tf.planner import settings as planning_settings

PAPER = {
  'mechanism': 'paper',
  'delta': 1e-3,
  'dataset': 'mnist',
  'users': 100,
  'users_per_round': 10,
  'local_steps': 5,
  'rounds': 30,
  'theta': 1.0,
  'learning_rate': 0.5,
  'initial_gap': 2.3,
}


def settings(**values) -> planning_settings.PlanSettings:
  """The paper's settings, with other values."""
  return planning_settings.PlanSettings(**{**PAPER, **values})
