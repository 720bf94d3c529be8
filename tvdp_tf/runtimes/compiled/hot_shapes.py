"""A function that is traced again for the shapes that it often meets.

With every dimension known, TensorFlow computes what follows from the shapes
once, when it compiles: 2 % of a small client's work.
"""

import collections
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tvdp_tf.runtimes.compiled import graph_function

# Compiling takes as long as is saved in some thousand calls.
_HOT_CALLS = 1000
_MOST_SHAPES = 4

_Shapes = tuple[tuple[int, ...], ...]


def _same_bits(one: list[tf.Tensor], other: list[tf.Tensor]) -> bool:
  return all(
    np.asarray(a).tobytes() == np.asarray(b).tobytes()
    for a, b in zip(one, other, strict=True)
  )


class HotShapes:
  """A function of flat tensors, some of their dimensions unknown.

  A form of known dimensions is used only where it gives the same bits as the
  general one, on the arguments that were there when it was made: a run that is
  resumed makes its own at another time.
  """

  def __init__(self, function: graph_function.TensorFunction):
    """Makes no further form yet."""
    self._function = function
    self._open = [
      index
      for index, spec in enumerate(function.specs)
      if not spec.shape.is_fully_defined()
    ]
    self._forms: dict[_Shapes, graph_function.TensorFunction] = {}
    self._calls = collections.Counter[_Shapes]()
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
    result = self._function(*tensors)
    with self._lock:
      self._calls[shapes] += 1
      if self._calls[shapes] != _HOT_CALLS or len(self._forms) == _MOST_SHAPES:
        return result
      self._forms[shapes] = self._form(shapes, tensors, result)
    return result

  def _form(
    self, shapes: _Shapes, tensors: Any, result: list[tf.Tensor]
  ) -> graph_function.TensorFunction:
    specs = list(self._function.specs)
    for index, shape in zip(self._open, shapes, strict=True):
      specs[index] = tf.TensorSpec(shape, specs[index].dtype)
    form = graph_function.TensorFunction(self._function.traced, specs)
    return form if _same_bits(form(*tensors), result) else self._function
