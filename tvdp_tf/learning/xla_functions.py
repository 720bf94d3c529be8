"""Functions that XLA compiles once per process, ahead of their first call.

TensorFlow finds a function's compiled code by the function's name. So these
functions are traced once, outside of any graph, and keep their names as long as
the process lives. Importing a graph that calls them must not rename them
(`known`).
"""

import concurrent.futures
import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


class _Kept(NamedTuple):
  """A function, and the definitions of it and of all that it calls, by name.

  TensorFlow drops the definitions when the function is deleted.
  """

  function: tf.types.experimental.ConcreteFunction
  definitions: Mapping[str, Any]


_KEPT: list[_Kept] = []
_AHEAD_ON: contextvars.ContextVar[str | None] = contextvars.ContextVar(
  'device', default=None
)


@contextlib.contextmanager
def compiled_ahead(device_name: str) -> Iterator[None]:
  """Makes XLA compile functions as soon as they are traced in its context.

  This applies to functions traced by the same thread. XLA compiles in another
  thread, without Python's lock, for about a second, while other graphs are
  built.

  Args:
    device_name: TensorFlow's name of the device that will run the functions.
  """
  token = _AHEAD_ON.set(device_name)
  try:
    yield
  finally:
    _AHEAD_ON.reset(token)


def _traced(
  function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
  compiled = tf.function(function, jit_compile=True, autograph=False)
  traced = compiled.get_concrete_function(*specs)
  definitions = [
    traced.function_def,
    *traced.graph.as_graph_def().library.function,
  ]
  _KEPT.append(_Kept(traced, {d.signature.name: d for d in definitions}))
  return traced


def _compile(
  function: tf.types.experimental.ConcreteFunction,
  specs: Sequence[tf.TensorSpec],
  device_name: str,
) -> None:
  """Calls a function for the first time, in a graph, as it will be called."""

  @tf.function(autograph=False)
  def call(*tensors):
    with tf.device(device_name):
      return function(*tensors)

  # With arguments, because TensorFlow would fold constants itself.
  call(*(tf.zeros(spec.shape, spec.dtype) for spec in specs))


def trace(
  function: Callable[..., Any], specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
  """Traces a function that XLA is to compile, and keeps it forever.

  Args:
    function: A stateless function of tensors.
    specs: The tensors' static shapes and dtypes.

  Returns:
    The function, which can be called in any graph, or in none.
  """
  # A separate thread is not in any graph or device scope.
  thread = concurrent.futures.ThreadPoolExecutor(1, 'compiled-ahead')
  try:
    traced = thread.submit(_traced, function, specs).result()
    if (device_name := _AHEAD_ON.get()) is not None:
      # If it fails, it will fail again where it is called.
      thread.submit(_compile, traced, specs, device_name)
  finally:
    thread.shutdown(wait=False)
  return traced


def known(library: Iterable[Any]) -> set[str]:
  """Finds the functions of a graph's library that are kept here.

  Args:
    library: Definitions, `FunctionDef`.

  Returns:
    The names of those whose definitions, and those of all functions that they
    call, are identical to the kept ones.
  """
  by_name = {definition.signature.name: definition for definition in library}
  return {
    name
    for kept in _KEPT
    if all(by_name.get(n) == d for n, d in kept.definitions.items())
    for name in kept.definitions
  }
