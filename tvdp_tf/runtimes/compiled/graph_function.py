"""A TFF TensorFlow computation as a TensorFlow function of this process.

TFF stores a computation as a serialized graph with the names of its parameters
and results. This module imports the same graph into a `tf.function`; there is
no second implementation.

If the graph extracts the only element of a sequence (a client's whole data set,
in this library's own processes), the function takes the tensors of this
element: the graph is cut at the op that extracts them, and no `tf.data` code
runs. Any other sequence is passed as the variant tensor of a data set
(`tf.data.experimental.to_variant`).

Variables (of Keras models and of some optimizers) are created in every call.

`HotShapes` is a function that is traced again for shapes that take much time.
If all dimensions are known, TensorFlow computes values that depend only on
shapes once, at compile time; these are a small part of a client's work.
"""

import collections
import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context  # No public name.
from tensorflow.python.framework import op_def_registry

from tvdp_tf.learning import onednn, xla_functions
from tvdp_tf.runtimes import graph_import
from tvdp_tf.runtimes.compiled import reductions

# How a parameter's leaf is passed: as itself, as the tensors of a sequence's
# only element, or as the variant tensor of a data set.
TENSOR, ELEMENT, DATASET = 'tensor', 'element', 'dataset'

# Not the dtype of any array, so non-numeric values are always converted.
_NONE = object()

# Held during calls of graphs that are `onednn.kept_apart`. For the whole
# process, because such graphs may share functions.
_ALONE = threading.Lock()
_NO_TURN = contextlib.nullcontext()

_EagerTensor = tf.__internal__.EagerTensor

# Ops that TensorFlow calls stateful although no state outlives a call:
# variables, which are created in every call, unnamed data sets and iterators,
# arrays; random ops and function calls; and some that only look stateful.
_ENDS_WITH_THE_CALL = re.compile(
  r'VarHandleOp|Assign(Add|Sub)?VariableOp|VarIsInitializedOp|VariableShape'
  r'|ReadVariableOp|DisableCopyOnRead|DestroyResourceOp'
  r'|Resource(Apply|SparseApply|Scatter|Strided|Gather|CountUpTo)\w*'
  r'|\w*Dataset\w*|Optional\w*|TensorArray\w*'
  r'|(?!OneShot|MultiDevice|Iterator$|IteratorV2$)\w*Iterator\w*'
  r'|(Anonymous|Dummy|Delete)(SeedGenerator|MemoryCache|RandomSeedGenerator)'
  r'|Random(?!Shuffle\w)\w*|Stateful\w+|Rng\w+|Multinomial'
  r'|(Parameterized)?TruncatedNormal|NonDeterministicInts'
  r'|\w+CandidateSampler|SampleDistortedBoundingBox\w*|CudnnRNN\w*'
  r'|If|While|Case|For|RemoteCall|SymbolicGradient|Xla\w+'
  r'|Assert|Print|PrintV2|CheckNumerics\w*|DeviceIndex|Timestamp|Empty'
  r'|StatelessRandomGetAlg|IsTensorFloat32Enabled'
)
# Exceptions, whose state lives on, on disk or in a server; TensorFlow does not
# call most of them stateful.
_LIVES_ON = re.compile(
  r'(Experimental)?(Snapshot|Save|Register|DataService|DatasetToTFRecord)\w*'
)
_CACHES = ('CacheDataset', 'CacheDatasetV2')


def _is_number(dtype: tf.DType) -> bool:
  return dtype.is_integer or dtype.is_floating


def _node_of(tensor_name: str) -> str:
  return tensor_name.removeprefix('^').partition(':')[0]


