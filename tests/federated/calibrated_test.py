"""Aggregators of one budget: what they add, clip and promise."""

import contextlib
import math
from typing import Any
from unittest import mock

import dp_accounting
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized
from dp_accounting import rdp

from tests import noise_checks
from tvdp_tf import federated, privacy, runtimes
from tvdp_tf.federated import calibrated, schedule_state
from tvdp_tf.learning import noise

SIZE = 4000
VALUE_TYPE = tff.to_type([(np.float32, [SIZE])])
BUDGET: dict[str, Any] = {
  'epsilon': 2.0,
  'delta': 1e-5,
  'rounds': 3,
  'theta': 0.8,
}
CLIP = 0.7


_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.compiled_runtime('cpu'))


def tearDownModule():
  _resources.close()


def run(factory, values, rounds=3):
  """The results of the rounds, and the states after them."""
  process = factory.create(VALUE_TYPE)
  state = process.initialize()
  results, states = [], []
  for _ in range(rounds):
    output = process.next(state, values)
    state = output.state
    results.append(np.asarray(output.result[0], np.float64))
    states.append(state)
  return results, states


def event_of(state):
  fields = tf.nest.map_structure(
    lambda leaf: leaf.numpy() if hasattr(leaf, 'numpy') else leaf,
    state.dp_event,
  )
  return dp_accounting.DpEvent.from_named_tuple(fields)


def central_noise(**arguments):
  return federated.central_noise(clients_per_round=2.0, **arguments)


class _Changing:
  """A number that is another one when it is read again."""

  def __init__(self, *values):
    self._values = list(values)

  def __float__(self):
    return self._values.pop(0) if len(self._values) > 1 else self._values[0]


class LocalNoiseTest(parameterized.TestCase):
  def test_clip_is_the_one_that_the_noise_is_for(self):
    changing: Any = _Changing(CLIP, 100 * CLIP)
    factory = federated.local_noise(l2_norm_clip=changing, **BUDGET)
    far = [np.full([SIZE], 1e3, np.float32)]
    with mock.patch.object(
      noise, 'perturb', lambda tensors, *args, **kwargs: list(tensors)
    ):
      process = factory.create(VALUE_TYPE)
      found = process.next(process.initialize(), [far])
    length = np.linalg.norm(np.float64(found.result[0]))
    self.assertBetween(length, 0.99 * CLIP, CLIP)

  @parameterized.parameters((0.5, 1000), (0.95, 700), (0.999, 150))
  def test_noise_of_the_graph_keeps_the_budget(self, theta, rounds):
    """In each of many rounds, it is off by its own rounding."""
    budget = {**BUDGET, 'theta': theta, 'rounds': rounds}
    process = federated.local_noise(l2_norm_clip=CLIP, **budget).create(
      VALUE_TYPE
    )
    state = process.initialize()
    variances = []

    @tf.function(autograph=False)
    def following(state):
      return schedule_state.next_round(state)

    for _ in range(rounds):
      variances.append(float(state['variance']))
      state = following(state)
    delta = calibrated._accounted_delta(1e-5, 2.0, rounds)
    delivered = privacy.delivered_epsilon(
      np.sqrt(variances) / (2 * CLIP), delta, 'exact'
    )
    self.assertBetween(delivered, 2.0 * (1 - 1e-8), 2.0)

  def test_noise_is_that_of_the_budget(self):
    factory = federated.local_noise(l2_norm_clip=CLIP, **BUDGET)
    expected = privacy.calibrate(2.0, 1e-5, 0.8, 3, sensitivity=2 * CLIP)
    self.assertBetween(
      privacy.delivered_epsilon(
        expected.noise_multipliers(2 * CLIP), 1e-5, 'exact'
      ),
      1.999,
      2.0,
    )
    results, _ = run(factory, [[np.zeros(SIZE, np.float32)]])
    for m, result in enumerate(results, start=1):
      self.assertTrue(noise_checks.has_stddev(result, expected.stddev(m)))
      self.assertTrue(
        noise_checks.rejects_neighbours(result, expected.stddev(m))
      )

  @parameterized.parameters(1.0, 1e10, np.nan)
  def test_an_update_is_clipped(self, value):
    """To a clip that is seen through its noise, which is tiny here."""
    tiny = privacy.GeometricSchedule(1.0, 1, 1e-4)
    with mock.patch.object(privacy, 'calibrate', return_value=tiny):
      factory = federated.local_noise(
        epsilon=1.0, delta=0.5, rounds=1, l2_norm_clip=CLIP
      )
    update = np.zeros(SIZE, np.float32)
    update[0] = value
    (result,), _ = run(factory, [[update]], rounds=1)
    expected = 0.0 if np.isnan(value) else CLIP
    self.assertAlmostEqual(result[0], expected, delta=1e-2)
    self.assertLess(np.abs(result[1:]).max(), 1e-2)

  def test_no_round_beyond_the_budget(self):
    factory = federated.local_noise(l2_norm_clip=CLIP, **BUDGET)
    with self.assertRaisesRegex(Exception, 'no further'):
      run(factory, [[np.zeros(SIZE, np.float32)]], rounds=4)

  @parameterized.parameters(federated.local_noise, central_noise)
  def test_no_promise_beyond_the_end_of_the_noise(self, build):
    with self.assertRaisesRegex(ValueError, '^epsilon must be lower'):
      build(**{**BUDGET, 'epsilon': 50.0, 'l2_norm_clip': CLIP})

  @parameterized.parameters(
    {'epsilon': 0.0},
    {'delta': 1.0},
    {'rounds': 0},
    {'rounds': 10**9},
    {'l2_norm_clip': -1.0},
  )
  def test_refuses(self, **changes):
    (name,) = changes
    with self.assertRaisesRegex(ValueError, f'^{name} must be'):
      federated.local_noise(**{'l2_norm_clip': CLIP, **BUDGET, **changes})


class CentralNoiseTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.1)
  def test_noise_is_that_of_the_budget(self, sampling_rate):
    factory = federated.central_noise(
      l2_norm_clip=CLIP,
      clients_per_round=2.0,
      sampling_rate=sampling_rate,
      **BUDGET,
    )
    # One update of the clip's length, in the first coordinate.
    update = np.zeros(SIZE, np.float32)
    update[0] = 1e6
    results, states = run(factory, [[update], [np.zeros(SIZE, np.float32)]])
    accountant = rdp.RdpAccountant()
    for result, state in zip(results, states, strict=True):
      event = event_of(state)
      multiplier = float(event.noise_multiplier)
      stddev = multiplier * CLIP / 2
      self.assertTrue(noise_checks.has_stddev(result[1:], stddev))
      self.assertTrue(noise_checks.rejects_neighbours(result[1:], stddev))
      self.assertLess(abs(result[0] - CLIP / 2), 7 * stddev)
      accountant.compose(
        dp_accounting.PoissonSampledDpEvent(sampling_rate, event)
        if sampling_rate < 1
        else event
      )
    delivered = accountant.get_epsilon(1e-5)
    if sampling_rate < 1:
      self.assertBetween(delivered, 1.98, 2.0)
    else:  # Renyi accounting is a bound on the exact epsilon.
      spent = sum(event_of(state).noise_multiplier ** -2.0 for state in states)
      exact = 1 / math.sqrt(spent)
      self.assertBetween(privacy.gaussian_epsilon(exact, 1e-5), 1.999, 2.0)

  @parameterized.parameters(
    {'sampling_rate': 0.0}, {'clients_per_round': 0.0}, {'l2_norm_clip': np.inf}
  )
  def test_refuses(self, **changes):
    (name,) = changes
    with self.assertRaisesRegex(ValueError, f'^{name} must be'):
      federated.central_noise(
        **{'l2_norm_clip': CLIP, 'clients_per_round': 1.0, **BUDGET, **changes}
      )


if __name__ == '__main__':
  absltest.main()
