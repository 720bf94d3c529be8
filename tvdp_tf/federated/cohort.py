"""Checks which clients of a cohort can take part, before anything is recorded.

Some clients do not answer, bring no data, or bring data that do not fit the
model. The server checks what it can see without the data themselves: presence,
types, shapes and, where they are public, sizes. docs/BAD_CLIENTS.md describes
failures that only show later.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.federated import client_data


@dataclasses.dataclass(frozen=True)
class Cohort:
  """The clients of a round.

  Attributes:
    clients: The clients that take part, whose releases must be recorded.
    data: The input of `LearningProcess.next`, in the order of `clients`.
    missing: The clients that were drawn but did not answer.
    empty: The clients that were left out because they have no examples.
  """

  clients: tuple[int, ...]
  data: tuple[Any, ...]
  missing: tuple[int, ...]
  empty: tuple[int, ...]


def screen(
  model: tff.learning.models.FunctionalModel,
  drawn: Mapping[int, Sequence[Mapping[str, Any]] | None],
  *,
  sizes_are_public: bool,
) -> Cohort:
  """Checks the data of the clients of a round.

  Args:
    model: The model.
    drawn: For each client that was drawn, its `client_data.client_sequence`,
      or None if it did not answer.
    sizes_are_public: Whether the number of a client's examples is public, as
      all mechanisms except `central` assume. Only then are clients without
      examples left out; otherwise they stay, and their update is zero.

  Returns:
    The cohort.

  Raises:
    ValueError: If the data of a client do not fit the model.
  """
  spec = client_data.element_spec(model)
  present: list[int] = []
  missing: list[int] = []
  empty: list[int] = []
  for client, sequence in drawn.items():
    if sequence is None:
      missing.append(client)
      continue
    size = _size(client, sequence, spec)
    (present if size or not sizes_are_public else empty).append(client)
  return Cohort(
    clients=tuple(present),
    data=tuple(drawn[client] for client in present),
    missing=tuple(missing),
    empty=tuple(empty),
  )


def _size(
  client: int, sequence: Sequence[Any], spec: Mapping[str, tf.TensorSpec]
) -> int:
  """Checks a client's data, and returns its number of examples."""
  if len(sequence) != 1 or not isinstance(sequence[0], Mapping):
    raise ValueError(
      f'data of client {client} must be a sequence of one element, got '
      f'{len(sequence)}'
    )
  element = sequence[0]
  # TFF binds structures by position.
  if list(element) != list(spec):
    raise ValueError(
      f'fields of client {client} must be {", ".join(spec)}, got '
      f'{", ".join(map(str, element))}'
    )
  for name, field in spec.items():
    value = np.asarray(element[name])
    if value.dtype != field.dtype.as_numpy_dtype or not (
      field.shape.is_compatible_with(value.shape)
    ):
      raise ValueError(
        f'{name} of client {client} must be {field.dtype.name} of shape '
        f'{field.shape}, got {value.dtype} of shape {value.shape}'
      )
  sizes = [len(np.asarray(element[name])) for name in ('x', 'y')]
  if sizes[0] != sizes[1]:
    raise ValueError(
      f'x and y of client {client} must be of one length, got {sizes[0]} and '
      f'{sizes[1]}'
    )
  return sizes[0]
