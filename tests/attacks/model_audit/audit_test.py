"""The whole audit, on digits: sound as it is, and with its faults put back."""

import csv
import dataclasses
import functools
import json
import pathlib
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from matplotlib import image

from tests.attacks import broken
from tvdp_tf import runtimes
from tvdp_tf.attacks import noise_reach, pair_distinguisher
from tvdp_tf.attacks.model_audit import audit as audit_lib
from tvdp_tf.attacks.model_audit import report
from tvdp_tf.attacks.model_audit import settings as audit_settings
from tvdp_tf.federated import bounded_value, client_work
from tvdp_tf.learning import noise
from tvdp_tf.training import settings as settings_lib


def _settings(**kwargs) -> audit_settings.ModelAuditSettings:
  own = {
    name: kwargs.pop(name)
    for name in ('canaries', 'confidence', 'noise_scale', 'search_seconds')
    if name in kwargs
  }
  training: Any = {
    'mechanism': 'gradient',
    'epsilon': 4.0,
    'delta': 1e-5,
    'users': 4,
    'users_per_round': 2,
    'rounds': 2,
    'local_steps': 1,
    'learning_rate': 0.5,
    'device': 'cpu',
    'seed': 1,
  }
  return audit_settings.ModelAuditSettings(
    settings_lib.TrainingSettings(**(training | kwargs)),
    **({'search_seconds': 1e-3} | own),
  )


def _one_run(**kwargs) -> audit_lib.OneRunAudit:
  with runtimes.compiled_runtime('cpu'):
    return audit_lib.PreparedAudit(_settings(**kwargs)).finish()


@functools.cache
def _sound_one_run() -> audit_lib.OneRunAudit:
  return _one_run()


@functools.cache
def _sound_audit() -> audit_lib.ModelAudit:
  with runtimes.compiled_runtime('cpu'):
    return audit_lib.audit(_settings(canaries=40))


def tearDownModule():
  # TensorFlow's functions should not outlive it.
  _sound_audit.cache_clear()
  _sound_one_run.cache_clear()


def _separation(found) -> float:
  """Of the scores, by their mean: mu^2 / 2 in favour of what is true."""
  signed = np.where(found.coins, found.scores, -found.scores)
  return np.sqrt(2 * max(signed.mean(), 0))


