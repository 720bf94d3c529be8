import dataclasses
import inspect
from typing import Any

import numpy as np
from absl.testing import absltest, parameterized

from reproduction.catalogue import frontier
from tvdp_tf import privacy
from tvdp_tf.learning import datasets
from tvdp_tf.planner import automatic, best_schedule
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train

_GIVEN: dict[str, Any] = {
  'dataset': 'mnist',
  'users': 100,
  'epsilon': 3.0,
  'delta': 1e-5,
}
_NO_CONTRACTION = 1 - 1e-12


def weight_noise(settings):
  """Of all rounds together, by hand: calibrated, divided, added up."""
  facts = datasets.facts(settings.dataset)
  examples = facts.examples // settings.users
  of_all = settings.users * examples
  multiplier = privacy.gaussian_noise_multiplier(
    settings.epsilon, settings.delta
  ) * np.sqrt(settings.rounds)
  clip = settings.example_l2_norm_clip
  if settings.adjacency == 'replace-one':
    clip *= 2
  if settings.mechanism == 'gradient':
    stddev = multiplier * clip / examples / np.sqrt(settings.users)
  else:
    stddev = multiplier * clip / of_all
  response = best_schedule.impulse_response(
    settings.server_optimizer, _NO_CONTRACTION, settings.rounds
  )
  return settings.learning_rate * stddev * np.linalg.norm(response)


class ChoiceTest(parameterized.TestCase):
  @parameterized.product(
    dataset=['mnist', 'cifar10', 'adult', 'digits'],
    mechanism=['gradient', 'distributed'],
    epsilon=[0.3, 3.0, 8.0],
  )
  def test_noise_in_the_weights(self, dataset, mechanism, epsilon):
    given = {
      **_GIVEN,
      'dataset': dataset,
      'mechanism': mechanism,
      'epsilon': epsilon,
    }
    settings = automatic.choose(given).settings
    self.assertEqual({**vars(settings), **given}, vars(settings))
    # Two digits of a rate; shares of noise and of examples are rounded, too.
    self.assertAlmostEqual(weight_noise(settings), 1.5, delta=0.08)
    self.assertBetween(settings.rounds, 50, 100)
    self.assertEqual(
      settings.features, 'unit_norm' if dataset == 'adult' else 'scattering'
    )

  def test_what_is_given_stays(self):
    given = {
      **_GIVEN,
      'rounds': 60,
      'learning_rate': 7.0,
      'features': 'none',
      'server_momentum': 0.0,
    }
    choice = automatic.choose(given)
    self.assertEqual({**vars(choice.settings), **given}, vars(choice.settings))
    self.assertStartsWith(choice.reasons[0], 'mechanism = gradient: ')
    for line in choice.reasons:
      self.assertNotIn(line.partition(' = ')[0], given)

  def test_every_choice_has_a_reason(self):
    choice = automatic.choose(_GIVEN)
    named = {line.partition(' = ')[0] for line in choice.reasons}
    plain = settings_lib.TrainingSettings(mechanism='gradient', **_GIVEN)
    for field in dataclasses.fields(plain):
      chosen = getattr(choice.settings, field.name)
      if chosen != getattr(plain, field.name):
        self.assertIn(field.name, named | {'participation'})

  @parameterized.parameters(
    ({'mechanism': 'paper'}, 'auto must be given with mechanism gradient or'),
    ({'model': 'mlp'}, 'auto must be given with model linear'),
    ({'epsilon': -1.0}, 'epsilon must be'),
    ({'users': 0}, 'users must be'),
    ({'mechanism': 'no'}, 'mechanism must be one of'),
  )
  def test_refuses(self, more, words):
    with self.assertRaisesRegex(ValueError, words):
      automatic.choose({**_GIVEN, **more})

  def test_asks_for_no_data(self):
    """Choosing must not cost privacy: no example is ever loaded."""
    before = dict(datasets.LOADERS)
    self.addCleanup(datasets.LOADERS.update, before)
    source = inspect.getsource(automatic)
    self.assertNotIn('datasets.load', source)
    for name in ('mnist', 'cifar10', 'adult'):
      # Neither is there, and nothing is downloaded.
      automatic.choose({**_GIVEN, 'dataset': name, 'data_dir': '/nowhere'})

  def test_the_frontier_is_automatic(self):
    for (dataset, view), by_epsilon in frontier.CHOSEN.items():
      for epsilon in by_epsilon:
        described = {
          **frontier.BASE,
          **frontier.settings(dataset, view, epsilon),
        }
        chosen = automatic.choose(
          {
            'dataset': dataset,
            'users': 100,
            'epsilon': float(epsilon),
            'delta': 1e-5,
            **frontier.VIEWS[view],
          }
        )
        self.assertEqual(
          vars(settings_lib.TrainingSettings(**described)),
          vars(chosen.settings),
        )

  def test_trains_digits(self):
    """Better than the default training at the same epsilon."""
    given = {'epsilon': 3.0, 'delta': 1e-5, 'seed': 1}
    settings = automatic.choose(given).settings
    folder = self.create_tempdir().full_path
    result = train.train(settings, folder + '/run')
    self.assertGreater(result.accuracy, 0.75)
    self.assertLessEqual(
      result.statement.delivered['server, worst client']['exact'], 3
    )


class ScheduleWarningTest(parameterized.TestCase):
  @parameterized.parameters((0.95, 300), (1.05, 300), (0.5, 30))
  def test_uneven(self, theta, rounds):
    schedule = privacy.GeometricSchedule(theta, rounds, 1.0)
    weights = theta ** -np.arange(rounds)
    ordered = np.sort(weights)[::-1]
    needed = 1 + int(np.sum(np.cumsum(ordered) < 0.9 * weights.sum()))
    self.assertStartsWith(
      schedule.warning(), f'{needed} of {rounds} rounds spend 90% of the budget'
    )

  @parameterized.parameters((0.95, 30), (1.0, 300), (0.9, 40), (0.5, 1))
  def test_even_enough(self, theta, rounds):
    self.assertEmpty(privacy.GeometricSchedule(theta, rounds, 1.0).warning())


if __name__ == '__main__':
  absltest.main()
