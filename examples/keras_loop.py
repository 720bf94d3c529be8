"""A custom Keras loop with per-example clipping and noise.

Every step uses all examples, so the budget counts one client, which stands for
any example. Run it by
  TF_CPP_MIN_LOG_LEVEL=3 python examples/keras_loop.py
"""

import itertools
import tempfile

import tensorflow as tf
from sklearn import datasets

import tvdp_tf

CLIP, Z = 0.3, 16.0
x, y = datasets.load_digits(return_X_y=True)
x, y = tf.constant(x / 16, tf.float32), tf.constant(y, tf.int32)
model = tf.keras.Sequential([tf.keras.layers.Dense(10, input_shape=[64])])
optimizer = tf.keras.optimizers.SGD(4.0, momentum=0.9)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def clipped_gradient(example):
  """The gradient of one example, at most CLIP long."""
  with tf.GradientTape() as tape:
    loss = loss_fn(example[1][None], model(example[0][None]))
  gradients = tape.gradient(loss, model.trainable_weights)
  return tf.clip_by_global_norm(gradients, CLIP)[0]


@tf.function
def step():
  """One step on the sum of clipped gradients with noise."""
  sums = [
    tf.reduce_sum(g, 0) for g in tf.vectorized_map(clipped_gradient, (x, y))
  ]
  noisy = [s + tf.random.normal(s.shape, 0, Z * CLIP) for s in sums]
  optimizer.apply_gradients(
    zip([n / len(y) for n in noisy], model.trainable_weights, strict=True)
  )


with tvdp_tf.Budget(
  f'{tempfile.mkdtemp()}/ledger.jsonl',
  epsilon=3,
  delta=1e-5,
  clients=1,
  unit='example',
  sensitivity=f'clip = {CLIP}',
  adjacency='add-or-remove-one',
) as budget:
  try:
    for m in itertools.count(1):
      budget.spend(m, [0], Z)  # On the disk; only then:
      step()
      print(m, budget.metrics())
  except tvdp_tf.privacy.BudgetExceededError as error:
    print(f'end of budget: {error}')
right = tf.cast(tf.argmax(model(x), 1, tf.int32) == y, tf.float32)
print(f'right on the training data: {tf.reduce_mean(right):.2f}')