class OneRunTest(parameterized.TestCase):
  @parameterized.parameters(
    {'rounds': 4, 'local_steps': 3, 'learning_rate': 0.2, 'theta': 0.9},
    {'dataset': 'generated_adult', 'model': 'svm', 'participation': 'uniform'},
  )
  def test_sees_what_there_is_to_be_seen(self, **kwargs):
    found = _one_run(**kwargs)
    count = len(found.scores)
    self.assertGreaterEqual(count, 100)
    # Of so many scores the mean is known to a few of its standard deviations.
    self.assertAlmostEqual(
      _separation(found), found.planned_mu, delta=4 / np.sqrt(count)
    )
    self.assertGreater(found.planned_mu, 0.7 * found.ideal_mu)
    self.assertFalse(found.refuted)
    self.assertBetween(found.bound.epsilon_lower_bound, 0, 4)
    self.assertAlmostEqual(found.delivered_epsilon, 4, places=6)
    self.assertAlmostEqual(found.true_epsilon, 4, places=6)

  def test_sees_of_a_sum_what_is_left_of_it(self):
    """Without the client that drops out, and the one that tells its share."""
    found = _one_run(
      mechanism='distributed',
      users_per_round=4,
      dropouts=1,
      colluders=1,
      canaries=300,
    )
    self.assertEqual(found.users, 2)
    self.assertAlmostEqual(
      _separation(found), found.planned_mu, delta=4 / np.sqrt(600)
    )
    self.assertFalse(found.refuted)
    self.assertBetween(found.bound.epsilon_lower_bound, 0.5, 4)
    self.assertAlmostEqual(found.delivered_epsilon, 4, places=6)

  @parameterized.parameters(
    {'theta': 0.9}, {'noise_scale': 0.1, 'epsilon': 1.0}
  )
  def test_sees_of_a_sum_of_updates_what_is_left_of_it(self, **kwargs):
    """Every user is a canary, but for those that drop out or tell."""
    found = _one_run(
      mechanism='distributed_users',
      **{'users': 80, 'users_per_round': 80, 'dropouts': 10, 'colluders': 10},
      **{'local_steps': 3, 'learning_rate': 0.3, 'l2_norm_clip': 0.1},
      **kwargs,
    )
    self.assertEqual((found.users, len(found.scores)), (60, 60))
    if 'noise_scale' in kwargs:
      self.assertTrue(found.refuted)
      return
    self.assertAlmostEqual(
      _separation(found), found.planned_mu, delta=4 / np.sqrt(60)
    )
    self.assertGreater(found.planned_mu, 0.7 * found.ideal_mu)
    self.assertFalse(found.refuted)
    self.assertAlmostEqual(found.delivered_epsilon, 4, places=6)

  def test_shows_more_with_less_noise(self):
    found = _one_run(noise_scale=0.3)
    self.assertTrue(found.refuted)
    self.assertBetween(found.bound.epsilon_lower_bound, 4, found.true_epsilon)
    self.assertGreater(found.true_epsilon, 12)
    self.assertAlmostEqual(found.delivered_epsilon, 4, places=6)
    self.assertAlmostEqual(found.ideal_mu, 0.9249 / 0.3, places=2)

  def test_noise_that_is_lost_is_missed(self):
    """The attacker does not know of it: only guesses that are right count."""
    perturb = noise.perturb

    def without(tensors, stddev, *args, **kwargs):
      return perturb(tensors, 1e-3 * stddev, *args, **kwargs)

    with mock.patch.object(noise, 'perturb', without):
      found = _one_run(epsilon=1.0, example_l2_norm_clip=0.1)
    self.assertTrue(found.refuted)
    self.assertGreaterEqual(found.bound.right, found.bound.guesses - 2)

  def test_same_seed_same_result(self):
    first, second = _sound_one_run(), _one_run()
    np.testing.assert_array_equal(first.coins, second.coins)
    np.testing.assert_allclose(first.scores, second.scores, atol=1e-3)

  def test_without_a_seed_coins_are_fresh(self):
    found = [audit_lib.PreparedAudit(_settings(seed=None)) for _ in range(2)]
    coins = [
      np.concatenate([group.coins for group in one._run.groups])
      for one in found
    ]
    self.assertFalse(np.array_equal(*coins))

  def test_number_of_canaries(self):
    self.assertLen(_sound_one_run().scores, 2 * 180 + 2 * 180)
    self.assertLen(_sound_audit().one_run.scores, 4 * 40)
    with self.assertRaisesRegex(
      ValueError, 'canaries must be an integer from 1 to 359, got 360'
    ):
      audit_lib.PreparedAudit(_settings(canaries=360))


