"""Runs TFF computations in this process: no worker, no port, CPU or GPU.

```
with compiled_runtime():
  state = process.initialize()
  state = process.next(state, data).state
```

The computation is the same as on TFF's worker. TFF compiles a process's `next`
to a `MapReduceForm`: graphs to prepare the broadcast at the server, to work at
a client, to accumulate, and to update the server's state. This module imports
these graphs (`graph_function`) and calls them one after the other, those of the
clients in parallel, one thread each (`ordered_fold`). Memory does not grow with
the size of a cohort: an update is accumulated, then discarded. TFF's own
algorithms are supported, too; their clients' reductions of data sets become
loops (`reductions`).

Alternatives were slower. In multiples of the time of this loop when they were
measured (two cores; MLP, K = 10, 600 examples each: 23 ms a round): all clients
in one graph with `tf.vectorized_map` 1.7, the same with XLA 2.3; each client's
graph with XLA 1.3; `tf.while_loop` over the clients 2.0. The first two are
faster if a client has almost nothing to do (K = 1,000 with 10 examples of 64
features: 0.3 with XLA), but need clients of one size, all of their data in one
tensor, and seconds to compile for each size of the cohort. One call for a
thread's share of the clients took 1.03 times as long as a loop, also at K =
1,000; unrolled, it took as long. Several rounds in a call would save at most
the time outside of this loop, 3 % of that round, and the ledger needs a line
before each round.
"""

import contextlib
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf.runtimes import graph_import
from tvdp_tf.runtimes.compiled import (
  devices,
  graph_function,
  ordered_fold,
  values,
)

# Smaller arrays are cheaper to copy than to look up.
_RESIDENT_BYTES = 2**14
# With fewer arrays, unused ones are not searched for.
_FEWEST_SWEPT = 64


def _is_fixed(array: Any) -> bool:
  """Whether an array and the arrays that it is a view of are read-only."""
  while isinstance(array, np.ndarray):
    if array.flags.writeable:
      return False
    array = array.base
  return array is None


class _Resident:
  """Client data that are copied to the device only once.

  This applies only to arrays that cannot change: those marked as read-only. A
  CPU shares the memory of arrays that are `learning.aligned`, and copies the
  others. They are kept as long as somebody else has a reference to the array.
  """

  def __init__(self):
    self._tensors: dict[int, tuple[np.ndarray, tf.Tensor]] = {}
    self._most = _FEWEST_SWEPT

  def _sweep(self) -> None:
    """Drops arrays that nobody else refers to."""
    for key, held in list(self._tensors.items()):
      # References: the tuple and the argument.
      if sys.getrefcount(held[0]) <= 2:
        self._tensors.pop(key, None)
    self._most = max(_FEWEST_SWEPT, 2 * len(self._tensors))

  def __call__(self, value: Any) -> Any:
    if not (
      isinstance(value, np.ndarray)
      and value.nbytes >= _RESIDENT_BYTES
      and _is_fixed(value)
    ):
      return value
    held = self._tensors.get(id(value))
    if held is None:
      if len(self._tensors) >= self._most:
        self._sweep()
      # Keep the array, too, so that its id is not reused.
      tensor = tf.raw_ops.Identity(input=value)
      held = self._tensors[id(value)] = (value, tensor)
    return held[1]


def _finisher(
  update: graph_function.GraphFunction, report: graph_function.GraphFunction
) -> graph_function.TensorFunction:
  """Returns (state, totals) -> (state, output) as one call."""
  num_state = len(update.specs) - len(report.traced.outputs)

  def finish(*tensors):
    state, totals = tensors[:num_state], tensors[num_state:]
    return update.traced(*state, *report.traced(*totals))

  return graph_function.TensorFunction(
    finish, update.specs[:num_state] + report.specs
  )


def _function(
  computation: tff.framework.ConcreteComputation, device: str
) -> graph_function.GraphFunction:
  """Converts a computation to a function for a device.

  Raises:
    NotImplementedError: If `GraphFunction` raises it; or if the device is a GPU
      and XLA compiles a part, as for discrete noise: two seeded runs have given
      different models there.
  """
  function = graph_function.GraphFunction(computation)
  if function.has_xla and 'CPU' not in device:
    raise NotImplementedError(
      'discrete noise, or anything else that XLA compiles, on a GPU, where it'
      " is not proven: use continuous noise or compiled_runtime('cpu')"
    )
  return function


class _CompiledRound:
  """Runs a computation (state@server, data@clients) -> (state, output)."""

  def __init__(
    self,
    computation: tff.framework.ConcreteComputation,
    result_type: tff.Type,
    device: str,
  ):
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      computation, graph_import.compiler_config()
    )
    if form.securely_aggregates_tensors:
      raise NotImplementedError(
        'secure sums are the platform of a deployment: simulate them with '
        'federated.secure_sums.simulated'
      )
    self._server_type, clients_type = computation.type_signature.parameter
    self._client_type = clients_type.member
    self._pack = values.packer(result_type)
    steps = {
      name: _function(getattr(form, name), device)
      for name in ('prepare', 'work', 'zero', 'accumulate', 'report', 'update')
    }
    self._prepare = steps['prepare']
    self._work = graph_function.HotShapes(steps['work'])
    self._work_kinds = steps['work'].kinds
    self._waits = steps['work'].has_xla
    self._zero = steps['zero']()
    self._adder = ordered_fold.Adder(steps['accumulate'], len(self._zero))
    self._finish = _finisher(steps['update'], steps['report'])

  def __call__(
    self,
    server: Any,
    clients: Sequence[Any],
    resident: _Resident,
    fold: ordered_fold.OrderedFold,
  ) -> Any:
    state = list(
      values.tensors(
        server,
        self._server_type.member,
        itertools.repeat(graph_function.TENSOR),
      )
    )
    broadcast = self._prepare(*state)

    def work(client):
      data = values.tensors(client, self._client_type, self._work_kinds)
      return self._work(*map(resident, data), *broadcast)

    totals = fold(
      work,
      self._adder,
      self._zero,
      clients,
      self._adder.together,
      self._waits,
    )
    return self._pack(self._finish(*state, *totals))


