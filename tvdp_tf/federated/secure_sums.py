"""Simulates secure sums in the clear, if there is no protocol for them.

The platform that runs a computation executes TFF's secure aggregation (such as
`tff.aggregators.SecureSumFactory`). TFF's worker has no protocol for it and
refuses. This module replaces secure sums by plain sums of the same quantized
integers, as in TFF's own test backend.
"""

from typing import TypeVar

import tensorflow_federated as tff

_Process = TypeVar(
  '_Process',
  tff.learning.templates.LearningProcess,
  tff.templates.AggregationProcess,
)


def simulated(process: _Process) -> _Process:
  """Returns the process with plain sums instead of secure ones.

  It computes the same numbers but hides nothing from the server. Use it only
  for tests and simulations.

  Args:
    process: A process that sums securely.

  Returns:
    A process of the same types, which any runtime can execute.
  """
  plain = tff.backends.test.replace_secure_intrinsics_with_bodies(process.next)
  # The replacement loses the Python containers.
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
