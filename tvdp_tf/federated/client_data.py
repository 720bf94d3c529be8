"""What a client brings to a round: its whole data set, and its secrets.

A client's sequence has exactly one element, so that one training step sees all
of its examples (the paper's full-batch steps). The noise key travels with the
data because it is the client's secret: in a deployment the client draws it
itself (`tvdp_tf.learning.noise.fresh_noise_key`). So does the scale of its
noise, which depends on how many examples it has and how often it takes part.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.learning import noise


def element_spec(
  model: tff.learning.models.FunctionalModel,
) -> collections.OrderedDict:
  """Tensor specs of a client's single element, for a functional model."""
  features_spec, labels_spec = model.input_spec
  return collections.OrderedDict(
    noise_key=noise.NOISE_KEY_SPEC,
    noise_scale=tf.TensorSpec([], tf.float64),
    x=features_spec,
    y=labels_spec,
  )


def client_sequence(
  features: np.ndarray,
  labels: np.ndarray,
  noise_key: np.ndarray,
  noise_scale: float = 1.0,
) -> list[collections.OrderedDict]:
  """The sequence that a client passes to `LearningProcess.next`.

  Args:
    features: Array [n, ...].
    labels: Integer array [n].
    noise_key: int64 array [2], never used before.
    noise_scale: Standard deviation of the client's noise over that of the
      server's schedule (`GradientMechanism.noise_scale`); the other mechanisms
      do not use it.

  Returns:
    A list of one element. Structures bind by position in TFF: the order of the
    fields is that of `element_spec`.
  """
  return [
    collections.OrderedDict(
      noise_key=noise_key,
      noise_scale=np.float64(noise_scale),
      x=features,
      y=labels,
    )
  ]
