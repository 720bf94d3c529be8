"""Plans without training, on a federation without features."""

import numpy as np

from tvdp_tf import mechanisms
from tvdp_tf.learning import datasets, models, participation
from tvdp_tf.privacy import ledger
from tvdp_tf.training import federation
from tvdp_tf.training import settings as settings_lib

PAPER = {
  'delta': 1e-3,
  'users': 100,
  'users_per_round': 10,
  'local_steps': 5,
  'rounds': 30,
  'theta': 1.0,
}


def make_federation(settings, sizes=None, seed=0):
  """As many examples as in the paper, without their features."""
  sizes = sizes or [600] * settings.users
  blank = np.zeros([1, 28, 28, 1], np.float32)
  label = np.zeros([1], np.int32)
  return federation.Federation(
    dataset=datasets.Dataset('blank', blank, label, blank, label, 10),
    spec=models.MODELS['mlp'],
    examples=[np.arange(size) for size in sizes],
    participation=participation.PARTICIPATIONS[settings.participation](
      settings.users, settings.users_per_round, seed
    ),
    public_seed=seed,
  )


def run(plan, rounds=None, refine_at=None):
  """The rounds of a run, with the noise that the server's state would have."""
  schedule = plan.schedule
  last = rounds or plan.settings.rounds
  while len(plan.history) < last:
    m = len(plan.history) + 1
    cohort = plan.fed.participation.cohort(m)
    stddev = schedule.stddev(m) if schedule else 0.0
    plan.take(plan.round(m, cohort, stddev))
    if refine_at and m in refine_at:
      last = refine_at[m]
      schedule = plan.refine(m, last)
  return plan.history


def finished(plan):
  run(plan)
  return plan


def ledger_of(plan, path):
  """A ledger of the plan's run alone."""
  run = plan.ledger_run(bytes(32), 'b' * 32)
  return ledger.PrivacyLedger.create(path, plan.header, run)


def build(sizes=None, cohort_seed=0, **kwargs):
  settings = settings_lib.TrainingSettings(**{**PAPER, **kwargs})
  return mechanisms.build(
    settings, make_federation(settings, sizes, cohort_seed)
  )