class _Graph:
  """A graph definition, with edits that keep the relevant tensors."""

  def __init__(self, graph_def: tf.compat.v1.GraphDef):
    self.graph_def = graph_def
    self.nodes = {node.name: node for node in graph_def.node}

  def element_tensors(self, variant: str) -> list[str] | None:
    """Names of the tensors of a sequence's only element, in tf.data's order.

    None if the sequence is used in any way other than extracting it once.
    """
    aliases = {graph_import.canonical(variant)}
    extracting = []
    grown = True
    while grown:
      grown = False
      for node in self.graph_def.node:
        if not aliases & {graph_import.canonical(name) for name in node.input}:
          continue
        if node.op == 'Identity' and f'{node.name}:0' not in aliases:
          aliases.add(f'{node.name}:0')
          grown = True
    for node in self.graph_def.node:
      if aliases & {graph_import.canonical(name) for name in node.input}:
        if node.op not in ('Identity', 'DatasetToSingleElement'):
          return None
        if node.op == 'DatasetToSingleElement':
          extracting.append(node)
    if len(extracting) != 1:
      return None
    node = extracting[0]
    count = len(node.attr['output_types'].list.type)
    return [f'{node.name}:{index}' for index in range(count)]

  def spec(self, tensor_name: str) -> tf.TensorSpec:
    """Type and shape of a parameter's tensor."""
    node = self.nodes[_node_of(tensor_name)]
    if node.op == 'Placeholder':
      return tf.TensorSpec(
        tf.TensorShape(node.attr['shape'].shape),
        tf.as_dtype(node.attr['dtype'].type),
      )
    index = int(graph_import.canonical(tensor_name).partition(':')[2])
    return tf.TensorSpec(
      tf.TensorShape(node.attr['output_shapes'].list.shape[index]),
      tf.as_dtype(node.attr['output_types'].list.type[index]),
    )

  def _needed(self, fed: set[str], fetches: Iterable[str]) -> set[str]:
    """Names of the nodes that fetches depend on, except those that are fed."""
    waiting = collections.deque(_node_of(name) for name in fetches)
    needed: set[str] = set()
    while waiting:
      name = waiting.popleft()
      if name in needed or name in fed:
        continue
      needed.add(name)
      waiting.extend(_node_of(i) for i in self.nodes[name].input)
    return needed

  def pruned(
    self, feeds: Sequence[str], fetches: Sequence[str], initializer: str = ''
  ) -> tf.compat.v1.GraphDef:
    """Keeps only the nodes between feeds and fetches, on any device.

    They wait for the initializer, except for the nodes that it depends on.
    """
    fed = {_node_of(name) for name in feeds}
    before = self._needed(fed, [initializer] if initializer else [])
    needed = self._needed(fed, fetches) | before
    result = tf.compat.v1.GraphDef()
    result.versions.CopyFrom(self.graph_def.versions)
    result.library.CopyFrom(self.graph_def.library)
    for node in self.graph_def.node:
      if node.name in needed:
        copy = result.node.add()
        copy.CopyFrom(node)
        copy.device = ''
        # The node may be colocated with one that is not imported.
        copy.attr.pop('_class', None)
        # Feeds are available before anything runs.
        inputs = [
          i for i in node.input if not (i.startswith('^') and i[1:] in fed)
        ]
        del copy.input[:]
        copy.input.extend(inputs)
        if initializer and node.name not in before:
          copy.input.append(f'^{_node_of(initializer)}')
        if node.op == 'VarHandleOp':
          # Not shared with anything, including calls by other threads.
          copy.attr['shared_name'].s = context.anonymous_name().encode()
    return result


def _has_file(node: Any, nodes: dict[str, Any]) -> bool:
  """Whether a data set's cache is a file, or may be one."""
  name = nodes.get(_node_of(node.input[1]))
  return (
    name is None
    or name.op != 'Const'
    or any(tf.make_ndarray(name.attr['value'].tensor).flat)
  )


def _lasting(definition: tf.compat.v1.GraphDef) -> list[str]:
  """Kinds of ops whose state would persist from one call to another."""
  bodies = [function.node_def for function in definition.library.function]
  kinds = {node.op for nodes in (definition.node, *bodies) for node in nodes}
  ops = {kind: op_def_registry.get(kind) for kind in kinds}
  found = {
    kind
    for kind, op in ops.items()
    if op is not None  # Otherwise a function.
    and (op.is_stateful or any(arg.is_ref for arg in op.output_arg))
    and not _ENDS_WITH_THE_CALL.fullmatch(kind)
  }
  found |= {kind for kind in kinds if _LIVES_ON.fullmatch(kind)}
  for nodes in (definition.node, *bodies):
    by_name = {node.name: node for node in nodes}
    found |= {
      f'{node.op} (with a file)'
      for node in nodes
      if node.op in _CACHES and _has_file(node, by_name)
    }
  # Only those of the graph itself are recreated: see `pruned`.
  found |= {
    f'{node.op} (in a function)'
    for nodes in bodies
    for node in nodes
    if node.op == 'VarHandleOp'
  }
  return sorted(found)


def _unknown(definition: tf.compat.v1.GraphDef) -> list[Any]:
  """Functions of a graph's library that `xla_functions` does not keep."""
  library = definition.library.function
  known = xla_functions.known(library)
  return [f for f in library if f.signature.name not in known]


