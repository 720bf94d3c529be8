"""Randomly generated images with the statistics of drawings and photographs.

Features are fitted to them instead of to private images; see `features`.
"""

import numpy as np
from scipy import ndimage

# Points along a curve, closer together than pixels.
_POINTS = np.linspace(0, 1, 120)[:, np.newaxis]


def strokes(count: int, height: int, width: int) -> np.ndarray:
  """Draws 1-3 smooth curves, bright on dark, float32 [n, h, w] in [0, 1]."""
  rng = np.random.default_rng(0)
  # Drawn at twice the size, then averaged.
  shape = np.array([2 * height, 2 * width])
  # Relative to an image of 28 x 28 pixels.
  scale = min(height, width) / 28
  images = np.zeros([count, height, width], np.float32)
  for image in images:
    drawn = np.zeros(shape, np.float32)
    for _ in range(rng.integers(1, 4)):
      margin = shape / 7
      ends = rng.uniform(margin, shape - margin, [4, 2])
      t = _POINTS
      curve = (
        (1 - t) ** 3 * ends[0]
        + 3 * (1 - t) ** 2 * t * ends[1]
        + 3 * (1 - t) * t**2 * ends[2]
        + t**3 * ends[3]
      )
      rows, columns = np.clip(curve.round().astype(int), 0, shape - 1).T
      drawn[rows, columns] = 1
    drawn = ndimage.gaussian_filter(drawn, rng.uniform(1.2, 2.2) * scale)
    drawn = drawn.reshape(height, 2, width, 2).mean(axis=(1, 3))
    image[:] = np.clip(2 * drawn / drawn.max(), 0, 1)
  return images


def dead_leaves(
  count: int, height: int, width: int, colors: int, seed: int = 0
) -> np.ndarray:
  """Draws overlapping textured shapes, float32 [n, h, w, c] in [0, 1]."""
  rng = np.random.default_rng(seed)
  rows, columns = np.mgrid[:height, :width].astype(np.float32)
  frequencies = np.hypot(
    np.fft.fftfreq(height)[:, np.newaxis], np.fft.fftfreq(width)
  )
  frequencies[0, 0] = 1 / max(height, width)
  images = np.zeros([count, height, width, colors], np.float32)
  for image in images:
    image[:] = rng.random(colors)
    for _ in range(rng.integers(6, 30)):
      radius = min(height, width) / 2 * rng.uniform(0.05, 1) ** 1.5
      angle, stretch = rng.uniform(0, np.pi), rng.uniform(0.3, 1)
      y = rows - rng.uniform(0, height)
      x = columns - rng.uniform(0, width)
      u = y * np.cos(angle) + x * np.sin(angle)
      v = (x * np.cos(angle) - y * np.sin(angle)) / stretch
      if rng.random() < 0.5:
        covered = u * u + v * v < radius * radius
      else:
        covered = np.maximum(np.abs(u), np.abs(v)) < radius
      color = rng.random() + 0.25 * rng.standard_normal(colors)
      spectrum = np.fft.fft2(rng.standard_normal([height, width]))
      texture = np.fft.ifft2(spectrum / frequencies ** rng.uniform(0.5, 1.5))
      texture = texture.real * rng.uniform(0, 0.15) / texture.real.std()
      leaf = np.clip(color, 0, 1) + texture[covered][:, np.newaxis]
      image[covered] = np.clip(leaf, 0, 1)
    blur = rng.uniform(0, 0.8)
    image[:] = ndimage.gaussian_filter(image, (blur, blur, 0))
  return images
