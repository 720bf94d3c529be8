"""Algorithm 1 of the paper in plain NumPy: a second implementation.

Written from the paper, with gradients by hand and its own Philox generator; but
for what is set aside for rounding, it shares no code with the package.
"""

import numpy as np

from tvdp_tf.privacy import sensitivity

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)


def philox4x32(key, counter_high, blocks, counter_low=0):
  """Philox4x32-10 (Salmon et al., 2011): uint64 [2 * blocks]."""
  index = np.arange(blocks, dtype=np.uint64) + np.uint64(counter_low)
  words = [
    index & _LOW,
    index >> np.uint64(32),
    np.full(blocks, counter_high & 0xFFFFFFFF, np.uint64),
    np.full(blocks, counter_high >> 32, np.uint64),
  ]
  keys = [key & 0xFFFFFFFF, key >> 32]
  for _ in range(10):
    first = words[0] * np.uint64(_MULTIPLIERS[0])
    second = words[2] * np.uint64(_MULTIPLIERS[1])
    words = [
      (second >> np.uint64(32)) ^ words[1] ^ np.uint64(keys[0]),
      second & _LOW,
      (first >> np.uint64(32)) ^ words[3] ^ np.uint64(keys[1]),
      first & _LOW,
    ]
    keys = [(k + w) & 0xFFFFFFFF for k, w in zip(keys, _WEYL, strict=True)]
  pairs = [
    words[0] | (words[1] << np.uint64(32)),
    words[2] | (words[3] << np.uint64(32)),
  ]
  return np.stack(pairs, axis=1).ravel()


def standard_normal(noise_key, size, release=0):
  """Box and Muller's transform of the bits of a key, quadrant by quadrant."""
  key, high = (int(word) & (2**64 - 1) for word in noise_key)
  pairs = (size + 1) // 2
  bits = philox4x32(key, high, pairs, release << 40)
  uniform = (bits >> np.uint64(11)).astype(np.float64) / 2**53
  u, v = uniform[:pairs], uniform[pairs:]
  radius = np.sqrt(-2 * np.log(1 - u))
  angle = np.pi / 2 * v
  signs = np.where(bits & np.uint64(1), -1.0, 1.0)
  halves = [radius * np.cos(angle), radius * np.sin(angle)]
  return (signs * np.concatenate(halves))[:size]


def mlp_gradient(weights, features, labels):
  """Gradient of the mean cross-entropy of the linear-hidden MLP."""
  w1, b1, w2, b2 = weights
  hidden = features @ w1 + b1
  logits = hidden @ w2 + b2
  exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
  error = exponentials / exponentials.sum(axis=1, keepdims=True)
  error[np.arange(len(labels)), labels] -= 1
  error /= len(labels)
  back = error @ w2.T
  return [features.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]


def local_model(weights, features, labels, *, local_steps, learning_rate, clip):
  """tau steps of gradient descent, each projected to the ball of radius C."""
  features = features.reshape(len(features), -1).astype(np.float64)
  for _ in range(local_steps):
    gradient = mlp_gradient(weights, features, labels)
    weights = [
      w - learning_rate * g for w, g in zip(weights, gradient, strict=True)
    ]
    norm = np.sqrt(sum((w**2).sum() for w in weights))
    weights = [w / max(1.0, norm / clip) for w in weights]
  return weights


def perturbed(arrays, noise_stddev, noise_key, release=0):
  """Adds noise of one key to arrays, in their order."""
  sizes = [array.size for array in arrays]
  added = noise_stddev * standard_normal(noise_key, sum(sizes), release)
  blocks = np.split(added, np.cumsum(sizes)[:-1])
  return [a + b.reshape(a.shape) for a, b in zip(arrays, blocks, strict=True)]


def private_local_model(
  weights,
  features,
  labels,
  *,
  local_steps,
  learning_rate,
  example_clip,
  noise_stddev,
  noise_key,
):
  """tau steps on noisy means of clipped per-example gradients."""
  features = features.reshape(len(features), -1).astype(np.float64)
  for step in range(local_steps):
    mean = [np.zeros_like(w) for w in weights]
    for i in range(len(labels)):
      gradient = mlp_gradient(weights, features[i : i + 1], labels[i : i + 1])
      norm = np.sqrt(sum((g**2).sum() for g in gradient))
      # Shorter by what is set aside for rounding.
      rounding = sensitivity.relative_rounding(len(labels))
      scale = min(1.0, example_clip / norm) / (1 + rounding) / len(labels)
      mean = [m + scale * g for m, g in zip(mean, gradient, strict=True)]
    noisy = perturbed(mean, noise_stddev, noise_key, step)
    weights = [
      w - learning_rate * g for w, g in zip(weights, noisy, strict=True)
    ]
  return weights


def aggregate(local_models, examples, noise_stddev, noise_keys):
  """The weighted mean of the perturbed local models."""
  total = sum(examples)
  result = [np.zeros_like(part) for part in local_models[0]]
  for model, count, key in zip(local_models, examples, noise_keys, strict=True):
    noisy = perturbed(model, noise_stddev, key)
    result = [
      r + count / total * part for r, part in zip(result, noisy, strict=True)
    ]
  return result
