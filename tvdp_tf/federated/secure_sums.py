"""Simulates secure sums in the clear, where there is no protocol for them.

TFF's secure aggregation (such as `tff.aggregators.SecureSumFactory`) is
executed by the platform that runs a computation. TFF's worker has no protocol
for it and refuses. Here secure sums are replaced by plain sums of the same
quantized integers, as in TFF's own test backend.
"""

from typing import TypeVar

import tensorflow_federated as tff

_Process = TypeVar(
  '_Process',
  tff.learning.templates.LearningProcess,
  tff.templates.AggregationProcess,
)


def simulated(process: _Process) -> _Process:
  """The process with plain sums in the place of secure ones.

  It computes the same numbers and keeps nothing from the server: for tests and
  simulations.

  Args:
    process: A process that sums securely.

  Returns:
    One of the same types that any runtime executes.
  """
  plain = tff.backends.test.replace_secure_intrinsics_with_bodies(process.next)
  # The replacement forgets the containers of Python.
  next_fn = tff.framework.ConcreteComputation.with_type(
    plain, process.next.type_signature
  )
  if isinstance(process, tff.templates.AggregationProcess):
    return tff.templates.AggregationProcess(process.initialize, next_fn)
  return tff.learning.templates.LearningProcess(
    process.initialize,
    next_fn,
    process.get_model_weights,
    process.set_model_weights,
    get_hparams_fn=process.get_hparams,
    set_hparams_fn=process.set_hparams,
  )
