"""Checks that a graph cannot fail on the content of an example.

A round that fails reveals something about the example that it failed on,
without noise: at least that there is such an example. So a model and its loss
must not fail for any values, such as an index out of range, an integer division
by zero, or a negative shape.

Values are traced from the features and labels through the graph and its
functions. An op is accepted if it never fails (`_TOTAL`), or if the operands
that it can fail on are not computed from an example: constants, shapes, weights
(`_PUBLIC_OPERANDS`). An index may be computed from an example if it is known to
be in range: integers are traced with their bounds, which `tf.clip_by_value`
sets. Any other op that an example reaches is refused. This is a list of allowed
ops, not a search for faulty ones.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Ops that accept any values. Floating-point ops do not fail: they overflow, or
# return NaN.
_TOTAL = frozenset(
  (
    *('Abs', 'Acos', 'Acosh', 'Add', 'AddN', 'AddV2', 'Angle'),
    *('ApproximateEqual', 'Asin', 'Asinh', 'Atan', 'Atan2', 'Atanh', 'AvgPool'),
    *('AvgPool3D', 'BatchMatMul', 'BatchMatMulV2', 'BatchMatMulV3'),
    *('BesselI0', 'BesselI0e', 'BesselI1', 'BesselI1e'),
    *('BiasAdd', 'BiasAddGrad', 'BiasAddV1', 'BitwiseAnd'),
    *('BitwiseOr', 'BitwiseXor', 'Bucketize', 'Cast', 'Ceil', 'ClipByValue'),
    *('Complex', 'ComplexAbs', 'Conj', 'Conv2D', 'Conv3D', 'Cos', 'Cosh'),
    *('CudnnRNN', 'DepthToSpace', 'DepthwiseConv2dNative', 'Diag', 'DiagPart'),
    *('Digamma', 'Dilation2D', 'Dilation2DBackpropFilter'),
    *('Dilation2DBackpropInput', 'DivNoNan', 'Einsum', 'Elu', 'EluGrad'),
    *('EnsureShape', 'Equal', 'Erf', 'Erfc', 'Erfinv', 'Exp', 'Expm1'),
    *('ExtractImagePatches', 'FFT', 'FFT2D', 'FFT3D'),
    *('FakeQuantWithMinMaxArgs', 'FakeQuantWithMinMaxArgsGradient', 'Floor'),
    *('Greater', 'GreaterEqual', 'IFFT', 'IFFT2D', 'IFFT3D', 'Identity'),
    *('IdentityN', 'Igamma', 'IgammaGradA', 'Igammac', 'Imag', 'Inv'),
    *('InvGrad', 'Invert', 'IsFinite', 'IsInf', 'IsNan', 'L2Loss', 'LRN'),
    *('LRNGrad', 'LeakyRelu', 'LeakyReluGrad', 'Less', 'LessEqual', 'Lgamma'),
    *('Log', 'Log1p', 'LogSoftmax', 'LogicalAnd', 'LogicalNot', 'LogicalOr'),
    *('LowerBound', 'MatMul', 'MatrixDeterminant', 'MatrixDiag'),
    *('MatrixDiagPart', 'MaxPool', 'MaxPool3D', 'MaxPool3DGrad', 'MaxPoolGrad'),
    *('MaxPoolGradGrad', 'MaxPoolWithArgmax'),
    *('Maximum', 'Minimum', 'Mul', 'MulNoNan', 'Ndtri', 'Neg', 'NextAfter'),
    *('NoOp', 'NotEqual', 'OnesLike', 'Pack', 'PreventGradient', 'Qr', 'Rank'),
    *('Real', 'Reciprocal', 'ReciprocalGrad', 'Relu', 'Relu6', 'Relu6Grad'),
    *('ReluGrad', 'ResizeBicubicGrad', 'ResizeBilinearGrad', 'Rint', 'Round'),
    *('Rsqrt', 'RsqrtGrad', 'Select', 'SelectV2', 'Selu', 'SeluGrad', 'Shape'),
    *('ShapeN', 'Sigmoid', 'SigmoidGrad', 'Sign', 'Sin', 'Sinh', 'Size'),
    *('Snapshot', 'Softmax', 'SoftmaxCrossEntropyWithLogits', 'Softplus'),
    *('SoftplusGrad', 'Softsign', 'SoftsignGrad', 'SpaceToDepth', 'Sqrt'),
    *('SqrtGrad', 'Square', 'SquaredDifference', 'Squeeze', 'StopGradient'),
    *('Sub', 'Svd', 'Tan', 'Tanh', 'TanhGrad', 'TensorListElementShape'),
    *('TensorListLength', 'TensorListPushBack', 'Unpack', 'UpperBound'),
    *('Xdivy', 'Xlog1py', 'Xlogy', 'ZerosLike'),
  )
)
# With integer operands, these ops can fail on the value of the second one.
_OF_INTEGERS = frozenset(
  (
    *('Div', 'FloorDiv', 'FloorMod', 'Mod', 'Pow', 'RealDiv', 'TruncateDiv'),
    'TruncateMod',
  )
)
# Op -> operands (sizes, axes, places) that it can fail on; negative: from the
# end.
_PUBLIC_OPERANDS: Mapping[str, tuple[int, ...]] = {
  **dict.fromkeys(
    (
      *('All', 'Any', 'ArgMax', 'ArgMin', 'BroadcastTo', 'Cumprod', 'Cumsum'),
      *('CumulativeLogsumexp', 'EuclideanNorm', 'ExpandDims', 'IRFFT'),
      *('IRFFT2D', 'IRFFT3D', 'Max', 'Mean', 'Min', 'MirrorPad'),
      *('MirrorPadGrad', 'NthElement', 'OneHot', 'Pad', 'PadV2', 'Prod'),
      *('RFFT', 'RFFT2D', 'RFFT3D', 'Reshape', 'ResizeArea', 'ResizeBicubic'),
      *('ResizeBilinear', 'ResizeNearestNeighbor', 'Reverse', 'ReverseV2'),
      *('ResizeNearestNeighborGrad', 'Sum', 'TensorListFromTensor'),
      *('TensorListGetItem', 'TensorListPopBack', 'TensorListSetItem'),
      *('TensorListStack', 'Tile', 'TopKV2', 'Transpose', 'ReverseSequence'),
      *('ConjugateTranspose', 'Conv2DBackpropFilter', 'Conv3DBackpropFilterV2'),
      *('DepthwiseConv2dNativeBackpropFilter', 'TensorScatterUpdate'),
      *('TensorScatterAdd', 'TensorScatterSub', 'TensorScatterMax'),
      *('TensorScatterMin', 'GatherNd', 'SegmentMax', 'SegmentMean'),
      *('SegmentMin', 'SegmentProd', 'SegmentSum'),
    ),
    (1,),
  ),
  **dict.fromkeys(
    (
      *('AvgPool3DGrad', 'AvgPoolGrad', 'Concat', 'Conv2DBackpropInput'),
      *('Conv3DBackpropInputV2', 'DepthwiseConv2dNativeBackpropInput'),
      *('Fill', 'RandomStandardNormal', 'RandomUniform', 'Split'),
      *('StatelessRandomNormal', 'StatelessRandomUniform'),
      *('StatelessTruncatedNormal', 'TruncatedNormal', 'InvertPermutation'),
    ),
    (0,),
  ),
  **dict.fromkeys(
    (
      *(
        'BatchToSpaceND',
        'MatrixBandPart',
        'Slice',
        'SpaceToBatchND',
        'SplitV',
      ),
      *('SparseSegmentMean', 'SparseSegmentSqrtN', 'SparseSegmentSum'),
    ),
    (1, 2),
  ),
  **dict.fromkeys(
    (
      *('StatelessRandomNormalV2', 'StatelessRandomUniformV2'),
      'StatelessTruncatedNormalV2',
    ),
    (0, 3),
  ),
  'BatchToSpace': (1,),
  'MaxPoolGradV2': (3, 4),
  'MaxPoolV2': (1, 2),
  'TensorListReserve': (0, 1),
  **dict.fromkeys(
    ('BroadcastArgs', 'BroadcastGradientArgs', 'EmptyTensorList'), (0, 1)
  ),
  **dict.fromkeys(('ScatterNd', 'LinSpace'), (0, 2)),
  **dict.fromkeys(('Range', 'RandomUniformInt'), (0, 1, 2)),
  **dict.fromkeys(('MatrixDiagPartV2', 'MatrixDiagPartV3'), (1,)),
  **dict.fromkeys(('MatrixDiagV2', 'MatrixDiagV3'), (1, 2, 3)),
  **dict.fromkeys(('MatrixSetDiagV2', 'MatrixSetDiagV3', 'Roll'), (2,)),
  'ConcatV2': (-1,),
  'StridedSlice': (1, 2, 3),
  'StridedSliceGrad': (0, 1, 2, 3),
}
# Op -> its index operand, and the operand whose rows it indexes (None: result).
_INDEXING = {
  'Gather': (1, 0),
  'GatherV2': (1, 0),
  'SparseSoftmaxCrossEntropyWithLogits': (1, 0),
  'UnsortedSegmentMax': (1, None),
  'UnsortedSegmentMin': (1, None),
  'UnsortedSegmentProd': (1, None),
  'UnsortedSegmentSum': (1, None),
}
# Ops whose results depend only on shapes, which are public.
_OF_SHAPES = frozenset(
  (
    *('OnesLike', 'Rank', 'Shape', 'ShapeN', 'Size', 'TensorListElementShape'),
    *('TensorListLength', 'ZerosLike'),
  )
)
# Ops that return only values of their first operand.
_MOVING = frozenset(
  (
    *('BroadcastTo', 'EnsureShape', 'ExpandDims', 'Gather', 'GatherV2'),
    *('Identity', 'PreventGradient', 'Reshape', 'Reverse', 'ReverseV2'),
    *('Slice', 'Snapshot', 'Squeeze', 'StopGradient', 'StridedSlice', 'Tile'),
    *('Transpose', 'Unpack', 'SplitV'),
  )
)
# In `reached`: segment sums whose indices may be out of range.
ANY_SEGMENT = 'UnsortedSegment by any index'
BRANCHING = frozenset(('Case', 'If', 'StatelessCase', 'StatelessIf'))
LOOPS = frozenset(('StatelessWhile', 'While'))
_CALLS = frozenset(('PartitionedCall', 'StatefulPartitionedCall'))
# TensorFlow's gradient of `tf.math.top_k`, which computes valid indices itself.
_OF_TOP_K = re.compile(r'/TopKV2(_\d+)?_grad/ScatterNd$')
# Number of integers of a tensor that are followed one by one.
_FEW = 8
# Number of passes through a loop before its bounds are given up.
_WIDENED_AFTER = 2


class _Value(NamedTuple):
  """What is known about a tensor.

  Attributes:
    private: Whether it may be computed from an example.
    low: Lower bound, if it holds integers.
    high: Upper bound, if it holds integers.
    shape: Its dimensions; None where they are unknown.
    elements: The integers in it, if they are few and known.
  """

  private: bool
  low: float = -math.inf
  high: float = math.inf
  shape: tuple[int | None, ...] | None = None
  elements: tuple[int, ...] | None = None


_Values = Sequence[_Value]


def _joined(values: _Values) -> _Value:
  """What holds for a value that is any one of several."""
  return _Value(
    any(value.private for value in values),
    min(value.low for value in values),
    max(value.high for value in values),
    values[0].shape if len({value.shape for value in values}) == 1 else None,
    values[0].elements
    if len({value.elements for value in values}) == 1
    else None,
  )


def _output_shape(node: Any) -> tuple[int | None, ...] | None:
  shapes = node.attr['_output_shapes'].list.shape
  if len(shapes) != 1 or shapes[0].unknown_rank:
    return None
  return tuple(None if dim.size < 0 else int(dim.size) for dim in shapes[0].dim)


def _constant(node: Any) -> _Value:
  shape = _output_shape(node)
  array = tf.make_ndarray(node.attr['value'].tensor)
  if not (array.size and np.issubdtype(array.dtype, np.integer)):
    return _Value(False, shape=shape)
  elements = tuple(array.ravel().tolist()) if array.size <= _FEW else None
  return _Value(False, float(array.min()), float(array.max()), shape, elements)


def _elements(node: Any, operands: Sequence[_Value]) -> tuple[int, ...] | None:
  """The integers that an op computes from the dimensions of a tensor."""
  if node.op == 'Shape':
    sizes = [size for size in operands[0].shape or () if size is not None]
    every = len(sizes) == len(operands[0].shape or ())
    return tuple(sizes) if sizes and every else None
  if node.op in ('Identity', 'Reshape') or (
    node.op == 'Cast' and tf.as_dtype(node.attr['SrcT'].type).is_integer
  ):
    return operands[0].elements
  if node.op == 'StridedSlice' and node.attr['shrink_axis_mask'].i == 1:
    known, places = operands[0].elements, operands[1].elements
    if known and places is not None and len(places) == 1:
      fits = -len(known) <= places[0] < len(known)
      return (known[places[0]],) if fits else None
  return None


_Bounds = tuple[float, float]
_ANY: _Bounds = (-math.inf, math.inf)


def _of_cast(node: Any, operands: _Values) -> _Bounds:
  source = tf.as_dtype(node.attr['SrcT'].type)
  target = tf.as_dtype(node.attr['DstT'].type)
  low, high = operands[0].low, operands[0].high
  if source.is_bool:
    return 0, 1
  # Not from a float: NaN may become any integer.
  kept = source.is_integer and target.is_integer
  return (
    (low, high) if kept and target.min <= low <= high <= target.max else _ANY
  )


def _of_place(node: Any, operands: _Values) -> _Bounds:
  """Bounds of the place of a maximum or minimum."""
  shape, axis = operands[0].shape, operands[1]
  if not shape or axis.low != axis.high:
    return _ANY
  size = shape[int(axis.low)]
  largest = tf.as_dtype(node.attr['output_type'].type or tf.int64).max
  return _ANY if size is None or size - 1 > largest else (0, size - 1)


def _of_remainder(node: Any, operands: _Values) -> _Bounds:
  del node
  divisor = operands[1]
  return (0, divisor.high - 1) if divisor.low > 0 else _ANY


def _of_moved(node: Any, operands: _Values) -> _Bounds:
  del node
  return operands[0].low, operands[0].high


def _of_one_of(operands: _Values) -> _Bounds:
  joined = _joined(operands)
  return joined.low, joined.high


def _of_chosen(node: Any, operands: _Values) -> _Bounds:
  del node
  condition, *choices = operands
  return _of_one_of(choices[1:] if condition.high == 0 else choices)


def _of_less(node: Any, operands: _Values) -> _Bounds:
  """Bounds of a comparison: 0 if it is never true."""
  del node
  return (0, 0) if operands[0].low >= operands[1].high else _ANY


# Op -> (node, its operands) -> bounds of its integer results.
_BOUNDS: Mapping[str, Callable[[Any, _Values], _Bounds]] = {
  **dict.fromkeys(_MOVING, _of_moved),
  'ArgMax': _of_place,
  'ArgMin': _of_place,
  'Bucketize': lambda node, _: (0, len(node.attr['boundaries'].list.f)),
  'Cast': _of_cast,
  'ConcatV2': lambda _, operands: _of_one_of(operands[:-1]),  # Not the axis.
  'FloorMod': _of_remainder,
  'Less': _of_less,
  'Maximum': lambda _, operands: (
    max(one.low for one in operands),
    max(one.high for one in operands),
  ),
  'Minimum': lambda _, operands: (
    min(one.low for one in operands),
    min(one.high for one in operands),
  ),
  'Pack': lambda _, operands: _of_one_of(operands),
  'Select': _of_chosen,
  'SelectV2': _of_chosen,
}


def _is_integer(node: Any) -> bool:
  """Whether an op computes with integers, according to its attributes."""
  for name in ('T', 'Tparams', 'DstT'):
    if number := node.attr[name].type:
      return bool(tf.as_dtype(number).is_integer)
  return False


def _bounds(node: Any, operands: _Values) -> _Bounds:
  # Comparisons with NaN bound nothing.
  places = ('ArgMax', 'ArgMin', 'Bucketize')
  if node.op in places or (node.op in _BOUNDS and _is_integer(node)):
    return _BOUNDS[node.op](node, operands)
  return _ANY


class _Graph:
  """A graph with its functions, whose values are traced.

  Attributes:
    reached: The types of the ops that an example has reached so far.
  """

  def __init__(self, name: str, graph_def: tf.compat.v1.GraphDef):
    self._name = name
    self.reached: set[str] = set()
    self._functions = {
      function.signature.name: function
      for function in graph_def.library.function
    }

  def refuse(self, node: Any, why: str) -> None:
    raise ValueError(
      f'{self._name} must compute with any values, because a round that fails'
      f' on an example discloses it to everybody, got the op {node.op}'
      f' ({node.name}), {why}'
    )

  def follow(
    self, nodes: Collection[Any], given: Mapping[str, _Value]
  ) -> Callable[[str], _Value]:
    """Traces values through the nodes of a graph or of a function.

    Args:
      nodes: The nodes.
      given: What is known about the arguments, by name.

    Returns:
      A function from a tensor's name to what is known about it.
    """
    by_name = {node.name: node for node in nodes}
    found: dict[str, list[_Value]] = {}

    def value(tensor: str) -> _Value:
      name, *place = tensor.split(':')
      if name in given:
        return given[name]
      if name not in found:  # Nodes may be in any order.
        settle(by_name[name])
      values = found[name]
      if len(values) == 1:  # It holds for all outputs of an op.
        return values[0]
      function = self._functions.get(by_name[name].op)
      if function is not None and len(place) == 2:
        names = [result.name for result in function.signature.output_arg]
        return values[names.index(place[0])]
      return values[int(place[-1]) if place else 0]

    def settle(node: Any) -> None:
      if node.name not in found and node.name not in given:
        operands = [value(one) for one in node.input if one[0] != '^']
        found[node.name] = self._results(node, operands)

    for node in nodes:
      settle(node)
    return value

  def _call(self, name: str, arguments: _Values) -> list[_Value]:
    function = self._functions[name]
    value = self.follow(
      function.node_def,
      dict(
        zip(
          (argument.name for argument in function.signature.input_arg),
          arguments,
          strict=True,
        )
      ),
    )
    return [
      value(function.ret[result.name])
      for result in function.signature.output_arg
    ]

  def _results(self, node: Any, operands: _Values) -> list[_Value]:
    if node.op in self._functions:
      return self._call(node.op, operands)
    if node.op in _CALLS:
      return self._call(node.attr['f'].func.name, operands)
    if node.op in BRANCHING | LOOPS and any(one.private for one in operands):
      self.reached.add(node.op)
    if node.op in BRANCHING:
      return self._branches(node, operands)
    if node.op in LOOPS:
      return self._loop(node, operands)
    if node.op == 'Const':
      return [_constant(node)]
    private = any(operand.private for operand in operands)
    if private and node.op not in _OF_SHAPES:
      self.reached.add(node.op)
      self._check(node, operands)
    private = private and node.op not in _OF_SHAPES
    elements = None if private else _elements(node, operands)
    return [
      _Value(private, *_bounds(node, operands), _output_shape(node), elements)
    ]

  def _branches(self, node: Any, operands: _Values) -> list[_Value]:
    names = [
      node.attr[name].func.name
      for name in ('then_branch', 'else_branch')
      if name in node.attr
    ]
    names += [one.name for one in node.attr['branches'].list.func]
    chosen, *arguments = operands
    if chosen.private:
      # Everything in a branch would depend on an example: constants, shapes,
      # loops, and how many random numbers are left for other examples.
      self.refuse(
        node,
        'whose branch depends on an example: use tf.where, which computes both',
      )
    results = [self._call(name, arguments) for name in names]
    return [_joined(values) for values in zip(*results, strict=True)]

  def _loop(self, node: Any, operands: _Values) -> list[_Value]:
    values, repeated = list(operands), 0
    while True:
      (going_on,) = self._call(node.attr['cond'].func.name, values)
      if going_on.private:
        self.refuse(node, 'which an example may prevent from ever ending')
      after = self._call(node.attr['body'].func.name, values)
      new = [_joined(pair) for pair in zip(values, after, strict=True)]
      repeated += 1
      if repeated > _WIDENED_AFTER:
        new = [
          one
          if (one.low, one.high) == (old.low, old.high)
          else one._replace(low=-math.inf, high=math.inf)
          for one, old in zip(new, values, strict=True)
        ]
      if new == values:
        return new
      values = new

  def _check(self, node: Any, operands: _Values) -> None:
    """Checks an op that an example reaches."""
    op = node.op
    if op in _INDEXING:
      self._check_index(node, operands)
    elif op in _OF_INTEGERS:
      divisor = operands[1]
      if _is_integer(node) and divisor.private:
        fits = divisor.low >= 0 if op == 'Pow' else divisor.low > 0
        if not fits:
          self.refuse(
            node, 'of integers, whose second operand may be 0 or negative'
          )
    elif _OF_TOP_K.search(node.name) and op == 'ScatterNd':
      pass
    elif op in _PUBLIC_OPERANDS:
      for place in _PUBLIC_OPERANDS[op]:
        if operands[place].private:
          self.refuse(
            node,
            'whose size, axis or position is computed from an example: use'
            ' tf.one_hot, which takes any index, or tf.gather with a clipped'
            ' index',
          )
    elif op not in _TOTAL:
      self.refuse(node, 'which is not known to accept any values')

  def _check_index(self, node: Any, operands: _Values) -> None:
    place, table = _INDEXING[node.op]
    index = operands[place]
    if any(one.private for one in operands[2:]):
      self.refuse(node, 'whose size or axis is computed from an example')
    if not index.private and table is not None:
      return
    axis = -1 if node.op == 'SparseSoftmaxCrossEntropyWithLogits' else 0
    if node.op == 'GatherV2':
      if operands[2].low != operands[2].high:
        self.refuse(node, 'whose axis is not known')
      axis = int(operands[2].low)
    shape = _output_shape(node) if table is None else operands[table].shape
    rows = shape[axis] if shape else None
    if rows is None and table is None and len(operands[2].elements or ()) == 1:
      (rows,) = operands[2].elements or ()
    if rows is not None and 0 <= index.low <= index.high <= rows - 1:
      return
    if not index.private:
      # Ignored for single examples; vectorized, it enters another one's sum.
      self.reached.add(ANY_SEGMENT)
    elif rows is None:
      self.refuse(node, 'whose number of rows is not known')
    else:
      self.refuse(
        node,
        f'whose index may be outside of the {rows} rows: clip it as an'
        ' integer, by tf.clip_by_value(tf.cast(index, tf.int32), 0, rows - 1)',
      )


def check(
  name: str, graph: tf.Graph, private: Sequence[tf.Tensor]
) -> frozenset[str]:
  """Checks that no values of an example make a graph fail.

  Args:
    name: What the graph computes, for the error message.
    graph: The graph.
    private: The graph's placeholders for an example's values.

  Returns:
    The types of the ops that compute with these values.

  Raises:
    ValueError: If an op that these values reach can fail on them.
  """
  graph_def = graph.as_graph_def(add_shapes=True)
  names = {tensor.op.name for tensor in private}
  given = {
    node.name: _Value(node.name in names, shape=_output_shape(node))
    for node in graph_def.node
    if node.op == 'Placeholder'
  }
  followed = _Graph(name, graph_def)
  followed.follow(graph_def.node, given)
  return frozenset(followed.reached)
