"""Flower's LocalDpMod, audited: one client's uploads, as the server sees them.

The client app is a function that returns its update, +C or -C in the first
weight; the messages, the mod, its clip and its noise are Flower's. Score: the
sum of what came back, over the rounds.
"""

import argparse
import logging
import pathlib
import time

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.clientapp.mod import LocalDpMod
from flwr.supercore.task_identity import TaskIdentity

from benchmarks.harness import audited

CLIP = 1.0
# Name, rounds, sensitivity, delta and trials. It takes many trials, and a large
# delta, to show an epsilon only a few percent above the claim.
SETTINGS = (
  ('one round, sensitivity = 2 * clip', 1, 2 * CLIP, 1e-2, 20_000),
  ('one round, sensitivity = clip', 1, CLIP, 1e-2, 100_000),
  ('30 rounds, sensitivity = 2 * clip', 30, 2 * CLIP, 1e-5, 4_000),
  ('30 rounds, sensitivity = clip', 30, CLIP, 1e-5, 4_000),
)
EPSILON = 1.0


def _scores(mod: LocalDpMod, update: float, rounds: int, trials: int):
  weights = np.zeros(4, np.float32)
  ask = Message(
    content=RecordDict({'arrays': ArrayRecord([weights])}),
    dst_node_id=1,
    message_type=MessageType.TRAIN,
  )

  def client_app(message, context):
    del context
    trained = weights.copy()
    trained[0] += update
    content = RecordDict({'arrays': ArrayRecord([trained])})
    return Message(content=content, reply_to=message)

  def upload() -> float:
    reply = mod(ask, None, client_app)
    (record,) = reply.content.array_records.values()
    return float(record.to_numpy_ndarrays()[0][0])

  return np.array([sum(upload() for _ in range(rounds)) for _ in range(trials)])


def main() -> None:
  """Runs the audit, and writes the scores."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--output', type=pathlib.Path, required=True)
  parser.add_argument('--share', type=float, default=1.0)
  parser.add_argument('--seed', type=int, default=0)
  arguments = parser.parse_args()
  logging.getLogger('flwr').setLevel(logging.ERROR)
  # Flower's own processes set these before they call a client app.
  TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
  np.random.seed(arguments.seed)  # The mod draws from NumPy's global state.
  started = time.monotonic()
  cases = []
  for name, rounds, sensitivity, delta, all_trials in SETTINGS:
    trials = max(4, round(all_trials * arguments.share))
    mod = LocalDpMod(CLIP, sensitivity, EPSILON, delta)
    # Twice the clip, so that the mod has to clip.
    one, other = (
      _scores(mod, sign * 2 * CLIP, rounds, trials) for sign in (1, -1)
    )
    cases.append(
      audited.Case(
        name=f'LocalDpMod, {name}',
        delta=delta,
        epsilon_set=EPSILON,
        epsilon_told=None,
        formula='flower-local-dp',
        arguments={'rounds': rounds, 'clip': CLIP, 'sensitivity': sensitivity},
        is_gaussian=True,
        scores=one,
        alternative_scores=other,
      )
    )
  audited.write(arguments.output, 'flwr', time.monotonic() - started, cases)


if __name__ == '__main__':
  main()
