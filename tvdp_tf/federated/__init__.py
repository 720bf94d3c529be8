"""Algorithm 1 on TensorFlow Federated (TFF)."""

from tvdp_tf.federated.aggregator import KeyedUpdate, TimeVaryingGaussianFactory
from tvdp_tf.federated.learning_process import build_learning_process
from tvdp_tf.federated.local_runtime import local_runtime
from tvdp_tf.federated.models import functional_model

__all__ = [
  'KeyedUpdate',
  'TimeVaryingGaussianFactory',
  'build_learning_process',
  'functional_model',
  'local_runtime',
]
