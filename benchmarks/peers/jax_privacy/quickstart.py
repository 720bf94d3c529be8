"""A private model of the digits, by JAX Privacy."""

import sys

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy.experimental import execution_plan

STEPS, SHARE = 100, 256 / 1437
digits = np.load(sys.argv[1])
x, y = digits['x'], digits['y']
plan = execution_plan.BandMFExecutionPlanConfig.default(
  num_bands=1,
  iterations=STEPS,
  epsilon=3.0,
  delta=1e-4,
  sampling_prob=SHARE,
  normalize_by=SHARE * len(x),
).plan


def loss(params, batch):
  """Computes the cross-entropy of a linear model."""
  outputs = batch[0] @ params['kernel'] + params['bias']
  return optax.softmax_cross_entropy_with_integer_labels(
    outputs, batch[1]
  ).mean()


params = {'kernel': jnp.zeros([64, 10]), 'bias': jnp.zeros(10)}
gradient = jax.jit(plan.clipped_grad(loss))
noise = plan.noise_addition_transform
noise_state = noise.init(params)
for indices in plan.batch_selection_strategy.batch_iterator(len(x)):
  step, noise_state = noise.update(
    gradient(params, (x[indices], y[indices])), noise_state
  )
  params = optax.apply_updates(params, jax.tree.map(lambda g: -2.0 * g, step))
accountant = dp_accounting.pld.PLDAccountant(
  dp_accounting.NeighboringRelation.REPLACE_SPECIAL
)
accountant.compose(plan.dp_event)
print('statement:', accountant.get_epsilon(1e-4))
right = jnp.argmax(
  digits['test_x'] @ params['kernel'] + params['bias'], 1
) == jnp.asarray(digits['test_y'])
print(f'accuracy: {right.mean()}')