class AuditTest(parameterized.TestCase):
  def _audit(self, **kwargs) -> audit_lib.ModelAudit:
    with runtimes.compiled_runtime('cpu'):
      return audit_lib.audit(_settings(**kwargs))

  def test_sound(self):
    found = _sound_audit()
    self.assertFalse(found.refuted)
    self.assertEmpty(found.refutations)
    self.assertBetween(found.search.ratio, 0, 1)
    assert found.pair_bound is not None
    self.assertLessEqual(found.pair_bound.epsilon_lower_bound, 4)
    self.assertStartsWith(report.verdict(found), 'consistent: epsilon >= ')
    text = report.describe(found)
    self.assertLess(max(map(len, text.splitlines())), 81)
    self._check_files(found)

  def _check_files(self, found):
    folder = pathlib.Path(self.create_tempdir().full_path)
    report.write(found, folder)
    written = json.loads((folder / report.JSON).read_text())
    self.assertFalse(written['refuted'])
    bound = written['one_run']['lower_bound']
    self.assertEqual(bound['right'], found.one_run.bound.right)
    self.assertIn('processor', written['host'])
    with open(folder / report.GUESSES, newline='') as file:
      rows = list(csv.DictReader(file))
    (planned,) = [row for row in rows if row['planned'] == '1']
    self.assertEqual(int(planned['guesses']), bound['guesses'])
    self.assertEqual(int(planned['right']), bound['right'])
    self.assertEqual(int(rows[-1]['guesses']), bound['canaries'])
    for row in rows:
      least = row['least_right_that_refutes']
      if least:
        self.assertGreater(int(least), int(row['right']))
    with open(folder / report.SCORES, newline='') as file:
      counted = sum(
        int(row['first_example']) + int(row['second_example'])
        for row in csv.DictReader(file)
      )
    self.assertEqual(counted, bound['canaries'])
    with open(folder / report.PAIRS, newline='') as file:
      ratios = [float(row['ratio']) for row in csv.DictReader(file)]
    self.assertLen(ratios, len(found.search.findings))
    before = image.imread(folder / report.PICTURE)
    (folder / report.PICTURE).unlink()
    report.draw(folder, 'another title', '4')
    self.assertEqual(image.imread(folder / report.PICTURE).shape, before.shape)

  def test_of_users(self):
    arguments = {
      **{'mechanism': 'distributed_users', 'users': 4, 'users_per_round': 4},
      **{'dropouts': 1, 'colluders': 1, 'search_seconds': 2.0},
    }
    found = self._audit(**arguments)
    self.assertFalse(found.refuted)
    self.assertBetween(found.search.ratio, 0.7, 1)
    self.assertIsNone(found.search.gradient_error)
    self.assertEqual({f.examples for f in found.search.findings}, {1})
    assert found.pair_bound is not None
    self.assertBetween(found.pair_bound.epsilon_lower_bound, 0, 4)
    text = report.describe(found)
    self.assertIn('clipped update by', text)
    self.assertIn('2 C_u', text)
    self.assertNotIn('single clipped gradients', text)
    self.assertLess(max(map(len, text.splitlines())), 81)
    self._check_files(found)
    # Clipped to what is not the clip: the search alone is to see it.
    bounded = bounded_value.bounded
    run = mock.Mock()
    run.finish.return_value = found.one_run
    with (
      mock.patch.object(
        bounded_value, 'bounded', lambda value, clip: bounded(value, 1.5 * clip)
      ),
      mock.patch.object(audit_lib, 'PreparedAudit', return_value=run),
      mock.patch.object(pair_distinguisher, 'distinguish', return_value=None),
    ):
      found = self._audit(**arguments)
    self.assertTrue(found.search.refuted)
    self.assertStartsWith(
      report.verdict(found),
      'REFUTED: replacing one user moves the clipped update by 1.',
    )

  def test_a_model_that_mixes_examples(self):
    """Every check of the model switched off: the uploads show it, too."""
    layers = tf.keras.layers
    inputs = tf.keras.Input((8, 8, 1))
    flat = layers.Flatten()(inputs)
    outputs = layers.Dense(10)(flat - tf.reduce_mean(flat, 0))
    path = pathlib.Path(self.create_tempdir().full_path) / 'mixing.keras'
    tf.keras.Model(inputs, outputs).save(path)
    arguments = {
      'model': f'keras:{path}',
      'epsilon': 1.0,
      'canaries': 20,
      'search_seconds': 4.0,
    }
    with self.assertRaisesRegex(ValueError, 'model must treat every example'):
      self._audit(**arguments)

    def unchecked(model, *_):
      return broken.ghost_clipped_sum(model.source, model.keras_loss)

    with mock.patch.object(client_work, 'clipped_sum', unchecked):
      found = self._audit(**arguments)
    self.assertTrue(found.search.refuted)
    self.assertGreater(found.search.ratio, 2)
    assert found.pair_bound is not None
    self.assertGreater(found.pair_bound.epsilon_lower_bound, 1)
    self.assertStartsWith(
      report.verdict(found),
      'REFUTED: replacing one example moves the clipped mean by',
    )
    self.assertLen(found.refutations, 3)  # The gradient is wrong as well.
    self.assertTrue(found.to_json_dict()['refuted'])

  def test_noise_that_ends_early(self):
    with mock.patch.object(noise, 'standard_normal', broken.standard_normal):
      found = audit_lib.PreparedAudit(_settings(epsilon=28.0))
      reach = noise_reach.reach(
        found.noise_multipliers, 1e-5, noise.standard_normal
      )
    self.assertTrue(reach.refuted)
    sound = noise_reach.reach(found.noise_multipliers, 1e-5)
    self.assertFalse(sound.refuted)