def _with_own_functions(definition: tf.compat.v1.GraphDef) -> None:
  """Gives the functions of a graph's library names that no other graph has.

  The functions of a process share one registry. Two imports with the same name
  share an entry, which is removed with the first of them. Functions kept by
  `xla_functions` are not renamed: XLA finds their compiled code by name.
  """
  suffix = f'_{uuid.uuid4().hex}'
  own = _unknown(definition)
  names = {f.signature.name: f.signature.name + suffix for f in own}

  def renamed(name):
    return names.get(name, name)

  def rename(nodes):
    for node in nodes:
      node.op = renamed(node.op)
      for attribute in node.attr.values():
        functions = [*attribute.list.func]
        if attribute.WhichOneof('value') == 'func':
          functions.append(attribute.func)
        for function in functions:
          function.name = renamed(function.name)

  rename(definition.node)
  for function in own:
    function.signature.name = names[function.signature.name]
    # Drops the names of its gradient, and of the pair it was traced with.
    for name in set(function.attr) - {'_noinline'}:
      del function.attr[name]
    rename(function.node_def)
  for gradient in definition.library.gradient:
    gradient.function_name = renamed(gradient.function_name)
    gradient.gradient_func = renamed(gradient.gradient_func)


def _as_result(tensor: tf.Tensor) -> tf.Tensor:
  """Converts a tensor to one that a function may return.

  A function must not return a parameter itself or, in TensorFlow 2.14, the
  result of an op on shapes ("unexpected full type information"); an identity
  would be optimized away.
  """
  if tensor.dtype == tf.int32:
    return tf.ensure_shape(tensor, tensor.shape)
  return tf.identity(tensor)


def _without_attributes(tensor: tf.Tensor) -> tf.Tensor:
  """Returns a new tensor that frees all its memory when it is deleted.

  In Python 3.11, a deleted tensor leaks the memory of its attributes, about ten
  bytes each, and a day's training creates millions of tensors:
  https://github.com/tensorflow/tensorflow/issues/62551
  """
  del tensor.__dict__
  return tensor


def _as_tensor(value: Any, own: Any, spec: tf.TensorSpec) -> tf.Tensor:
  """Converts a value to a tensor; shares the memory of arrays of type `own`."""
  if getattr(value, 'dtype', None) is own:
    # Without a copy, and three times as fast as TensorFlow's Python code.
    device = context.context().device_name
    return _without_attributes(_EagerTensor(value, device, None))
  return _without_attributes(tf.convert_to_tensor(value, spec.dtype))


class TensorFunction:
  """A function of flat tensors that is traced once.

  Attributes:
    specs: Specs of the parameters' tensors.
    traced: The traced function, to be used in other graphs. It is also kept
      alive here, because TensorFlow's context only knows its name.
  """

  def __init__(
    self, function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
  ):
    """Traces a function of tensors; it may call `traced` of others."""
    self.specs = list(specs)

    @tf.function(autograph=False)
    def call(*tensors):
      return list(map(_as_result, function(*tensors)))

    self.traced = call.get_concrete_function(*self.specs)
    # Dtypes of arrays that need no conversion. NumPy has one object for each
    # numeric dtype.
    self._numpy_dtypes = [
      np.dtype(spec.dtype.as_numpy_dtype) if _is_number(spec.dtype) else _NONE
      for spec in self.specs
    ]
    self._result_dtypes = [output.dtype for output in self.traced.outputs]
    self._first_call = threading.Lock()
    self._is_optimized = False
    # Such ops may come from functions that others have traced.
    waits = onednn.kept_apart(self.traced.graph.as_graph_def())
    self._turn: contextlib.AbstractContextManager[object] = _NO_TURN
    if waits:
      self._turn = _ALONE

  def __call__(self, *tensors: Any) -> list[tf.Tensor]:
    """Calls the function with flat tensors; returns flat tensors.

    Calling the concrete function itself takes a tenth of a millisecond more.
    """
    arguments = [
      tensor if isinstance(tensor, tf.Tensor) else _as_tensor(tensor, own, spec)
      for tensor, own, spec in zip(
        tensors, self._numpy_dtypes, self.specs, strict=True
      )
    ]
    if self._is_optimized:
      return self._call(arguments)
    # In the first call, TensorFlow optimizes the graph, which takes seconds for
    # a large one; other threads that call meanwhile would all do the same.
    with self._first_call:
      result = self._call(arguments)
      self._is_optimized = True
    return result

  def _call(self, arguments: Sequence[Any]) -> list[tf.Tensor]:
    with self._turn:
      results = tf.raw_ops.StatefulPartitionedCall(
        args=arguments,
        Tout=self._result_dtypes,
        f=self.traced.name.decode(),
        config_proto=onednn.CALL_OPTIONS,
      )
    return list(map(_without_attributes, results))


