"""NVFlare's privacy filters, audited: what passes them, as the server sees it.

All weights of the client's update are at +gamma or at -gamma. The score is the
sum of what passes, over the rounds.
"""

import argparse
import logging
import pathlib
import time

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from benchmarks.harness import audited

DELTA = 1e-5
WEIGHTS = 1000
# Name, filter, formula, rounds and trials.
SETTINGS = (
  ('SVTPrivacy, one round', SVTPrivacy, 'nvflare-svt', 1, 20_000),
  ('SVTPrivacy, 10 rounds', SVTPrivacy, 'nvflare-svt', 10, 4_000),
  (
    *('PercentilePrivacy, one round', PercentilePrivacy),
    *('nvflare-percentile', 1, 20_000),
  ),
)


def _upload(dxo_filter: DXOFilter, value: float) -> float:
  update = DXO(DataKind.WEIGHT_DIFF, data={'w': np.full(WEIGHTS, value)})
  passed = dxo_filter.process(update.to_shareable(), FLContext())
  return float(np.sum(from_shareable(passed).data['w']))


def main() -> None:
  """Runs the audit, and writes the scores."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--share', type=float, default=1.0)
  parser.add_argument('--seed', type=int, default=0)
  arguments = parser.parse_args()
  logging.disable(logging.CRITICAL)
  np.random.seed(arguments.seed)  # The filters draw from NumPy's global state.
  started = time.monotonic()
  cases = []
  for name, kind, formula, rounds, all_trials in SETTINGS:
    trials = max(4, round(all_trials * arguments.share))
    scores = np.array(
      [
        [
          sum(
            _upload(dxo_filter, sign * dxo_filter.gamma) for _ in range(rounds)
          )
          for _ in range(trials)
        ]
        for sign in (1, -1)
        for dxo_filter in [kind()]
      ]
    )
    told = None
    if kind is SVTPrivacy:
      accountant = SVTPrivacy()
      for _ in range(rounds):
        _upload(accountant, accountant.gamma)
      told = accountant.get_privacy_spent()
    cases.append(
      audited.Case(
        name=name,
        delta=DELTA,
        epsilon_set=getattr(kind(), 'epsilon', None),
        epsilon_told=told,
        formula=formula,
        arguments={'rounds': rounds},
        is_gaussian=False,
        scores=scores[0],
        alternative_scores=scores[1],
      )
    )
  audited.write(arguments.output, 'nvflare', time.monotonic() - started, cases)


if __name__ == '__main__':
  main()
