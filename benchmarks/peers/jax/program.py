"""JAX: one jitted function per round.

Forms: `scan`, the clients one after the other; `vmap`, all at once; `sharded`,
the clients distributed to one CPU device per core, and scanned there; for
private works, `ghost` and `examples` as in `clipping`, distributed in the same
way. Convolutions are written as products of patches (im2col), because XLA's own
are many times slower on a CPU.

With the prefix `gpu-`, a form runs on a GPU, with products in float32 like all
others.
"""

import os
import sys

# JAX reads it when it creates its devices.
os.environ['JAX_PLATFORMS'] = (
  'cuda' if any(word.startswith('--form=gpu-') for word in sys.argv) else 'cpu'
)
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
from benchmarks.harness import work as work_lib
from benchmarks.peers.jax import clipping

_GPU = 'gpu-'
_ON_GPU = os.environ['JAX_PLATFORMS'] == 'cuda'


def patches(kernel, images):
  """Returns a valid convolution's patches, [n, rows, columns, h * w * in]."""
  height, width = kernel.shape[:2]
  rows = images.shape[1] - height + 1
  columns = images.shape[2] - width + 1
  return jnp.concatenate(
    [
      images[:, i : i + rows, j : j + columns]
      for i in range(height)
      for j in range(width)
    ],
    axis=-1,
  )


def max_pool(images):
  """Pools 2 x 2 windows, for even heights and widths."""
  n, height, width, channels = images.shape
  blocks = images.reshape(n, height // 2, 2, width // 2, 2, channels)
  return blocks.max(axis=(2, 4))


def network(weights, values, taps):
  """Computes the work's models: convolutions with pooling, then dense layers.

  A layer is the product of its input (patches, for a convolution) and its
  flattened kernel; a tap is added to it.

  Returns:
    The logits, and the inputs of all layers.
  """
  count = len(weights) // 2
  is_cnn = weights[0].ndim == 4
  inputs = []
  for index in range(count):
    kernel, bias = weights[2 * index : 2 * index + 2]
    is_convolution = kernel.ndim == 4
    if is_convolution:
      values = patches(kernel, values)
    else:
      values = values.reshape(len(values), -1)
    inputs.append(values)
    values = values @ kernel.reshape(-1, bias.size) + bias + taps[index]
    if is_cnn and index < count - 1:
      values = jax.nn.relu(values)
    if is_convolution:
      values = max_pool(values)
  return values, inputs


def loss_sum(outputs, labels):
  """Computes the cross-entropy, summed over examples."""
  log_probabilities = jax.nn.log_softmax(outputs)
  return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).sum()


def mean_loss(weights, features, labels):
  """Computes the mean cross-entropy."""
  outputs, _ = network(weights, features, [0.0] * (len(weights) // 2))
  return loss_sum(outputs, labels) / len(labels)


def noised(values, key, noise_stddev):
  """Adds Gaussian noise to values."""
  keys = jax.random.split(key, len(values))
  return [
    v + noise_stddev * jax.random.normal(k, v.shape)
    for v, k in zip(values, keys, strict=True)
  ]


def descended(work, weights, gradients):
  """Takes one gradient step."""
  return [
    w - work.learning_rate * g for w, g in zip(weights, gradients, strict=True)
  ]


def private_training(work, form):
  """Like `client_training`, for a private work."""
  mean = {
    'ghost': clipping.ghost(network, loss_sum),
    'examples': clipping.examples(mean_loss),
  }[form]

  def train(weights, features, labels, key, noise_stddev):
    squares = clipping.input_squares(features)
    keys = jax.random.split(key, work.local_steps)

    def step(index, current):
      gradients = mean(
        current, features, labels, squares, work.example_l2_norm_clip
      )
      return descended(
        work, current, noised(gradients, keys[index], noise_stddev)
      )

    return jax.lax.fori_loop(0, work.local_steps, step, weights)

  return train


def client_training(work):
  """Returns (weights, features, labels, key, noise_stddev) -> the upload."""

  def step(weights, features, labels):
    gradients = jax.grad(mean_loss)(weights, features, labels)
    weights = descended(work, weights, gradients)
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
    return noised(weights, key, noise_stddev)

  return train


def cohort_sum(train):
  """Returns (weights, cohort, keys, noise) -> the sum of uploads, by a scan."""

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
  """Returns (weights, data, cohort, key, noise_stddev) -> the new weights."""
  if work.kind == work_lib.PRIVATE:
    train = private_training(work, form)
  else:
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

  forms = {'scan': scan, 'vmap': vmap}

  @jax.jit
  def run(weights, data, cohort, key, noise_stddev):
    uploads = forms.get(form, sharded)(weights, data, cohort, key, noise_stddev)
    return [upload / count for upload in uploads]

  return run


class Jax(program_lib.Program):
  """The forms above."""

  def __init__(self, server: program_lib.Server):
    self._work = work = server.work
    if _ON_GPU:
      # Not TensorFloat-32, which would be different work.
      jax.config.update('jax_default_matmul_precision', 'highest')
    form = server.form.removeprefix(_GPU)
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
    if form not in ('scan', 'vmap'):
      self._where = NamedSharding(mesh, PartitionSpec())
    self._data = jax.device_put((server.features, server.labels), self._where)
    self._round = round_function(form, work, mesh)

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
