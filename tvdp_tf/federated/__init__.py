"""Private federated learning on TensorFlow Federated (TFF)."""

from tvdp_tf.federated.aggregator import (
  KeyedUpdate,
  TimeVaryingGaussianFactory,
  UnweightedTimeVaryingGaussianFactory,
)
from tvdp_tf.federated.checked_mean import excluded_clients
from tvdp_tf.federated.client_blocks import read_in_worker
from tvdp_tf.federated.client_files import ClientFiles
from tvdp_tf.federated.distributed_runtime import (
  remote_runtime,
  tls_credentials,
)
from tvdp_tf.federated.learning_process import build_learning_process
from tvdp_tf.federated.models import functional_model
from tvdp_tf.federated.nesting import check_nesting
from tvdp_tf.federated.program_context import program_context
from tvdp_tf.federated.sum_query import GeometricGaussianSumQuery
from tvdp_tf.federated.withheld import WithheldCountFactory, withheld_metrics
from tvdp_tf.federated.worker_runtime import local_runtime

__all__ = [
  'ClientFiles',
  'GeometricGaussianSumQuery',
  'KeyedUpdate',
  'TimeVaryingGaussianFactory',
  'UnweightedTimeVaryingGaussianFactory',
  'WithheldCountFactory',
  'build_learning_process',
  'check_nesting',
  'excluded_clients',
  'functional_model',
  'local_runtime',
  'program_context',
  'read_in_worker',
  'remote_runtime',
  'tls_credentials',
  'withheld_metrics',
]
