import collections
import math

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf import privacy
from tvdp_tf.federated import schedule_state


def variances(schedule: privacy.NoiseSchedule) -> np.ndarray:
  """The variances that the state has before each round."""

  @tf.function(autograph=False)
  def of_all():
    def body(m, found, state):
      stddev = schedule_state.round_stddev(state)
      return m + 1, found.write(m, stddev), schedule_state.next_round(state)

    found = tf.TensorArray(tf.float64, schedule.rounds, element_shape=[])
    state = schedule_state.initial(schedule)
    _, found, _ = tf.while_loop(
      lambda m, *_: m < schedule.rounds, body, (tf.constant(0), found, state)
    )
    return found.stack()

  return of_all().numpy() ** 2


class ScheduleStateTest(parameterized.TestCase):
  @parameterized.parameters(
    privacy.GeometricSchedule(0.95, 30, 2.0),
    # theta^(M-1) is not a normal number: it is flushed to zero, or overflows.
    privacy.GeometricSchedule(0.5, 1030, 1e154),
    privacy.GeometricSchedule(0.9, 6750, 1e153),
    privacy.GeometricSchedule(2.0, 1030, 1e-153),
    privacy.GeometricSchedule(1e-300, 3, 1e154),
    privacy.GeometricSchedule(1e300, 3, 1e-153),
    privacy.ListedSchedule((2.0, 1e-150, 3.0)),
  )
  def test_every_round_has_the_noise_of_the_schedule(self, schedule):
    np.testing.assert_allclose(
      variances(schedule), schedule.stddevs() ** 2, rtol=1e-11
    )

  @parameterized.parameters(
    privacy.ListedSchedule((1.0, 1e-40, 1.0)),
    privacy.GeometricSchedule(1e-30, 6, 1e40),
  )
  def test_noise_that_float32_rounds_to_zero_is_refused(self, schedule):
    with self.assertRaisesRegex(ValueError, 'at least 1e-30, got'):
      schedule_state.check(schedule)
    schedule_state.check(privacy.ListedSchedule((1.0, 1e-29)))

  def test_the_usual_rounds_have_the_product_itself(self):
    # Seeded runs of earlier versions resume with the same bits.
    state = collections.OrderedDict(
      schedule_state.initial(privacy.GeometricSchedule(0.9, 200, 3.0))
    )
    for m in range(1, 200):
      state = schedule_state.next_round(state)
      power = tf.pow(tf.constant(0.9, tf.float64), tf.constant(m, tf.float64))
      self.assertEqual(state['variance'].numpy(), 9.0 * power.numpy())

  @parameterized.parameters(0.0, -1.0, 1e-310, math.inf, math.nan)
  def test_variance_that_is_no_noise_is_an_error(self, variance):
    state = collections.OrderedDict(
      schedule_state.initial(privacy.GeometricSchedule(0.9, 5, 1.0)),
      variance=tf.constant(variance, tf.float64),
    )
    with self.assertRaisesRegex(
      tf.errors.InvalidArgumentError, 'is not a normal number'
    ):
      tf.function(schedule_state.round_stddev, autograph=False)(state)

  @parameterized.parameters(
    ([('variance', math.nan)], 'is not a normal number'),
    ([('round', 5)], 'has no further round'),
  )
  def test_a_graph_with_nothing_but_the_result_checks_it(self, values, message):
    schedule = privacy.GeometricSchedule(0.9, 5, 1.0)
    # TFF prunes graphs in this way.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      initial = schedule_state.initial(schedule)
      state = collections.OrderedDict(
        (name, tf.compat.v1.placeholder_with_default(value, []))
        for name, value in initial.items()
      )
      stddev = schedule_state.round_stddev(state)
      self.assertEqual(session.run(stddev), 1.0)
      with self.assertRaisesRegex(tf.errors.InvalidArgumentError, message):
        session.run(stddev, {state[name]: value for name, value in values})

  def test_no_round_is_left(self):
    state = schedule_state.initial(privacy.GeometricSchedule(0.9, 1, 1.0))
    with self.assertRaisesRegex(
      tf.errors.InvalidArgumentError, 'has no further round'
    ):
      schedule_state.round_stddev(schedule_state.next_round(state))


if __name__ == '__main__':
  absltest.main()
