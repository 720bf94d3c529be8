"""Protection against oneDNN kernels that mix data of concurrent calls.

An example's gradient must depend on that example only, and a client's update on
that client only, however many are computed at once. Some of oneDNN's kernels in
TensorFlow break this: concurrent calls read and write each other's memory. A
function has one kernel for each of its ops, which all of its calls share: those
of several threads, and parallel iterations of a loop.

Every kernel of TensorFlow 2.14 was searched for members that a call writes
without a lock. Two kinds were found:

* `FusedBatchNorm` stores the number of channels and the location of the
  statistics of the last call
  (https://github.com/tensorflow/tensorflow/pull/99852). Models avoid it
  (`functional`); calls in TFF's own algorithms run one at a time
  (`kept_apart`).
* A convolution that Grappler has fused with a bias and an addition stores where
  it copies the addend. Fusing is turned off (`CALL_OPTIONS`), at no measurable
  cost.

In newer versions, such as 2.21, batched matrix products read and write outside
of their tensors (https://github.com/tensorflow/tensorflow/issues/117700).
oneDNN must be turned off there.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry  # No public name.
from tensorflow.python.util import _pywrap_util_port  # No public name.

from tvdp_tf import _environment

RACING_OPS = frozenset(
  f'FusedBatchNorm{form}{version}'
  for form in ('', 'Grad')
  for version in ('', 'V2', 'V3')
)


def is_used() -> bool:
  """Whether TensorFlow computes with oneDNN in this process."""
  return _pywrap_util_port.IsMklEnabled()


def _call_options() -> bytes:
  config = tf.compat.v1.ConfigProto()
  # Else an op without a GPU kernel, such as one on strings, fails the call.
  config.allow_soft_placement = True
  if is_used():
    rewriting = config.graph_options.rewrite_options
    rewriting.remapping = rewriting.OFF
  return config.SerializeToString()


# The `config_proto` for ops that call a function.
CALL_OPTIONS = _call_options()


def require_sound() -> None:
  """Ensures that concurrent calls of functions do not mix their data.

  From then on, Grappler fuses no ops in functions called by this thread, or by
  any thread that has not called a function yet: TensorFlow keeps call options
  per thread, from its first call on.

  Raises:
    ValueError: If a TensorFlow newer than 2.14 uses oneDNN.
  """
  if not is_used():
    return
  version = _environment.release(tf.__version__)
  if version > _environment.LAST_WITH_ONEDNN:
    raise ValueError(
      'TF_ENABLE_ONEDNN_OPTS must be 0 before TensorFlow is imported, because'
      f" oneDNN's matrix products in TensorFlow {tf.__version__} read the data"
      ' of other examples, got oneDNN'
    )
  tf.config.optimizer.set_experimental_options({'remapping': False})


_CONVOLUTIONS = frozenset(('Conv2D', 'Conv3D', 'DepthwiseConv2dNative'))
_ADDITIONS = frozenset(('Add', 'AddV2', 'AddN'))
# Ops that call functions; their results may come from a convolution there.
_CALLS = frozenset(
  (
    *('Case', 'If', 'PartitionedCall', 'StatefulPartitionedCall'),
    *('StatelessCase', 'StatelessIf', 'StatelessWhile', 'While'),
  )
)


class _Scope:
  """The nodes of a graph or of one of its functions."""

  def __init__(self, nodes: Iterable[Any], results: Iterable[str] = ()):
    self.nodes = {node.name: node for node in nodes}
    self._results = list(results)

  def _producer(self, tensor: str) -> Any:
    """Returns the node that computes it; None for a function's argument."""
    node = self.nodes.get(tensor.partition(':')[0])
    while node is not None and node.op == 'Identity':
      node = self.nodes.get(node.input[0].partition(':')[0])
    return node

  def _may_be_convolved(self, tensor: str) -> bool:
    """Whether it may be the sum of a bias and a convolution."""
    node = self._producer(tensor)
    if node is None or node.op != 'BiasAdd':
      return False
    source = self._producer(node.input[0])
    if source is None or source.op in _CONVOLUTIONS | _CALLS:
      return True
    return op_def_registry.get(source.op) is None  # A function called as an op.

  def fuses_an_addition(self) -> bool:
    """Whether a convolution, a bias and an addition may become one op."""
    return any(map(self._may_be_convolved, self._results)) or any(
      self._may_be_convolved(tensor)
      for node in self.nodes.values()
      if node.op in _ADDITIONS
      for tensor in node.input
    )


def kept_apart(
  graph_def: tf.compat.v1.GraphDef, *, by_others: bool = False
) -> bool:
  """Whether a graph has ops that must not run concurrently with themselves.

  If so, its loops are changed in place, so that an iteration only starts when
  the previous one has ended. The caller must not run two calls of the graph at
  once.

  Args:
    graph_def: The graph.
    by_others: Whether another process runs it, which may fuse ops and use
      oneDNN.
  """
  if not (by_others or is_used()):
    return False
  scopes = [_Scope(graph_def.node)] + [
    _Scope(function.node_def, function.ret.values())
    for function in graph_def.library.function
  ]
  nodes = [node for scope in scopes for node in scope.nodes.values()]
  ops = {node.op for node in nodes}
  races = bool(ops & RACING_OPS)
  if by_others and ops & _CONVOLUTIONS:
    races |= any(scope.fuses_an_addition() for scope in scopes)
  if races:
    for node in nodes:
      if 'parallel_iterations' in node.attr:
        node.attr['parallel_iterations'].i = 1
  return races
