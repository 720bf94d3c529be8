"""TFF's computations, compiled into this process."""

from tvdp_tf.simulation.devices import DeviceUnavailableError, configure
from tvdp_tf.simulation.runtime import CompiledContext, compiled_runtime

__all__ = [
  'CompiledContext',
  'DeviceUnavailableError',
  'compiled_runtime',
  'configure',
]
