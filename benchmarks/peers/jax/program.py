"""JAX: one jitted function a round.

Forms: `scan`, the clients one after the other; `vmap`, all at once; `sharded`,
the clients dealt out to one CPU device a core, and scanned there. Convolutions
are written as products of patches (im2col), where XLA's own are many times
slower on a CPU.
"""

import os

# Read when JAX makes its CPU devices.
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = (
  f'{os.environ.get("XLA_FLAGS", "")} '
  f'--xla_force_host_platform_device_count={len(os.sched_getaffinity(0))}'
)

import math

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.harness import program as program_lib


def convolution(kernel, bias, images):
  """Valid convolution, by one product of patches and kernel."""
  height, width = kernel.shape[:2]
  rows = images.shape[1] - height + 1
  columns = images.shape[2] - width + 1
  patches = jnp.concatenate(
    [
      images[:, i : i + rows, j : j + columns]
      for i in range(height)
      for j in range(width)
    ],
    axis=-1,
  )
  return patches @ kernel.reshape(-1, kernel.shape[-1]) + bias


def max_pool(images):
  """2 x 2, of even heights and widths."""
  n, height, width, channels = images.shape
  blocks = images.reshape(n, height // 2, 2, width // 2, 2, channels)
  return blocks.max(axis=(2, 4))


def forward(weights, values):
  """The work's models: convolutions with pooling, then dense layers."""
  count = len(weights) // 2
  is_cnn = weights[0].ndim == 4
  for index in range(count):
    kernel, bias = weights[2 * index : 2 * index + 2]
    if kernel.ndim == 4:
      values = max_pool(jax.nn.relu(convolution(kernel, bias, values)))
    else:
      values = values.reshape(len(values), -1) @ kernel + bias
      if is_cnn and index < count - 1:
        values = jax.nn.relu(values)
  return values


def mean_loss(weights, features, labels):
  """Cross-entropy."""
  log_probabilities = jax.nn.log_softmax(forward(weights, features))
  chosen = jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)
  return -chosen.mean()


def client_training(work):
  """(weights, features, labels, key, noise_stddev) -> what is uploaded."""

  def step(weights, features, labels):
    gradients = jax.grad(mean_loss)(weights, features, labels)
    weights = [
      w - work.learning_rate * g
      for w, g in zip(weights, gradients, strict=True)
    ]
    norm = jnp.sqrt(sum(jnp.sum(w * w) for w in weights))
    scale = work.l2_norm_clip / jnp.maximum(norm, work.l2_norm_clip)
    return [w * scale for w in weights]

  def train(weights, features, labels, key, noise_stddev):
    weights = jax.lax.fori_loop(
      0,
      work.local_steps,
      lambda _, current: step(current, features, labels),
      weights,
    )
    keys = jax.random.split(key, len(weights))
    return [
      w + noise_stddev * jax.random.normal(k, w.shape)
      for w, k in zip(weights, keys, strict=True)
    ]

  return train


def cohort_sum(train):
  """(weights, cohort, keys, noise) -> the sum of the uploads, by a scan."""

  def total(weights, data, cohort, keys, noise_stddev):
    features, labels = data

    def add(current, client):
      user, key = client
      update = train(weights, features[user], labels[user], key, noise_stddev)
      return jax.tree.map(jnp.add, current, update), None

    zeros = jax.tree.map(jnp.zeros_like, weights)
    return jax.lax.scan(add, zeros, (cohort, keys))[0]

  return total


def round_function(form, work, mesh):
  """(weights, data, cohort, key, noise_stddev) -> the new weights."""
  train = client_training(work)
  total = cohort_sum(train)
  count = work.users_per_round

  def scan(weights, data, cohort, key, noise_stddev):
    keys = jax.random.split(key, count)
    return total(weights, data, cohort, keys, noise_stddev)

  def vmap(weights, data, cohort, key, noise_stddev):
    keys = jax.random.split(key, count)
    each = jax.vmap(train, (None, 0, 0, 0, None))
    features, labels = data
    updates = each(
      weights, features[cohort], labels[cohort], keys, noise_stddev
    )
    return [update.sum(axis=0) for update in updates]

  def sharded(weights, data, cohort, key, noise_stddev):
    def part(weights, data, cohort, keys, noise_stddev):
      own = total(weights, data, cohort, keys, noise_stddev)
      return jax.lax.psum(own, 'core')

    keys = jax.random.split(key, count)
    everywhere, dealt = PartitionSpec(), PartitionSpec('core')
    return jax.shard_map(
      part,
      mesh=mesh,
      in_specs=(everywhere, everywhere, dealt, dealt, everywhere),
      out_specs=everywhere,
      check_vma=False,
    )(weights, data, cohort, keys, noise_stddev)

  forms = {'scan': scan, 'vmap': vmap, 'sharded': sharded}

  @jax.jit
  def run(weights, data, cohort, key, noise_stddev):
    uploads = forms[form](weights, data, cohort, key, noise_stddev)
    return [upload / count for upload in uploads]

  return run


class Jax(program_lib.Program):
  """The forms above."""

  def __init__(self, server: program_lib.Server):
    self._work = work = server.work
    auto = jax.sharding.AxisType.Auto
    # Every device takes the same number of clients.
    count = math.gcd(len(jax.devices()), work.users_per_round)
    mesh = jax.make_mesh(
      (count,),
      ('core',),
      axis_types=(auto,),
      devices=jax.devices()[:count],
    )
    self._where = jax.devices()[0]
    if server.form == 'sharded':
      self._where = NamedSharding(mesh, PartitionSpec())
    self._data = jax.device_put((server.features, server.labels), self._where)
    self._round = round_function(server.form, work, mesh)

  def reset(self, noise_stddev):
    self._noise_stddev = np.float32(noise_stddev)
    weights = self._work.initial_weights()
    self._weights = jax.device_put(weights, self._where)

  def round(self, round_number):
    self._weights = jax.block_until_ready(
      self._round(
        self._weights,
        self._data,
        self._work.cohort(round_number),
        jax.random.key(round_number),
        self._noise_stddev,
      )
    )

  def weights(self):
    return [np.array(w) for w in self._weights]


if __name__ == '__main__':
  server = program_lib.start('sharded')
  server.serve(Jax(server), jax=jax.__version__)
