"""Replaces reductions of data sets by loops in the same graph.

TFF's algorithms train their clients with `tf.data.Dataset.reduce`. This op
optimizes its function and the pipeline again in every call, which is most of
the time of a small client. A loop over an iterator computes the same and is
optimized once, with its graph.

The pipeline starts without the rewriting and the tuning of `tf.data`, which
would be repeated at every start. Neither of them changes its elements.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

# Ops that call the functions in their attributes where they are. Those of
# `tf.data` keep theirs for later.
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
  """A `ReduceDataset` op, as what its loop is made of."""

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
    # The function takes the state, an element, and the other arguments.
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
    """The last state, of what the op takes."""
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
      # It may depend on what they do to a variable.
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
  """Turns the reductions among a graph's functions into loops."""

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
      # Within a function a tensor's name has that of the op's output in it.
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
  """Names of functions that an op calls."""
  yield node.op  # It may be one itself.
  if node.op in _CALLS:
    for attribute in node.attr.values():
      yield attribute.func.name
      for function in attribute.list.func:
        yield function.name


def as_loops(definition: tf.compat.v1.GraphDef) -> None:
  """Makes the reductions of data sets in a graph loops, in place.

  Those within a function of a `tf.data` pipeline stay as they are, and all of
  them do where there is a GPU: its iterators would be placed on it.
  """
  if not tf.config.list_logical_devices('GPU'):
    _Rewriting(definition.library).nodes(definition.node)
