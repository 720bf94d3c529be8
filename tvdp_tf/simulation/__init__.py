"""TFF's computations, compiled into this process."""

from tvdp_tf.simulation.runtime import (
  CompiledContext,
  DeviceUnavailableError,
  compiled_runtime,
)

__all__ = ['CompiledContext', 'DeviceUnavailableError', 'compiled_runtime']
