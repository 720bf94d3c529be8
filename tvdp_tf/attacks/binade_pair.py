"""A pair whose sums sit at a power of two, for a model of one weight.

There the spacing of floating-point numbers doubles, and later addends round one
way in D and another in D' (Casacuberta, Shoemate, Vadhan and Wagaman,
"Widespread Underestimation of Sensitivity in Differentially Private Libraries
and How to Fix It", 2022). The sums are the same code for every model.
"""

import math

import numpy as np
import tensorflow as tf

from tvdp_tf.attacks import clipped_mean
from tvdp_tf.federated import models
from tvdp_tf.learning import clipping
from tvdp_tf.learning import models as models_lib

# A sum of so many clips sits at a power of two.
_BINADE = 2.0**16


def linear_probe() -> models.KerasFunctionalModel:
  """A model whose gradient on an example x, a number of label 0, is x.

  One weight, 0, and the hinge loss.
  """
  keras_model = tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(input_shape=(1,)),
      tf.keras.layers.Dense(1, use_bias=False, kernel_initializer='zeros'),
    ]
  )
  loss = models_lib.MODELS['svm'].loss
  spec = models_lib.ModelSpec('probe', lambda *_: keras_model, loss)
  return models.KerasFunctionalModel(spec, keras_model)


def binade_pair(
  target: clipped_mean.Subject, later: int = 33_024
) -> clipped_mean.Pair:
  """A pair whose sums straddle a power of two, for the `linear_probe`.

  Clipped examples bring the sum to 2^16 C_g; the example that differs puts it
  above or below. Then come `later` examples, each microbatch of which takes
  away a little less than half of what float32 tells apart above 2^16: added up
  in float32 it is nothing above, and more than it should be below.

  Args:
    target: Of a `linear_probe`.
    later: How many such examples, a multiple of 64.

  Returns:
    The pair, measured. In exact arithmetic its ratio is that of one example.
  """
  clip, size = target.example_l2_norm_clip, clipping.MICROBATCH_SIZE
  # Powers of two are those of the sum, whatever the clip.
  power = 2.0 ** round(math.log2(_BINADE * clip))
  one = clipped_mean.mean_of(target, target.weights, _probe_data([2 * clip]))[0]
  before = int(power / one) // size * size + size
  fraction = 0.0
  small = 0.999 * power * 2.0**-24 / size
  for _ in range(4):  # What is added up is rounded: measured, then corrected.
    first = [0.0, fraction, *([2 * clip] * before)]
    first += [0.0] * (-len(first) % size)
    total = clipped_mean.mean_of(target, target.weights, _probe_data(first))[
      0
    ] * len(first)
    fraction = float(np.clip(fraction + power - total, -1e3, 1e3))
    while fraction < -clip:
      before, fraction = before - 1, fraction + one
    while fraction > clip:
      before, fraction = before + 1, fraction - one
  first = [2 * clip, fraction, *([2 * clip] * before)]
  first += [0.0] * (-len(first) % size)
  values = np.array([*first, *([-small] * later)], np.float32)
  features, labels = _probe_data(values)
  return clipped_mean.measured(
    target,
    clipped_mean.Pair(
      *('binade', target.weights, features, labels, 0),
      *(-features[0], labels[0]),
    ),
  )


def _probe_data(values) -> tuple[np.ndarray, np.ndarray]:
  features = np.asarray(values, np.float32)[:, np.newaxis]
  return features, np.zeros(len(features), np.int32)
