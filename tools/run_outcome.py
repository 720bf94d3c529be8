"""The outcome of a run, to be compared with another's, bit for bit."""

import csv
import pathlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tvdp_tf.privacy import ledger_audit
from tvdp_tf.training import run_folder

_VARIABLE = '/.ATTRIBUTES/VARIABLE_VALUE'


class Outcome(NamedTuple):
  """The results that must not depend on whether a run was interrupted.

  Attributes:
    metrics: The rows of `metrics.csv`, without their seconds.
    weights: The exported model's tensors as bytes, by name.
    epsilons: What each client has spent, computed from the ledger only.
    participations: How often each client was charged.
    rounds: The number of different rounds on record.
  """

  metrics: list[dict[str, str]]
  weights: dict[str, bytes]
  epsilons: list[float]
  participations: list[int]
  rounds: int

  def differences(self, other: 'Outcome') -> list[str]:
    """Returns the names of the attributes that differ."""
    return [
      name
      for name, mine, its in zip(self._fields, self, other, strict=True)
      if mine != its
    ]


def read(folder: pathlib.Path) -> Outcome:
  """Reads the outcome of a finished run."""
  with open(folder / run_folder.METRICS, newline='', encoding='utf-8') as file:
    rows = list(csv.DictReader(file))
  for row in rows:
    row.pop('seconds', None)  # Absent with secret sampling.
  variables = tf.train.load_checkpoint(
    str(folder / run_folder.MODEL / 'variables' / 'variables')
  )
  audit = ledger_audit.audit(folder / run_folder.LEDGER)
  return Outcome(
    rows,
    {
      name: np.asarray(variables.get_tensor(name)).tobytes()
      for name in variables.get_variable_to_shape_map()
      if name.endswith(_VARIABLE)
    },
    audit.epsilons.tolist(),
    audit.participations.tolist(),
    audit.rounds,
  )
