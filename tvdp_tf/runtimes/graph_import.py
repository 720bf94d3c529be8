"""Imports a TFF TensorFlow computation into the graph that is being traced.

TFF inlines a computation that is called while another one is traced, but only
at the top level of its graph, not in the body of a `tf.while_loop`. This module
imports the graph wherever the caller is.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.learning import onednn


def compiler_config() -> tf.compat.v1.ConfigProto:
  """Options for TFF's MapReduce compiler: graphs that can be nested in loops.

  Grappler would lower the graphs' loops to TensorFlow 1 control flow, which
  cannot be nested.
  """
  config = tf.compat.v1.ConfigProto()
  config.graph_options.rewrite_options.disable_meta_optimizer = True
  return config


def canonical(tensor_name: str) -> str:
  """Normalizes a tensor's name: 'x' and 'x:0' are the same tensor."""
  return tensor_name if ':' in tensor_name else f'{tensor_name}:0'


def leaves(binding: Any) -> Iterator[tuple[str, str]]:
  """Yields ('tensor' or 'sequence', name) of a parameter's or result's tensors.

  The order is TFF's. The name of a sequence is that of its variant tensor.
  """
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for element in binding.struct.element:
      yield from leaves(element)
  elif kind == 'tensor':
    yield kind, canonical(binding.tensor.tensor_name)
  elif kind == 'sequence':
    yield kind, canonical(binding.sequence.variant_tensor_name)
  elif kind is not None:
    raise NotImplementedError(f'a parameter bound by {kind} is not supported')


def inputs(graph_def: tf.compat.v1.GraphDef) -> set[str]:
  """Names of the tensors that a graph's nodes use as inputs."""
  return {canonical(name) for node in graph_def.node for name in node.input}


def tensor_names(binding: Any) -> list[str]:
  """Names of the tensors of a parameter or result without sequences."""
  found = list(leaves(binding))
  if any(kind == 'sequence' for kind, _ in found):
    raise NotImplementedError('a sequence cannot be imported')
  return [name for _, name in found]


class Importer:
  """A function that imports a computation's graph where it is called.

  It takes the parameter's tensors, flattened in TFF's order, and returns the
  result's tensors in the same way.

  Attributes:
    waits: Whether no two calls of the graph may run at once
      (`onednn.kept_apart`).
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    """Reads a computation's graph.

    Args:
      computation: A TensorFlow computation from tensors to tensors, of any
        nesting.

    Raises:
      NotImplementedError: If it has variables, tables or sequences.
    """
    proto = tff.framework.serialize_computation(computation).tensorflow
    if proto.initialize_op:
      raise NotImplementedError('a computation with variables or tables')
    self._graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(self._graph_def)
    self._parameters = tensor_names(proto.parameter)
    self._results = tensor_names(proto.result)
    self._used = inputs(self._graph_def)
    self.waits = onednn.kept_apart(self._graph_def, by_others=True)

  def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """Imports the graph into the one that is being traced."""
    # An import captures no tensors from outside of a loop's body; these
    # identities do. They also consume unused parameters.
    feeds = dict(zip(self._parameters, map(tf.identity, tensors), strict=True))
    # A result may be an unchanged parameter.
    inner = [name for name in self._results if name not in feeds]
    imported = tf.import_graph_def(
      self._graph_def,
      input_map={n: t for n, t in feeds.items() if n in self._used},
      return_elements=inner,
      name='computation',
    )
    found = feeds | dict(zip(inner, imported, strict=True))
    return [found[name] for name in self._results]
