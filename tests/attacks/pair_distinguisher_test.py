import dataclasses
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.mechanisms import plan_cases
from tvdp_tf import mechanisms, privacy, runtimes
from tvdp_tf.attacks import (
  clipped_mean,
  hostile_pairs,
  lower_bound,
  pair_distinguisher,
)
from tvdp_tf.federated import client_work
from tvdp_tf.mechanisms import distributed
from tvdp_tf.privacy import noise_distance


def _pair(target, examples=5, value=3.0) -> clipped_mean.Pair:
  """One example that pulls the one weight up, or down."""
  features = np.zeros([examples, 1], np.float32)
  features[0] = value
  return clipped_mean.measured(
    target,
    clipped_mean.Pair(
      *('pair', target.weights, features, np.zeros(examples, np.int32), 0),
      feature=-features[0],
      label=np.array(0, np.int32),
    ),
  )


def _gradient(noise_kind=noise_distance.CONTINUOUS):
  return mechanisms.GradientMechanism(
    privacy.GeometricSchedule(1.0, 1, 1.0), 1.0, noise=noise_kind
  )


def _distributed(
  clients, missing, name='distributed'
) -> mechanisms.DistributedMechanism:
  plan = plan_cases.build(
    [5] * clients,
    mechanism=name,
    l2_norm_clip=1.0,
    users=clients,
    users_per_round=clients,
    local_steps=1,
    dropouts=missing // 2,
    colluders=missing - missing // 2,
  )
  return plan.mechanism


class PairDistinguisherTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.model = hostile_pairs.linear_probe()
    self.target = clipped_mean.subject('probe', self.model, 1.0)
    self.enter_context(runtimes.compiled_runtime('cpu'))

  def _shown(
    self, pair=None, mechanism=None, trials=400, **kwargs
  ) -> lower_bound.LowerBound:
    arguments = {
      **{'epsilon': 2.0, 'delta': 1e-3, 'confidence': 0.99, 'seed': 1},
      # On a slow machine, too, as many trials.
      'seconds': 300.0,
    }
    with mock.patch.object(pair_distinguisher, 'trials', lambda *_: trials):
      found = pair_distinguisher.distinguish(
        self.target,
        pair or _pair(self.target),
        mechanism or _gradient(),
        **(arguments | kwargs),
      )
    assert found is not None
    return found

  def test_shows_no_more_than_is_promised(self):
    found = self._shown(epsilon=6.0)
    self.assertBetween(found.epsilon_lower_bound, 0.5, 6)
    self.assertEqual(found.trials, 400)

  def test_refutes_half_the_noise(self):
    found = self._shown(noise_scale=0.25)
    self.assertGreater(found.epsilon_lower_bound, 2)

  def test_refutes_a_clip_that_lets_through_more(self):
    wrong = client_work.clipped_sum(self.model, 4.0)

    def clipped_sum(weights, features, labels, present, clip):
      return wrong(weights, features, labels, present, 4 * clip)

    self.target = clipped_mean.subject(
      'probe', self.model, 1.0, clipped_sum=clipped_sum
    )
    pair = _pair(self.target, value=9.0)
    self.assertGreater(pair.ratio, 3.9)
    with mock.patch.object(client_work, 'clipped_sum', lambda *_: clipped_sum):
      found = self._shown(pair)
    self.assertGreater(found.epsilon_lower_bound, 2)

  @parameterized.parameters(*noise_distance.NOISES)
  def test_as_many_trials_as_there_is_time_for(self, noise_kind):
    found = self._shown(seconds=1e-9, mechanism=_gradient(noise_kind))
    self.assertEqual(found.trials, lower_bound.MINIMUM_TRIALS)

  def test_a_mean_that_is_not_finite(self):
    pair = _pair(self.target)
    target = dataclasses.replace(
      self.target, mean=lambda *_: [np.full([1, 1], np.nan)]
    )
    self.assertIsNone(
      pair_distinguisher.distinguish(
        *(target, pair, _gradient()), epsilon=1.0, delta=1e-3, confidence=0.9
      )
    )

  def _with_users(self, name):
    """A pair of one user's data, where users are protected."""
    if name == 'distributed_users':
      steps = {'local_steps': 3, 'learning_rate': 0.5, 'l2_regularization': 0.0}
      self.target = clipped_mean.update_subject('probe', self.model, 1.0, steps)
      pair = _pair(self.target, examples=1)
      self.assertBetween(pair.ratio, 0.99, 1)
      return {'pair': pair}
    return {}

  @parameterized.parameters('distributed', 'distributed_users')
  def test_a_sum_shows_no_more_than_is_promised(self, name):
    """Of two clients, when one has dropped out and one tells its share."""
    held = self._with_users(name)
    found = self._shown(
      epsilon=4.0,
      mechanism=_distributed(clients=4, missing=2, name=name),
      others=1,
      trials=300,
      **held,
    )
    self.assertBetween(found.epsilon_lower_bound, 0.5, 4)

  @parameterized.parameters(
    distributed.Distributed, distributed.DistributedUsers
  )
  def test_refutes_shares_that_do_not_count(self, kind):
    """Those of clients that drop out, or that the server knows."""
    held = self._with_users(kind.name)
    shares = property(lambda plan: plan.settings.users_per_round)
    with mock.patch.object(kind, '_honest', shares):
      wrong = _distributed(clients=16, missing=15, name=kind.name)
    self.assertEqual(wrong.honest_clients, 16)
    found = self._shown(mechanism=wrong, **held)
    self.assertGreater(found.epsilon_lower_bound, 2)
    right = _distributed(clients=16, missing=15, name=kind.name)
    found = self._shown(mechanism=right, **held)
    self.assertBetween(found.epsilon_lower_bound, 0, 2)

  def test_number_of_trials(self):
    few, some, most = (
      pair_distinguisher.trials(epsilon, 1e-3, 0.95)
      for epsilon in (0.1, 4.0, 20.0)
    )
    self.assertLess(few, some)
    self.assertLess(some, most)
    self.assertGreater(some, lower_bound.trials_to_show(4.0, 1e-3, 0.95))


if __name__ == '__main__':
  absltest.main()