def _of_two(
  comp: tff.framework.ConcreteComputation,
) -> tff.framework.ConcreteComputation:
  """Converts a computation to the form (server, clients) -> (server, output).

  An aggregation process, for example, takes (state, value, weight) and returns
  (state, result, measurements).
  """
  signature = comp.type_signature
  placements = [
    [
      one.placement if isinstance(one, tff.FederatedType) else None
      for one in of
    ]
    if isinstance(of, tff.StructType)
    else []
    for of in (signature.parameter, signature.result)
  ]
  if not (
    len(placements[0]) >= 2
    and placements[0] == [tff.SERVER] + [tff.CLIENTS] * (len(placements[0]) - 1)
    and len(placements[1]) >= 2
    and placements[1][0] == tff.SERVER
  ):
    raise NotImplementedError(
      'a form other than (state at the server, data at the clients) -> (state,'
      f' output), got {signature.compact_representation()}: run it in'
      ' local_runtime'
    )
  server_type, *client_types = list(signature.parameter)
  if len(client_types) == 1 and len(signature.result) == 2:
    return comp

  @tff.federated_computation(
    server_type,
    tff.FederatedType([t.member for t in client_types], tff.CLIENTS),
  )
  def call(server, clients):
    result = comp(server, *[clients[i] for i in range(len(client_types))])
    output = [result[i] for i in range(1, len(signature.result))]
    return result[0], tff.federated_zip(output)

  return call


class CompiledContext(tff.framework.SyncContext):
  """Runs TFF computations in this process; made by `compiled_runtime`.

  It takes TensorFlow computations, initializers of processes, and computations
  (state at the server, data at the clients) -> (state, output) with one round
  of aggregation.
  """

  def __init__(self, device: str):
    self._device = devices.device_name(device)
    self._compiled: dict[int, tuple[Any, Any]] = {}
    self._resident = _Resident()
    # TensorFlow releases Python's lock: one thread per core, or one on a GPU.
    self._fold = ordered_fold.OrderedFold(
      devices.cores() if 'CPU' in self._device else 1,
      lambda: tf.device(self._device),
    )

  def forget_data(self) -> None:
    """Drops client data that are kept on the device."""
    self._resident = _Resident()

  def close(self) -> None:
    """Ends the context's threads."""
    self._fold.close()

  def invoke(self, comp: tff.framework.ConcreteComputation, arg: Any) -> Any:
    """Runs a computation; TFF calls this.

    Args:
      comp: The computation.
      arg: Its argument, or None.

    Returns:
      Its result, as tensors in the Python containers of its type.

    Raises:
      NotImplementedError: If the computation has another form.
    """
    with tf.device(self._device):
      if id(comp) not in self._compiled:
        # Keep the computation, too, so that its id is not reused.
        self._compiled[id(comp)] = (comp, self._compile(comp))
      _, run = self._compiled[id(comp)]
      return run(arg)

  def _compile(self, comp: tff.framework.ConcreteComputation):
    signature = comp.type_signature
    if not tff.types.contains(
      signature, lambda t: isinstance(t, tff.FederatedType)
    ):
      return self._plain(comp, comp)
    if signature.parameter is None:
      initialize = tff.backends.mapreduce.get_state_initialization_computation(
        comp, graph_import.compiler_config()
      )
      return self._plain(initialize, comp)
    of_two = _of_two(comp)
    round_ = _CompiledRound(of_two, signature.result, self._device)

    def run(argument):
      server, *clients = list(argument)
      if of_two is not comp:
        clients = [list(zip(*clients, strict=True))]
      return round_(server, clients[0], self._resident, self._fold)

    return run

  def _plain(self, to_run, comp):
    function = _function(to_run, self._device)
    signature = comp.type_signature
    pack = values.packer(signature.result)

    def run(argument):
      if signature.parameter is None:
        return pack(function())
      return pack(
        function(*values.tensors(argument, signature.parameter, function.kinds))
      )

    return run


def compiled_runtime(
  device: str = 'auto',
) -> contextlib.AbstractContextManager[CompiledContext]:
  """Runs TFF computations of this thread in this process.

  Args:
    device: 'cpu', 'gpu', or 'auto' to use a GPU if there is one.

  Returns:
    A context manager whose target is the context installed in its block.

  Raises:
    DeviceUnavailableError: If a GPU is requested and there is none.
  """
  context = CompiledContext(device)

  @contextlib.contextmanager
  def installed():
    with (
      contextlib.closing(context),
      tff.framework.get_context_stack().install(context),
    ):
      yield context

  return installed()
