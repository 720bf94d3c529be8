"""Predictions for the experiments of `catalogue.central`, as a table."""

import numpy as np

from reproduction.catalogue import central
from tvdp_tf.learning import participation, server_optimizer
from tvdp_tf.output import layout
from tvdp_tf.planner import best_schedule, correlated

# A, the contraction of a round without noise; 1 means a sum of the rounds.
CONTRACTIONS = (1.0, 0.9, 0.6)


def _predictions(everyone: bool) -> list[dict[str, float]]:
  """For each A: name -> standard deviation, relative to constant noise."""
  setting = central.setting('digits', everyone)
  rounds = setting['rounds']
  cohorts = participation.BalancedParticipation(
    setting['users'], setting['users_per_round'], 0
  )
  planned = participation.participations(
    [cohorts.cohort(m) for m in range(1, rounds + 1)], setting['users']
  ).toarray()
  constant = np.full(rounds, np.sqrt(planned.sum(axis=1).max()))
  return [
    dict(
      correlated.compare(
        best_schedule.impulse_response(
          server_optimizer.ServerOptimizer(), contraction - 1e-9, rounds
        ),
        planned,
        1.0,
        constant,
      )
    )
    for contraction in CONTRACTIONS
  ]


def table() -> str:
  """Returns a row for each kind of noise; band widths may differ by column."""

  def kind(name: str) -> str:
    return name.partition(', ')[0] if name.startswith('banded') else name

  columns = [
    {kind(name): stddev for name, stddev in found.items()}
    for everyone in (True, False)
    for found in _predictions(everyone)
  ]
  return layout.markdown_table(
    (
      '',
      *(
        f'{often} rounds, A = {contraction:g}'
        for often in ('all', 'few')
        for contraction in CONTRACTIONS
      ),
    ),
    [
      (name, *(f'{column[name]:.3g}' for column in columns))
      for name in sorted(columns[0])
      if name != 'as planned'
    ],
  )
