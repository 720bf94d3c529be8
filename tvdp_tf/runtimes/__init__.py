"""Runtimes that execute TFF computations: in-process, a worker, other hosts."""

from tvdp_tf.runtimes.compiled.devices import (
  DeviceUnavailableError,
  configure,
  device_name,
)
from tvdp_tf.runtimes.compiled.runtime import CompiledContext, compiled_runtime
from tvdp_tf.runtimes.worker.client_blocks import read_in_worker
from tvdp_tf.runtimes.worker.client_files import ClientFiles
from tvdp_tf.runtimes.worker.distributed_runtime import (
  remote_runtime,
  tls_credentials,
)
from tvdp_tf.runtimes.worker.worker_runtime import (
  local_runtime,
  program_context,
)

__all__ = [
  'ClientFiles',
  'CompiledContext',
  'DeviceUnavailableError',
  'compiled_runtime',
  'configure',
  'device_name',
  'local_runtime',
  'program_context',
  'read_in_worker',
  'remote_runtime',
  'tls_credentials',
]
