"""Chooses the device, and configures TensorFlow before it starts.

On a CPU, clients run in parallel, one thread each. Ops that are themselves
parallel make a round of the paper's MLP 8 % slower, so `configure` restricts
each op to its client's share of the cores.
"""

import os

import tensorflow as tf

from tvdp_tf import errors


class DeviceUnavailableError(errors.UsageError):
  """The requested device is not available on this machine or in TensorFlow."""


def cores() -> int:
  """The number of cores that this process may use."""
  return len(os.sched_getaffinity(0))


def device_name(device: str) -> str:
  """TensorFlow's name for a device.

  Args:
    device: 'cpu', 'gpu', or 'auto' for a GPU if there is one.

  Returns:
    The name.

  Raises:
    DeviceUnavailableError: If a GPU is requested and there is none.
  """
  # Excludes GPUs that this process has hidden.
  has_gpu = bool(tf.config.get_visible_devices('GPU'))
  if device == 'gpu' and not has_gpu:
    raise DeviceUnavailableError(
      "device must be auto or cpu if TensorFlow finds no GPU, got 'gpu'"
    )
  use_gpu = has_gpu and device != 'cpu'
  return '/device:GPU:0' if use_gpu else '/device:CPU:0'


def configure(
  device: str,
  clients_at_once: int,
  deterministic: bool = False,
  waits: bool = True,
) -> None:
  """Configures TensorFlow for the whole process.

  An unused GPU is hidden; otherwise, TensorFlow would take its memory and place
  ops there that have no explicit device. The memory of a used GPU is allocated
  as needed, not all at once. Each op gets the cores that a cohort leaves it.

  Args:
    device: As for `device_name`.
    clients_at_once: The size of a cohort.
    deterministic: Whether a GPU's ops give the same bits in every run, which
      makes them slower. A CPU's ops always do here.
    waits: Whether clients may wait for XLA, which computes in its own threads.
      If so, a cohort has one more thread than there are cores; otherwise, that
      would be one too many.

  Raises:
    DeviceUnavailableError: If a GPU is requested and there is none.
    RuntimeError: If TensorFlow has already run something.
  """
  gpus = tf.config.get_visible_devices('GPU')
  if 'CPU' in device_name(device) and gpus:
    tf.config.set_visible_devices([], 'GPU')
  else:
    for gpu in gpus:
      tf.config.experimental.set_memory_growth(gpu, True)
  tf.config.threading.set_intra_op_parallelism_threads(
    max(1, cores() // clients_at_once)
  )
  tf.config.threading.set_inter_op_parallelism_threads(cores() + waits)
  if deterministic:
    tf.config.experimental.enable_op_determinism()
