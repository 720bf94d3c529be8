"""Private federated learning on TensorFlow Federated (TFF)."""

from tvdp_tf import _moved
from tvdp_tf.federated.aggregator import (
  KeyedUpdate,
  TimeVaryingGaussianFactory,
  UnweightedTimeVaryingGaussianFactory,
)
from tvdp_tf.federated.calibrated import central_noise, local_noise
from tvdp_tf.federated.checked_mean import excluded_clients
from tvdp_tf.federated.learning_process import build_learning_process
from tvdp_tf.federated.models import functional_model
from tvdp_tf.federated.nesting import check_nesting
from tvdp_tf.federated.sum_query import GeometricGaussianSumQuery
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
  """What is in `tvdp_tf.runtimes` now; gone from here in the next release."""
  if name in _MOVED:
    return _moved.attribute(f'{__name__}.{name}', 'tvdp_tf.runtimes', name)
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
