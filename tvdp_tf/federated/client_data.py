"""What a client brings to a round: its whole data set, and its secrets.

A client's sequence has exactly one element, so that one training step sees all
of its examples (the paper's full-batch steps). The noise key travels with the
data because it is the client's secret: in a deployment the client draws it
itself (`tvdp_tf.learning.noise.fresh_noise_key`). The scale of the noise also
travels with the data: it depends on the number of examples of the client and on
how often it takes part.
"""

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tvdp_tf.learning import noise

if TYPE_CHECKING:
  import tensorflow_federated as tff


def element_spec(
  model: 'tff.learning.models.FunctionalModel',
) -> collections.OrderedDict:
  """Tensor specs of a client's single element, for a functional model."""
  features_spec, labels_spec = model.input_spec
  return collections.OrderedDict(
    noise_key=noise.NOISE_KEY_SPEC,
    noise_scale=tf.TensorSpec([], tf.float64),
    x=features_spec,
    y=labels_spec,
  )


def element(
  features: Any, labels: Any, noise_key: Any, noise_scale: Any
) -> collections.OrderedDict:
  """A client's single element, of arrays or of tensors, as `element_spec`.

  Structures bind by position in TFF: the order of the fields matters.
  """
  return collections.OrderedDict(
    noise_key=noise_key, noise_scale=noise_scale, x=features, y=labels
  )


def client_sequence(
  features: np.ndarray,
  labels: np.ndarray,
  noise_key: np.ndarray,
  noise_scale: float,
) -> list[collections.OrderedDict]:
  """The sequence that a client passes to `LearningProcess.next`.

  Args:
    features: Array [n, ...].
    labels: Integer array [n].
    noise_key: int64 array [2], never used before.
    noise_scale: Standard deviation of the client's noise over that of the
      server's schedule (`GradientMechanism.noise_scale`); the other mechanisms
      do not use it. It has no default: too small a scale is too little noise.

  Returns:
    A list of one element.
  """
  return [element(features, labels, noise_key, np.float64(noise_scale))]


def request_type() -> 'tff.StructWithPythonType':
  """The TFF type of what a client brings whose examples are read from files."""
  import tensorflow_federated as tff  # noqa: PLC0415

  return tff.to_type(
    collections.OrderedDict(
      client=tff.TensorType(np.int64),
      noise_key=tff.TensorType(np.int64, [2]),
      noise_scale=tff.TensorType(np.float64),
    )
  )


def client_block(
  clients: Sequence[int],
  noise_keys: Sequence[np.ndarray],
  noise_scales: Sequence[float],
) -> list[collections.OrderedDict]:
  """What `client_blocks.read_in_worker`'s process takes: a cohort in one block.

  Args:
    clients: Indices into the `ClientFiles`, none for an empty cohort.
    noise_keys: For each of them, as of `client_sequence`.
    noise_scales: For each of them, as of `client_sequence`.

  Returns:
    A list of one block.
  """
  count = len(clients)
  return [
    collections.OrderedDict(
      client=np.array(clients, np.int64),
      noise_key=np.array(noise_keys, np.int64).reshape([count, 2]),
      noise_scale=np.array(noise_scales, np.float64).reshape([count]),
    )
  ]
