"""Runs rounds on TFF's worker with little overhead: clients in blocks.

TFF's worker calls a graph several times for every client, with arguments for
each. Here, one call does the work of a whole block of clients: a loop over the
clients, several at a time, computes each result and accumulates the results in
order. The graphs in the loop are those of TFF's MapReduce compiler, unchanged.
If all clients are in one block, the sums are the same to the bit.

When this design was chosen, a round of the paper's MLP at K = 10 on two cores
took, relative to the compiled runtime at that time, with all rounds
interleaved: data as arguments, 5 to 8; files with one call per client (TFF's
own `compose_dataset_computation_with_...`), 1.6 to 2.0; the same as a MapReduce
form with two calls per client, 1.2 to 1.4; blocks, 1.1 to 1.3. At K = 1,000
without local steps, a client took 3.5 ms, 2.2 ms, 1.8 ms, and 1.1 ms of
processor time, of which drawing its noise was 0.9 ms. Both runtimes have become
faster since; benchmarks/results has the current numbers.
"""

import collections
import os

import tensorflow as tf
import tensorflow_federated as tff

from tvdp_tf import _validate
from tvdp_tf.federated import client_data
from tvdp_tf.runtimes import graph_import
from tvdp_tf.runtimes.worker import client_files, worker_runtime


def _flatten(value) -> list[tf.Tensor]:
  """Returns leaves in TFF's order; `tf.nest` would sort keys of mappings."""
  return tff.structure.flatten(
    tff.structure.from_container((value,), recursive=True)
  )


def _pack_as(value, leaves: list[tf.Tensor]):
  (packed,) = tff.structure.pack_sequence_as(
    tff.structure.from_container((value,), recursive=True), leaves
  )
  return packed


def _block_type(client_type: tff.StructType) -> tff.StructType:
  return tff.to_type(
    collections.OrderedDict(
      (name, tff.TensorType(t.dtype, [None, *t.shape]))
      for name, t in tff.structure.iter_elements(client_type)
    )
  )


def in_blocks(
  next_computation: tff.framework.ConcreteComputation,
  parallel_clients: int | None = None,
) -> tff.framework.ConcreteComputation:
  """Converts a round to one of blocks of clients instead of clients.

  With several blocks, the blocks' sums are added: equal except for rounding.

  Args:
    next_computation: (state@SERVER, {T}@CLIENTS) -> LearningProcessOutput, with
      one round of aggregation; T is a structure of tensors, all named.
    parallel_clients: How many clients of a block are computed in parallel,
      which takes memory for each. By default two per core, so that none waits
      for another, or one if kernels would mix them (`learning.onednn`). The
      result does not depend on it. (The limit of `local_runtime` applies to
      graphs, that is, to blocks.)

  Returns:
    The computation. A block is T with an additional first dimension in all of
    its tensors.

  Raises:
    ValueError: If `parallel_clients` is not an integer above 0.
    NotImplementedError: If it has secure sums.
  """
  if parallel_clients is None:
    parallel_clients = 2 * len(os.sched_getaffinity(0))
  _validate.integer('parallel_clients', parallel_clients)
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
    next_computation, graph_import.compiler_config()
  )
  if form.securely_aggregates_tensors:
    raise NotImplementedError('clients in blocks cannot be summed securely')
  state_type, clients_type = next_computation.type_signature.parameter
  block_type = _block_type(clients_type.member)
  broadcast_type = form.prepare.type_signature.result
  total_type = form.zero.type_signature.result

  @tff.tensorflow.computation(clients_type.member, broadcast_type, total_type)
  def add_client(client, broadcast, total):
    update, *_ = form.work(client, broadcast)
    return form.accumulate(total, update)

  import_add_client = graph_import.Importer(add_client)

  @tff.tensorflow.computation(block_type, broadcast_type)
  def add_block(block, broadcast):
    zero = form.zero()
    columns, shared = _flatten(block), _flatten(broadcast)

    def add(index, *total):
      client = [column[index] for column in columns]
      return [index + 1, *import_add_client(*client, *shared, *total)]

    _, *total = tf.while_loop(
      lambda index, *_: index < tf.shape(columns[0])[0],
      add,
      [tf.constant(0), *_flatten(zero)],
      parallel_iterations=1 if import_add_client.waits else parallel_clients,
    )
    return _pack_as(zero, total)

  @tff.federated_computation(
    state_type, tff.FederatedType(block_type, tff.CLIENTS)
  )
  def next_fn(state, blocks):
    broadcast = tff.federated_broadcast(tff.federated_map(form.prepare, state))
    totals = tff.federated_map(add_block, (blocks, broadcast))
    total = tff.federated_aggregate(
      totals, form.zero(), form.merge, form.merge, form.report
    )
    # The empty parts are for secure sums.
    result = tff.federated_map(
      form.update, tff.federated_zip((state, (total, (), (), ())))
    )
    return tff.learning.templates.LearningProcessOutput(result[0], result[1])

  # The compiler drops the Python containers of the state and the metrics.
  return tff.framework.ConcreteComputation.with_type(
    next_fn,
    tff.FunctionType(
      next_fn.type_signature.parameter, next_computation.type_signature.result
    ),
  )


def read_in_worker(
  process: tff.learning.templates.LearningProcess,
  files: client_files.ClientFiles,
  parallel_clients: int | None = None,
) -> tff.learning.templates.LearningProcess:
  """Converts a process to one whose worker reads clients' data from files.

  Call it, and the process that it returns, within `local_runtime`: the files
  are for the runtime's worker.

  Args:
    process: The result of `build_learning_process`.
    files: The data that clients' indices refer to; close them after use.
    parallel_clients: As for `in_blocks`.

  Returns:
    A process whose `next(state, data)` takes `client_data.client_block`.

  Raises:
    ValueError: If `parallel_clients` is not an integer above 0.
    RuntimeError: If `local_runtime` is not the current runtime.
    TypeError: If the files' features or labels do not have the process's types.
    NotImplementedError: If the process has secure sums.
  """
  # Not within `read`, because tracing has its own context.
  runtime = tff.framework.get_context_stack().current
  if not isinstance(runtime, worker_runtime.LocalContext):
    raise RuntimeError('files of clients can be read only within local_runtime')

  @tff.tensorflow.computation(client_data.request_type())
  def read(request):
    features, labels = files.read(request['client'], runtime.path_in_worker)
    return tf.data.Dataset.from_tensors(
      client_data.element(
        features, labels, request['noise_key'], request['noise_scale']
      )
    )

  by_client = tff.simulation.compose_dataset_computation_with_learning_process(
    read, process
  )
  return tff.learning.templates.LearningProcess(
    process.initialize,
    in_blocks(by_client.next, parallel_clients),
    process.get_model_weights,
    process.set_model_weights,
    get_hparams_fn=process.get_hparams,
    set_hparams_fn=process.set_hparams,
  )
