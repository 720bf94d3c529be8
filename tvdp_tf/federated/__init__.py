"""Private federated learning on TensorFlow Federated (TFF).

A name is imported when it is used. The modules that use only TensorFlow
(`client_data`, `schedule_state`, `usable_sums`) do not need TFF.
"""

import importlib
from typing import TYPE_CHECKING

from tvdp_tf import _moved

if TYPE_CHECKING:
  from tvdp_tf.federated.aggregator import (
    KeyedUpdate,
    TimeVaryingGaussianFactory,
    UnweightedTimeVaryingGaussianFactory,
  )
  from tvdp_tf.federated.calibrated import central_noise, local_noise
  from tvdp_tf.federated.learning_process import build_learning_process
  from tvdp_tf.federated.models import functional_model
  from tvdp_tf.federated.nesting import check_nesting
  from tvdp_tf.federated.sum_query import GeometricGaussianSumQuery
  from tvdp_tf.federated.usable_sums import excluded_clients
  from tvdp_tf.federated.withheld import WithheldCountFactory, withheld_metrics

__all__ = [
  'GeometricGaussianSumQuery',
  'KeyedUpdate',
  'TimeVaryingGaussianFactory',
  'UnweightedTimeVaryingGaussianFactory',
  'WithheldCountFactory',
  'build_learning_process',
  'central_noise',
  'check_nesting',
  'excluded_clients',
  'functional_model',
  'local_noise',
  'withheld_metrics',
]

# The module of each name.
_SOURCES = {
  'GeometricGaussianSumQuery': 'sum_query',
  'KeyedUpdate': 'aggregator',
  'TimeVaryingGaussianFactory': 'aggregator',
  'UnweightedTimeVaryingGaussianFactory': 'aggregator',
  'WithheldCountFactory': 'withheld',
  'build_learning_process': 'learning_process',
  'central_noise': 'calibrated',
  'check_nesting': 'nesting',
  'excluded_clients': 'usable_sums',
  'functional_model': 'models',
  'local_noise': 'calibrated',
  'withheld_metrics': 'withheld',
}
_MOVED = frozenset(
  {
    'ClientFiles',
    'local_runtime',
    'program_context',
    'read_in_worker',
    'remote_runtime',
    'tls_credentials',
  }
)


def __getattr__(name: str):
  """Imports a name when it is first used.

  The names that have moved to `tvdp_tf.runtimes` are removed from here in the
  next release.
  """
  if name in _SOURCES:
    module = importlib.import_module(f'{__name__}.{_SOURCES[name]}')
    globals()[name] = getattr(module, name)
    return globals()[name]
  if name in _MOVED:
    return _moved.attribute(f'{__name__}.{name}', 'tvdp_tf.runtimes', name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  """Lists all names, imported or not."""
  return sorted({*globals(), *__all__})
