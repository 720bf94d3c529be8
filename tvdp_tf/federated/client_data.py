"""The input of a client in a round: its whole data set, and its secrets.

A client's sequence has exactly one element, so one training step sees all of
its examples (the paper's full-batch steps). The noise key comes with the data
because it is the client's secret: in a deployment the client draws it itself
(`tvdp_tf.learning.noise.fresh_noise_key`). The scale of the noise also comes
with the data, because it depends on the client's number of examples and on how
often it takes part.
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
  """Returns the tensor specs of a client's single element, for a model."""
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
  """Returns a client's single element of arrays or tensors, as `element_spec`.

  TFF binds structures by position, so the order of the fields matters.
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
  """Returns the sequence that a client passes to `LearningProcess.next`.

  Args:
    features: Array [n, ...].
    labels: Integer array [n].
    noise_key: int64 array [2], never used before.
    noise_scale: Standard deviation of the client's noise divided by that of the
      server's schedule (`GradientMechanism.noise_scale`); the other mechanisms
      do not use it. It has no default, because a scale that is too small means
      too little noise.

  Returns:
    A list with one element.
  """
  return [element(features, labels, noise_key, np.float64(noise_scale))]


def request_type() -> 'tff.StructWithPythonType':
  """The TFF type of a client's input if its examples are read from files."""
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
  """Returns a cohort as one block, for the process of `read_in_worker`.

  Args:
    clients: Indices into the `ClientFiles`; empty for an empty cohort.
    noise_keys: Noise key of each client, as for `client_sequence`.
    noise_scales: Noise scale of each client, as for `client_sequence`.

  Returns:
    A list with one block.
  """
  count = len(clients)
  return [
    collections.OrderedDict(
      client=np.array(clients, np.int64),
      noise_key=np.array(noise_keys, np.int64).reshape([count, 2]),
      noise_scale=np.array(noise_scales, np.float64).reshape([count]),
    )
  ]
