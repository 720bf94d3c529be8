"""Private federated learning on TensorFlow Federated (TFF)."""

from tvdp_tf.federated.aggregator import KeyedUpdate, TimeVaryingGaussianFactory
from tvdp_tf.federated.learning_process import build_learning_process
from tvdp_tf.federated.models import functional_model
from tvdp_tf.federated.sum_query import GeometricGaussianSumQuery
from tvdp_tf.federated.worker_runtime import local_runtime

__all__ = [
  'GeometricGaussianSumQuery',
  'KeyedUpdate',
  'TimeVaryingGaussianFactory',
  'build_learning_process',
  'functional_model',
  'local_runtime',
]
