"""A private model of the digits, by this library."""

import sys

import numpy as np
import tensorflow as tf

import tvdp_tf

digits = np.load(sys.argv[1])
model = tf.keras.Sequential(
  [tf.keras.layers.Dense(10, activation='softmax', input_shape=[64])]
)
run = tvdp_tf.fit(
  *(model, digits['x'], digits['y']),
  epsilon=3,
  delta=1e-4,
  users=100,
  test=(digits['test_x'], digits['test_y']),
)
print('statement:', run.statement.describe())
print(f'accuracy: {run.accuracy}')
