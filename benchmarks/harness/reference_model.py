"""The works' models in NumPy, to compute the loss of any program's model."""

import numpy as np

from benchmarks.harness import work as work_lib


def _windows(images: np.ndarray, height: int, width: int) -> np.ndarray:
  """Maps [n, h, w, channels] to [n, h', w', height, width, channels]."""
  windows = np.lib.stride_tricks.sliding_window_view(
    images,
    (height, width),
    (1, 2),  # type: ignore[call-overload]
  )
  return np.moveaxis(windows, 3, -1)


def logits(
  work: work_lib.Work, weights: list[np.ndarray], features: np.ndarray
) -> np.ndarray:
  """Computes the work's model in NumPy, float64 [n, classes]."""
  values = features.astype(np.float64)
  for index, layer in enumerate(work.layers):
    kernel, bias = weights[2 * index : 2 * index + 2]
    if len(layer.kernel) == 4:
      patches = _windows(values, *layer.kernel[:2])
      values = np.maximum(np.tensordot(patches, kernel, 3) + bias, 0)
      n, height, width, channels = values.shape
      blocks = values.reshape(n, height // 2, 2, width // 2, 2, channels)
      values = blocks.max(axis=(2, 4))
    else:
      values = values.reshape(len(values), -1) @ kernel + bias
      if work.model == 'cnn' and index < len(work.layers) - 1:
        values = np.maximum(values, 0)
  return values


def loss(
  work: work_lib.Work,
  weights: list[np.ndarray],
  features: np.ndarray,
  labels: np.ndarray,
) -> float:
  """Computes the mean cross-entropy on one user's examples."""
  values = logits(work, weights, features)
  values -= values.max(axis=1, keepdims=True)
  chosen = values[np.arange(len(labels)), labels]
  return float(np.mean(np.log(np.exp(values).sum(axis=1)) - chosen))
