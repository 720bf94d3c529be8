"""Federated learning under differential privacy with time-varying noise.

This module contains the public names; everything else is in the sub-packages.

  fit        `fit` trains your Keras model on your data
  train      `TrainingSettings` describes a run; `train` executes it and writes
             its results to a folder
  plan       `plan` predicts what a run would cost; `PlanSettings` adds the
             inputs of the prediction to the settings
  account    `GeometricSchedule`, `calibrate`, `delivered_epsilon`,
             `audit_ledger`; `check_claim` for other tools; `Budget` for your
             own training loop, and the `PrivacyLedger` that it uses
  aggregate  `local_noise` and `central_noise` for TFF's algorithms,
             `withheld_metrics`, `check_nesting`, `functional_model`,
             `compiled_runtime`, `local_runtime`
  extend     `Mechanism`, the base class for your own mechanism

Importing this package loads neither TensorFlow nor TFF: each name is imported
when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = '0.1.0'

from tvdp_tf import _moved

if TYPE_CHECKING:
  from tvdp_tf.federated import (
    central_noise,
    check_nesting,
    functional_model,
    local_noise,
    withheld_metrics,
  )
  from tvdp_tf.mechanisms import Mechanism
  from tvdp_tf.planner.report import plan
  from tvdp_tf.planner.settings import PlanSettings
  from tvdp_tf.privacy import (
    Budget,
    GeometricSchedule,
    PrivacyLedger,
    audit_ledger,
    calibrate,
    check_claim,
    delivered_epsilon,
  )
  from tvdp_tf.runtimes import compiled_runtime, local_runtime
  from tvdp_tf.training.fit import fit
  from tvdp_tf.training.settings import TrainingSettings
  from tvdp_tf.training.train import train

__all__ = [
  'Budget',
  'GeometricSchedule',
  'Mechanism',
  'PlanSettings',
  'PrivacyLedger',
  'TrainingSettings',
  'audit_ledger',
  'calibrate',
  'central_noise',
  'check_claim',
  'check_nesting',
  'compiled_runtime',
  'delivered_epsilon',
  'fit',
  'functional_model',
  'local_noise',
  'local_runtime',
  'plan',
  'train',
  'withheld_metrics',
]

# The module of each name.
_SOURCES = {
  'Mechanism': 'tvdp_tf.mechanisms',
  'PlanSettings': 'tvdp_tf.planner.settings',
  'TrainingSettings': 'tvdp_tf.training.settings',
  'compiled_runtime': 'tvdp_tf.runtimes',
  'fit': 'tvdp_tf.training.fit',
  'local_runtime': 'tvdp_tf.runtimes',
  'plan': 'tvdp_tf.planner.report',
  'train': 'tvdp_tf.training.train',
  **dict.fromkeys(
    [
      'Budget',
      'GeometricSchedule',
      'PrivacyLedger',
      'audit_ledger',
      'calibrate',
      'check_claim',
      'delivered_epsilon',
    ],
    'tvdp_tf.privacy',
  ),
  **dict.fromkeys(
    [
      'central_noise',
      'check_nesting',
      'functional_model',
      'local_noise',
      'withheld_metrics',
    ],
    'tvdp_tf.federated',
  ),
}


def __getattr__(name: str):
  """Imports a public name when it is first used."""
  if name not in _SOURCES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  try:
    module = importlib.import_module(_SOURCES[name])
    value = getattr(module, name)
  except ModuleNotFoundError as error:
    from tvdp_tf import _environment  # noqa: PLC0415

    cure = _environment.cure(f'tvdp_tf.{name}', error)
    if not cure:
      raise
    raise ImportError(cure) from error
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  """Lists the public names, imported or not."""
  return sorted({*globals(), *__all__} - {'TYPE_CHECKING', 'importlib'})


_moved.install()
