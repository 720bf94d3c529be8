"""Plain PyTorch: a training loop as anyone would write it.

Forms: `loop`, the clients one after the other, each on all cores; `threads`,
one Python thread per core, each client on one core; `compiled`, threads that
run the local steps through torch.compile; `gpu`, the loop on a GPU, with
products in float32 like all others. Convolutions run in the channels-last
layout.
"""

import concurrent.futures
import ctypes
import os
import tempfile

import numpy as np
import torch

from benchmarks.harness import program as program_lib


def keep_memory():
  """Makes the C library keep freed memory for the large activations.

  Otherwise, page faults take a quarter of a convolutional round.
  """
  m_trim_threshold, m_mmap_threshold = -1, -3
  libc = ctypes.CDLL(None)
  libc.mallopt(m_mmap_threshold, 2**25)  # The largest possible value.
  libc.mallopt(m_trim_threshold, 2**30)


def from_keras(array: np.ndarray) -> torch.Tensor:
  """Converts a kernel to PyTorch's [out, in] or [out, in, height, width]."""
  tensor = torch.from_numpy(array)
  if array.ndim == 4:
    tensor = tensor.permute(3, 2, 0, 1)
    return tensor.contiguous(memory_format=torch.channels_last)
  return tensor.t().contiguous() if array.ndim == 2 else tensor


def to_keras(tensor: torch.Tensor) -> np.ndarray:
  """The inverse of `from_keras`."""
  if tensor.ndim == 4:
    tensor = tensor.permute(2, 3, 1, 0)
  elif tensor.ndim == 2:
    tensor = tensor.t()
  return np.ascontiguousarray(tensor.detach().cpu().numpy())


def images_last(features: np.ndarray) -> torch.Tensor:
  """Converts [n, h, w, channels] to a channels-last [n, channels, h, w]."""
  tensor = torch.from_numpy(features)
  return tensor.permute(0, 3, 1, 2) if features.ndim == 4 else tensor


def forward(weights, values):
  """Computes the work's models: convolutions, pooling, then dense layers."""
  functional = torch.nn.functional
  count = len(weights) // 2
  is_cnn = weights[0].ndim == 4
  for index in range(count):
    kernel, bias = weights[2 * index : 2 * index + 2]
    if kernel.ndim == 4:
      values = torch.relu(functional.conv2d(values, kernel, bias))
      values = functional.max_pool2d(values, 2)
      if weights[2 * index + 2].ndim == 2:
        # Flattened in the order height, width, channel.
        values = values.permute(0, 2, 3, 1).flatten(1)
    else:
      values = functional.linear(values, kernel, bias)
      if is_cnn and index < count - 1:
        values = torch.relu(values)
  return values


def local_training(work):
  """Returns (weights, features, labels) -> the local model, by autograd."""

  def step(weights, features, labels):
    weights = [w.detach().requires_grad_() for w in weights]
    with torch.enable_grad():
      outputs = forward(weights, features)
      loss = torch.nn.functional.cross_entropy(outputs, labels)
    gradients = torch.autograd.grad(loss, weights)
    weights = torch._foreach_sub(weights, gradients, alpha=work.learning_rate)
    norms = torch.stack(torch._foreach_norm(weights))
    clip = work.l2_norm_clip
    scale = clip / torch.clamp(torch.linalg.vector_norm(norms), min=clip)
    return torch._foreach_mul(weights, scale)

  def train(weights, features, labels):
    for _ in range(work.local_steps):
      weights = step(weights, features, labels)
    return weights

  return train


class PyTorch(program_lib.Program):
  """The forms above."""

  def __init__(self, server: program_lib.Server):
    self._work = work = server.work
    cores = len(os.sched_getaffinity(0))
    keep_memory()
    self._device = 'cuda' if server.form == 'gpu' else 'cpu'
    # Not TensorFloat-32, which would be different work.
    torch.backends.cudnn.allow_tf32 = False
    threaded = server.form in ('threads', 'compiled')
    torch.set_num_threads(1 if threaded else cores)
    self._users = [
      (
        images_last(features).to(self._device),
        torch.from_numpy(labels).long().to(self._device),
      )
      for features, labels in zip(server.features, server.labels, strict=True)
    ]
    self._train = local_training(work)
    if server.form == 'compiled':
      self._train = compiled_training(work)
    self._pool = None
    if threaded:
      self._pool = concurrent.futures.ThreadPoolExecutor(cores)

  def reset(self, noise_stddev):
    self._noise_stddev = noise_stddev
    self._weights = [
      from_keras(w).to(self._device) for w in self._work.initial_weights()
    ]

  @torch.no_grad()
  def _client(self, user):
    weights = self._train(self._weights, *self._users[user])
    if self._noise_stddev:
      noise = [torch.randn_like(w) for w in weights]
      torch._foreach_add_(weights, noise, alpha=self._noise_stddev)
    return weights

  @torch.no_grad()
  def round(self, round_number):
    cohort = self._work.cohort(round_number).tolist()
    each = self._pool.map if self._pool else map
    total = [torch.zeros_like(w) for w in self._weights]
    for weights in each(self._client, cohort):
      torch._foreach_add_(total, weights)
    self._weights = list(torch._foreach_div(total, float(len(cohort))))
    if self._device == 'cuda':
      torch.cuda.synchronize()

  def weights(self):
    return list(map(to_keras, self._weights))


def compiled_training(work):
  """Like `local_training`, with forward and gradients by torch.compile."""
  gradients_of = torch.func.grad(
    lambda weights, features, labels: torch.nn.functional.cross_entropy(
      forward(weights, features), labels
    )
  )

  def train(weights, features, labels):
    for _ in range(work.local_steps):
      gradients = gradients_of(weights, features, labels)
      weights = [
        w - work.learning_rate * g
        for w, g in zip(weights, gradients, strict=True)
      ]
      norm = torch.sqrt(sum((w * w).sum() for w in weights))
      scale = work.l2_norm_clip / torch.clamp(norm, min=work.l2_norm_clip)
      weights = [w * scale for w in weights]
    return weights

  return torch.compile(train)


if __name__ == '__main__':
  # An empty cache, because code of earlier runs would not be a cold start.
  with tempfile.TemporaryDirectory() as folder:
    os.environ['TORCHINDUCTOR_CACHE_DIR'] = folder
    server = program_lib.start('loop')
    server.serve(PyTorch(server), torch=torch.__version__)