class VerdictTest(absltest.TestCase):
  def test_every_refutation_has_a_line(self):
    found = _sound_audit()
    assert found.reach is not None
    reach = dataclasses.replace(found.reach, largest=8.57, delta=1.0)
    one_run = dataclasses.replace(
      found.one_run,
      bound=dataclasses.replace(found.one_run.bound, epsilon_lower_bound=5.5),
    )
    broken_audit = dataclasses.replace(found, reach=reach, one_run=one_run)
    self.assertEqual(
      broken_audit.refutations,
      [
        'epsilon is at least 5.5, not 4, as the guesses of one run show',
        'the noise never exceeds 8.57 standard deviations: a delta of 1 is '
        'spent beyond them, not 1e-05',
      ],
    )
    self.assertTrue(broken_audit.refuted)
    self.assertIn('verdict: REFUTED: ', report.describe(broken_audit))

  def test_says_what_was_not_looked_at_and_what_could_not_be_shown(self):
    found = _sound_audit()
    text = report.verdict(found)
    unable = '; so few guesses and trials could not have refuted the noise'
    self.assertFalse(found.could_refute)
    self.assertEndsWith(text, f'no pair moves the mean too far{unable}')

    def replaced(**changes):
      bound = dataclasses.replace(found.one_run.bound, **changes)
      one_run = dataclasses.replace(found.one_run, bound=bound)
      return dataclasses.replace(found, one_run=one_run)

    self.assertTrue(replaced(canaries=999, guesses=999).could_refute)
    self.assertFalse(replaced(canaries=999, guesses=9).could_refute)
    able = replaced(canaries=999, guesses=999)
    self.assertEqual(report.verdict(able), text.removesuffix(unable))
    assert found.pair_bound is not None
    pairs = dataclasses.replace(found.pair_bound, trials=10_000)
    self.assertTrue(dataclasses.replace(found, pair_bound=pairs).could_refute)
    search = dataclasses.replace(found.search, worst=None)
    blind = dataclasses.replace(found, search=search)
    self.assertIn('promised, and no pair was tried', report.verdict(blind))


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    (
      {'mechanism': 'central'},
      'mechanism must be one of gradient, distributed, distributed_users to',
    ),
    (
      {'mechanism': 'paper'},
      'mechanism must be one of gradient, distributed, distributed_users to',
    ),
    (
      {'mechanism': 'distributed_users', 'canaries': 3},
      'canaries must not be given with mechanism distributed_users',
    ),
    ({'refinement': 'budget'}, 'refinement must be one of none'),
    ({'runtime': 'tff'}, 'runtime must be one of compiled'),
    ({'canaries': 0}, 'canaries must be an integer >= 1, got 0'),
    ({'noise_scale': 0.0}, 'noise_scale must be a finite number > 0'),
    ({'confidence': 1.0}, 'confidence must be a number strictly between'),
    ({'search_seconds': 0.0}, 'search_seconds must be a finite number > 0'),
  )
  def test_bad_settings(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      _settings(**kwargs)


if __name__ == '__main__':
  absltest.main()
