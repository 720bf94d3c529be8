"""Replaces reductions of data sets by loops in the same graph.

TFF's algorithms train their clients with `tf.data.Dataset.reduce`. This op
optimizes its function and the pipeline again in every call, which takes most of
a small client's time. A loop over an iterator computes the same result and is
optimized only once, with its graph.

The pipeline starts without the rewriting and the tuning of `tf.data`, which
would be repeated at every start. Neither of them changes its elements.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Ops that call the functions in their attributes right away, unlike those of
# `tf.data`.
_CALLS = frozenset(
  {
    'Case',
    'If',
    'PartitionedCall',
    'ReduceDataset',
    'StatefulPartitionedCall',
    'StatelessCase',
    'StatelessIf',
    'StatelessWhile',
    'While',
  }
)


def _quick_start() -> bytes:
  options = tf.data.Options()
  options.autotune.enabled = False
  options.experimental_optimization.apply_default_optimizations = False
  return options._to_proto().SerializeToString()


class _Reduction:
  """The parts of a `ReduceDataset` op from which a loop is built."""

  def __init__(self, node: tf.compat.v1.NodeDef, functions: dict[str, Any]):
    def dtypes(name):
      return [tf.as_dtype(t) for t in node.attr[name].list.type]

    self._function = node.attr['f'].func.name
    self._state_dtypes = dtypes('output_types')
    self._state_shapes = [
      tf.TensorShape(shape) for shape in node.attr['output_shapes'].list.shape
    ]
    self.specs = [
      tf.TensorSpec(None, dtype)
      for dtype in [tf.variant, *dtypes('Tstate'), *dtypes('Targuments')]
    ]
    # The function takes the state, an element, and other arguments.
    taken = [
      tf.as_dtype(argument.type)
      for argument in functions[self._function].signature.input_arg
    ]
    num_others = len(dtypes('Targuments'))
    element = taken[len(self._state_dtypes) : len(taken) - num_others]
    self._element = {
      'output_types': element,
      'output_shapes': [tf.TensorShape(None)] * len(element),
    }

  def loop(
    self, dataset: tf.Tensor, *arguments: tf.Tensor
  ) -> Sequence[tf.Tensor]:
    """Returns the final state, for the op's inputs."""
    num_state = len(self._state_dtypes)
    initial, others = arguments[:num_state], arguments[num_state:]
    iterator = tf.raw_ops.AnonymousIteratorV3(**self._element)
    made = tf.raw_ops.MakeIterator(
      dataset=tf.raw_ops.OptionsDataset(
        input_dataset=dataset,
        serialized_options=_quick_start(),
        **self._element,
      ),
      iterator=iterator,
    )

    def element_after(operations):
      # It may depend on how they change a variable.
      with tf.control_dependencies(operations):
        return tf.raw_ops.IteratorGetNextAsOptional(
          iterator=iterator, **self._element
        )

    def step(optional, *state):
      element = tf.raw_ops.OptionalGetValue(optional=optional, **self._element)
      results = tf.raw_ops.StatefulPartitionedCall(
        args=[*state, *element, *others],
        Tout=self._state_dtypes,
        f=self._function,
      )
      for result, shape in zip(results, self._state_shapes, strict=True):
        result.set_shape(shape)
      return element_after(results), *results

    _, *state = tf.while_loop(
      lambda optional, *_: tf.raw_ops.OptionalHasValue(optional=optional),
      step,
      [element_after([made]), *initial],
      shape_invariants=[tf.TensorShape([]), *self._state_shapes],
    )
    return state


class _Rewriting:
  """Replaces the reductions in a graph's functions by loops."""

  def __init__(self, library: Any):
    self._library = library
    self._functions = {f.signature.name: f for f in library.function}
    self._seen: set[str] = set()

  def nodes(self, nodes: Iterable[tf.compat.v1.NodeDef]) -> set[str]:
    """Rewrites nodes, and the functions that they call.

    Returns:
      The names of the nodes that were reductions.
    """
    replaced = set()
    for node in nodes:
      for name in _called(node):
        if name in self._functions and name not in self._seen:
          self._seen.add(name)
          self._function(self._functions[name])
      if node.op == 'ReduceDataset':
        self._replace(node)
        replaced.add(node.name)
    return replaced

  def _function(self, function: Any) -> None:
    replaced = self.nodes(function.node_def)

    def renamed(tensor: str) -> str:
      # In a function, a tensor's name contains the name of the op's output.
      node, _, output = tensor.partition(':')
      if output and node in replaced:
        return f'{node}:output:{output.partition(":")[2]}'
      return tensor

    for node in function.node_def:
      node.input[:] = [renamed(tensor) for tensor in node.input]
    for result, tensor in list(function.ret.items()):
      function.ret[result] = renamed(tensor)

  def _replace(self, node: tf.compat.v1.NodeDef) -> None:
    reduction = _Reduction(node, self._functions)
    traced = tf.function(reduction.loop, autograph=False).get_concrete_function(
      *reduction.specs
    )
    loop = traced.function_def
    self._library.function.add().CopyFrom(loop)
    for function in traced.graph.as_graph_def().library.function:
      if function.signature.name not in self._functions:
        self._library.function.add().CopyFrom(function)
    call = tf.compat.v1.NodeDef(
      name=node.name, op='StatefulPartitionedCall', input=node.input
    )
    call.attr['f'].func.name = loop.signature.name
    call.attr['Tout'].CopyFrom(node.attr['output_types'])
    call.attr['Tin'].list.type.extend(
      spec.dtype.as_datatype_enum for spec in reduction.specs
    )
    node.CopyFrom(call)


def _called(node: tf.compat.v1.NodeDef) -> Iterator[str]:
  """Yields names of functions that an op calls."""
  yield node.op  # The op may be a function itself.
  if node.op in _CALLS:
    for attribute in node.attr.values():
      yield attribute.func.name
      for function in attribute.list.func:
        yield function.name


def as_loops(definition: tf.compat.v1.GraphDef) -> None:
  """Replaces a graph's reductions of data sets by loops, in place.

  Reductions within a function of a `tf.data` pipeline are unchanged, and so are
  all of them if there is a GPU: iterators would be placed on it.
  """
  if not tf.config.list_logical_devices('GPU'):
    _Rewriting(definition.library).nodes(definition.node)
