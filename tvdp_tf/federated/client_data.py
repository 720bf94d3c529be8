"""What a client brings to a round: its whole data set, and a noise key.

A client's sequence has exactly one element, so that one training step sees all
of its examples (the paper's full-batch steps). The noise key travels with the
data because it is the client's secret: in a deployment the client draws it
itself (`tvdp_tf.learning.noise.fresh_noise_key`).
"""

import collections

import numpy as np
import tensorflow_federated as tff

from tvdp_tf.learning import noise


def element_spec(
  model: tff.learning.models.FunctionalModel,
) -> collections.OrderedDict:
  """Tensor specs of a client's single element, for a functional model."""
  features_spec, labels_spec = model.input_spec
  return collections.OrderedDict(
    noise_key=noise.NOISE_KEY_SPEC, x=features_spec, y=labels_spec
  )


def client_sequence(
  features: np.ndarray, labels: np.ndarray, noise_key: np.ndarray
) -> list[collections.OrderedDict]:
  """The sequence that a client passes to `LearningProcess.next`.

  Args:
    features: Array [n, ...].
    labels: Integer array [n].
    noise_key: int64 array [2], never used before.

  Returns:
    A list of one element. Structures bind by position in TFF: the order of the
    fields is that of `element_spec`.
  """
  return [collections.OrderedDict(noise_key=noise_key, x=features, y=labels)]