class GraphFunction(TensorFunction):
  """A TFF computation as a function of flat tensors.

  Attributes:
    kinds: `TENSOR`, `ELEMENT` or `DATASET` for each leaf of the parameter, in
      TFF's order.
    has_xla: Whether XLA compiles a part of it. On a CPU, one of XLA's threads
      runs that part while the caller waits.
  """

  def __init__(self, computation: tff.framework.ConcreteComputation):
    """Imports a computation.

    Args:
      computation: A TensorFlow computation, without federated types.

    Raises:
      NotImplementedError: If it has tables, queues or another state that
        outlives a call, or returns a sequence.
    """
    proto = tff.framework.serialize_computation(computation).tensorflow
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    graph = _Graph(graph_def)
    feeds: list[str] = []
    self.kinds: list[str] = []
    for binding, name in graph_import.leaves(proto.parameter):
      kind, names = TENSOR, [name]
      if binding == 'sequence':
        kind = DATASET
        element = graph.element_tensors(name)
        if element is not None:
          kind, names = ELEMENT, element
      self.kinds.append(kind)
      feeds.extend(names)
    fetches = graph_import.tensor_names(proto.result)
    definition = graph.pruned(feeds, fetches, proto.initialize_op)
    if lasting := _lasting(definition):
      raise NotImplementedError(
        'a computation whose tables, queues or the like would go from client'
        f' to client: {", ".join(lasting)}'
      )
    self.has_xla = any(
      function.attr['_XlaMustCompile'].b
      for function in definition.library.function
      if '_XlaMustCompile' in function.attr
    )
    reductions.as_loops(definition)
    onednn.kept_apart(definition)
    _with_own_functions(definition)
    used = graph_import.inputs(definition)

    def call(*tensors):
      by_name = dict(
        zip(map(graph_import.canonical, feeds), tensors, strict=True)
      )
      # A result may be an unchanged parameter.
      inner = [
        f for f in map(graph_import.canonical, fetches) if f not in by_name
      ]
      imported = tf.import_graph_def(
        definition,
        input_map={n: t for n, t in by_name.items() if n in used},
        return_elements=inner,
        name='',
      )
      by_name.update(zip(inner, imported, strict=True))
      return [by_name[graph_import.canonical(name)] for name in fetches]

    # An import registers the library only with the graph.
    for function in _unknown(definition):
      context.context().add_function_def(function)
    super().__init__(call, [graph.spec(name) for name in feeds])


# Total duration of a shape's calls before it is compiled: much longer than
# compiling, which only saves a small part of each call.
_HOT_SECONDS = 10.0
_MOST_SHAPES = 4

_Shapes = tuple[tuple[int, ...], ...]


def _same_bits(one: list[tf.Tensor], other: list[tf.Tensor]) -> bool:
  return all(
    np.asarray(a).tobytes() == np.asarray(b).tobytes()
    for a, b in zip(one, other, strict=True)
  )


class HotShapes:
  """A function of flat tensors, some of whose dimensions are unknown.

  A version for known dimensions is used only if it gives the same bits as the
  general one, on the arguments for which it was created: a resumed run creates
  its versions at other times.
  """

  def __init__(self, function: TensorFunction):
    """Creates no other version yet."""
    self._function = function
    self._open = [
      index
      for index, spec in enumerate(function.specs)
      if not spec.shape.is_fully_defined()
    ]
    self._forms: dict[_Shapes, TensorFunction] = {}
    self._seconds = collections.defaultdict[_Shapes, float](float)
    self._lock = threading.Lock()

  def __call__(self, *tensors: Any) -> list[tf.Tensor]:
    """Calls the function; several threads may do so at once."""
    if not self._open:
      return self._function(*tensors)
    try:
      shapes = tuple(tuple(tensors[index].shape) for index in self._open)
    except AttributeError:  # A number.
      return self._function(*tensors)
    form = self._forms.get(shapes)
    if form is not None:
      return form(*tensors)
    start = time.perf_counter()
    result = self._function(*tensors)
    seconds = time.perf_counter() - start
    with self._lock:
      self._seconds[shapes] += seconds
      if (
        self._seconds[shapes] >= _HOT_SECONDS
        and shapes not in self._forms
        and len(self._forms) < _MOST_SHAPES
      ):
        self._forms[shapes] = self._form(shapes, tensors, result)
    return result

  def _form(
    self, shapes: _Shapes, tensors: Any, result: list[tf.Tensor]
  ) -> TensorFunction:
    specs = list(self._function.specs)
    for index, shape in zip(self._open, shapes, strict=True):
      specs[index] = tf.TensorSpec(shape, specs[index].dtype)
    form = TensorFunction(self._function.traced, specs)
    return form if _same_bits(form(*tensors), result) else self._function
