"""A private model of the digits, by TensorFlow Federated only."""

import sys

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

CLIENTS, ROUNDS, NOISE_MULTIPLIER = 100, 30, 6.7
digits = np.load(sys.argv[1])
clients = [
  tf.data.Dataset.from_tensor_slices(
    (digits['x'][number::CLIENTS], digits['y'][number::CLIENTS])
  )
  .repeat(5)
  .batch(15)
  for number in range(CLIENTS)
]


def keras_model():
  """Builds a linear model."""
  return tf.keras.Sequential(
    [
      tf.keras.Input([64]),
      tf.keras.layers.Dense(10, kernel_initializer='zeros'),
    ]
  )


def tff_model():
  """Builds the same model for TFF."""
  return tff.learning.models.from_keras_model(
    keras_model(),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=clients[0].element_spec,
  )


process = tff.learning.algorithms.build_unweighted_fed_avg(
  tff_model,
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.2),
  model_aggregator=tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=NOISE_MULTIPLIER, clients_per_round=CLIENTS, clip=0.5
  ),
)
state = process.initialize()
for _ in range(ROUNDS):
  state = process.next(state, clients).state
accountant = dp_accounting.pld.PLDAccountant()
accountant.compose(dp_accounting.GaussianDpEvent(NOISE_MULTIPLIER), ROUNDS)
print('statement:', accountant.get_epsilon(1e-4))
model = keras_model()
process.get_model_weights(state).assign_weights_to(model)
right = np.argmax(model(digits['test_x']), 1) == digits['test_y']
print(f'accuracy: {right.mean()}')
