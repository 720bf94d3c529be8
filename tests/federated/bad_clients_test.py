"""Every row of docs/BAD_CLIENTS.md, on both runtimes."""

import collections
import contextlib
import itertools
import pathlib
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data, cohort, schedule_state
from tvdp_tf.learning import datasets, local_training, models, noise
from tvdp_tf.privacy import ledger

CLIP = 2.0
STEPS = 2
LEARNING_RATE = 0.3
SIZES = (30, 20, 10)
DENOMINATOR = 3.0
SCALE = 0.01  # Noise scale of the gradient mechanism's clients.
SCHEDULE = privacy.GeometricSchedule(theta=0.8, rounds=3, initial_stddev=0.05)
MECHANISMS: dict[str, mechanisms.GraphMechanism] = {
  'paper': mechanisms.PaperMechanism(SCHEDULE, CLIP),
  'laplace': mechanisms.LaplaceMechanism(0.05, 3, CLIP),
  'gradient': mechanisms.GradientMechanism(SCHEDULE, 1.0),
  'central': mechanisms.CentralMechanism(SCHEDULE, 0.4, DENOMINATOR, seed=6),
  'none': mechanisms.NoMechanism(CLIP),
}
RUNTIMES: dict[str, Callable] = {
  'worker': runtimes.local_runtime,
  'compiled': lambda: runtimes.compiled_runtime('cpu'),
}
BAD_VALUES = {'nan': np.nan, 'inf': np.inf, 'huge': 1e30}


def functional_model():
  spec = models.MODELS['mlp']
  return federated.functional_model(spec, spec.build([8, 8, 1], 10, 1))


def users():
  """Three users; the last is the one that will be bad."""
  digits = datasets.load('digits')
  ends = np.cumsum((0, *SIZES))
  return [
    (digits.train_features[start:end], digits.train_labels[start:end])
    for start, end in itertools.pairwise(ends)
  ]


def key_of(user):
  return noise.seeded_noise_key(9, 1, user)


def sequence(user, features, labels):
  return client_data.client_sequence(features, labels, key_of(user), SCALE)


def flat(weights):
  return np.concatenate([np.ravel(w) for w in weights])


class BadClientsTest(parameterized.TestCase):
  """A round with a bad client against what the others and it should bring."""

  model: tff.learning.models.FunctionalModel
  processes: dict[str, tff.learning.templates.LearningProcess]
  alone: dict[tuple, np.ndarray]

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model = functional_model()
    cls.processes = {
      name: federated.build_learning_process(
        cls.model,
        mechanism,
        local_steps=STEPS,
        learning_rate=LEARNING_RATE,
      )
      for name, mechanism in MECHANISMS.items()
    }
    # The uploads of good users alone, and no user's, by runtime and mechanism.
    cls.alone = {}
    cls.good = [sequence(user, *data) for user, data in enumerate(users()[:2])]
    stack = contextlib.ExitStack()
    cls.addClassCleanup(stack.close)
    cls.contexts = {
      name: stack.enter_context(start()) for name, start in RUNTIMES.items()
    }

  def next(self, runtime, mechanism, data):
    """A first round; returns the flat new model and the output."""
    process = self.processes[mechanism]
    with tff.framework.get_context_stack().install(self.contexts[runtime]):
      output = process.next(process.initialize(), data)
    return flat(output.state.global_model_weights.trainable), output

  def alone_of(self, runtime, mechanism, *users):
    """The new model of good users, known by their numbers."""
    case = (runtime, mechanism, *users)
    if case not in self.alone:
      data = [self.good[user] for user in users]
      self.alone[case] = self.next(runtime, mechanism, data)[0]
    return self.alone[case]

  def bad(self, value):
    features, labels = users()[2]
    return sequence(2, np.full_like(features, value), labels)

  def noised_by_user_2(self, weights, mechanism):
    """What user 2 releases if its training brings `weights`."""
    stddev = SCHEDULE.stddev(1)
    if mechanism != 'gradient':
      distribution = 'laplace' if mechanism == 'laplace' else 'gaussian'
      return noise.perturb(weights, stddev, key_of(2), 0, distribution)
    zeros = [tf.zeros_like(w) for w in weights]
    for step in range(STEPS):
      steps = noise.perturb(zeros, stddev * SCALE, key_of(2), step)
      weights = [
        w - LEARNING_RATE * g for w, g in zip(weights, steps, strict=True)
      ]
    return weights

  def expected(self, runtime, mechanism, third=None):
    """The new model of the good users, and a third's release."""
    uploads = [self.alone_of(runtime, mechanism, user) for user in (0, 1)]
    weights = np.array(SIZES[:2], np.float64)
    if mechanism == 'central':
      # Each of them carries the same noise, seeded by the round.
      start = self.alone_of(runtime, mechanism)
      return start + sum(upload - start for upload in uploads)
    if third is not None:
      uploads.append(flat(third))
      weights = np.array(SIZES, np.float64)
    return np.average(uploads, axis=0, weights=weights)

  def check(self, actual, output, expected, excluded):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
    self.assertEqual(federated.excluded_clients(output.metrics), excluded)
    state = schedule_state.of(output.state)
    if state is not None:
      self.assertEqual(int(state['round']), 1)

  @parameterized.product(
    runtime=tuple(RUNTIMES),
    mechanism=('paper', 'laplace'),
    value=tuple(BAD_VALUES),
  )
  def test_training_that_fails_releases_the_global_model(
    self, runtime, mechanism, value
  ):
    weights = list(self.model.initial_weights[0])
    sent = local_training.project(weights, CLIP)
    self.assertGreater(np.linalg.norm(flat(weights)), CLIP)
    actual, output = self.next(
      runtime, mechanism, [*self.good, self.bad(BAD_VALUES[value])]
    )
    expected = self.expected(
      runtime, mechanism, self.noised_by_user_2(sent, mechanism)
    )
    # As good as any other upload: not told apart, not counted.
    self.check(actual, output, expected, excluded=0)
    self.assertEqual(output.metrics['aggregator']['inner']['used_clients'], 3)

  @parameterized.product(runtime=tuple(RUNTIMES), value=('nan', 'inf'))
  def test_gradient_releases_noise_for_bad_examples(self, runtime, value):
    actual, output = self.next(
      runtime, 'gradient', [*self.good, self.bad(BAD_VALUES[value])]
    )
    third = self.noised_by_user_2(
      list(self.model.initial_weights[0]), 'gradient'
    )
    expected = self.expected(runtime, 'gradient', third)
    self.check(actual, output, expected, excluded=0)

  @parameterized.parameters(*RUNTIMES)
  def test_gradient_bounds_huge_examples(self, runtime):
    actual, _ = self.next(
      runtime, 'gradient', [*self.good, self.bad(BAD_VALUES['huge'])]
    )
    third = self.noised_by_user_2(
      list(self.model.initial_weights[0]), 'gradient'
    )
    without = self.expected(runtime, 'gradient', third)
    moved = np.linalg.norm(actual - without)
    self.assertLessEqual(
      moved, STEPS * LEARNING_RATE * 1.0 * SIZES[2] / sum(SIZES) * 1.001
    )

  @parameterized.product(runtime=tuple(RUNTIMES), value=('nan', 'inf', 'huge'))
  def test_central_leaves_out_and_divides_by_the_same(self, runtime, value):
    actual, output = self.next(
      runtime, 'central', [*self.good, self.bad(BAD_VALUES[value])]
    )
    expected = self.expected(runtime, 'central')
    self.check(actual, output, expected, excluded=None)

  @parameterized.product(runtime=tuple(RUNTIMES), value=('nan', 'inf', 'huge'))
  def test_none_leaves_out(self, runtime, value):
    actual, output = self.next(
      runtime, 'none', [*self.good, self.bad(BAD_VALUES[value])]
    )
    self.check(actual, output, self.expected(runtime, 'none'), excluded=1)

  @parameterized.product(runtime=tuple(RUNTIMES), mechanism=tuple(MECHANISMS))
  def test_empty_data_set(self, runtime, mechanism):
    features, labels = users()[2]
    empty = sequence(2, features[:0], labels[:0])
    actual, output = self.next(runtime, mechanism, [*self.good, empty])
    # A user's update of zero, which central noise covers, is an update.
    excluded = None if mechanism == 'central' else 1
    self.check(actual, output, self.expected(runtime, mechanism), excluded)

  @parameterized.product(runtime=tuple(RUNTIMES), mechanism=tuple(MECHANISMS))
  def test_missing_client(self, runtime, mechanism):
    actual, output = self.next(runtime, mechanism, self.good)
    excluded = None if mechanism == 'central' else 0
    self.check(actual, output, self.expected(runtime, mechanism), excluded)

  @parameterized.product(runtime=tuple(RUNTIMES), mechanism=('none', 'central'))
  def test_a_round_of_bad_clients(self, runtime, mechanism):
    actual, output = self.next(runtime, mechanism, [self.bad(np.nan)])
    excluded = None if mechanism == 'central' else 1
    self.assertEqual(federated.excluded_clients(output.metrics), excluded)
    if mechanism == 'central':  # Noise and nothing else, as for no client.
      expected, _ = self.next(runtime, mechanism, [])
      np.testing.assert_array_equal(actual, expected)
    else:  # There is no mean of nothing, and it shows.
      self.assertTrue(np.isnan(actual).all())


class ScreenedCohortTest(parameterized.TestCase):
  """What the server sees before anything is recorded."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.model = functional_model()

  def drawn(self):
    return {user: sequence(user, *data) for user, data in enumerate(users())}

  def test_all_present(self):
    drawn = self.drawn()
    screened = cohort.screen(self.model, drawn, sizes_are_public=True)
    self.assertEqual(screened.clients, (0, 1, 2))
    self.assertEqual(screened.missing + screened.empty, ())
    for one, other in zip(screened.data, drawn.values(), strict=True):
      self.assertIs(one, other)

  @parameterized.parameters(True, False)
  def test_missing_and_empty(self, sizes_are_public):
    features, labels = users()[1]
    drawn = self.drawn() | {
      1: sequence(1, features[:0], labels[:0]),
      2: None,
    }
    screened = cohort.screen(
      self.model, drawn, sizes_are_public=sizes_are_public
    )
    self.assertEqual(screened.missing, (2,))
    self.assertEqual(screened.empty, (1,) if sizes_are_public else ())
    self.assertEqual(screened.clients, (0,) if sizes_are_public else (0, 1))
    self.assertLen(screened.data, len(screened.clients))

  @parameterized.named_parameters(
    (
      'shape',
      {'x': np.zeros([30, 8, 9, 1], np.float32)},
      r'x of client 0 must be float32 of shape \(None, 8, 8, 1\), got float32 '
      r'of shape \(30, 8, 9, 1\)',
    ),
    (
      'dtype',
      {'x': np.zeros([30, 8, 8, 1])},
      r'x of client 0 must be float32 .*, got float64',
    ),
    (
      'labels',
      {'y': np.zeros([30], np.float32)},
      'y of client 0 must be int32 of shape .*, got float32',
    ),
    (
      'lengths',
      {'y': np.zeros([29], np.int32)},
      'x and y of client 0 must be of one length, got 30 and 29',
    ),
    (
      'key',
      {'noise_key': np.zeros([3], np.int64)},
      'noise_key of client 0 must be int64',
    ),
  )
  def test_what_does_not_fit_is_an_error(self, changes, message):
    drawn = self.drawn()
    element = collections.OrderedDict(drawn[0][0], **changes)
    with self.assertRaisesRegex(ValueError, message):
      cohort.screen(self.model, drawn | {0: [element]}, sizes_are_public=True)

  def test_structure(self):
    drawn = self.drawn()
    for wrong, message in (
      ([], 'data of client 0 must be a sequence of one element, got 0'),
      (drawn[0] * 2, 'a sequence of one element, got 2'),
      ([dict(reversed(drawn[0][0].items()))], 'fields of client 0 must be'),
    ):
      with self.assertRaisesRegex(ValueError, message):
        cohort.screen(self.model, drawn | {0: wrong}, sizes_are_public=True)

  def test_nothing_is_recorded_before_and_everything_after(self):
    path = pathlib.Path(self.create_tempdir().full_path, 'ledger.jsonl')
    header = ledger.LedgerHeader(
      unit='example',
      adjacency='replace-one',
      target_epsilon=50.0,
      delta=1e-3,
      clients=3,
    )
    run = ledger.LedgerRun(
      mechanism='gradient',
      sensitivity='2 C_g / n',
      sensitivity_proven=True,
      target_epsilon=50.0,
      seeded=False,
      noise='continuous',
      settings_digest='a' * 64,
    )
    bad = np.full_like(users()[2][0], np.nan)
    drawn = self.drawn() | {1: None, 2: sequence(2, bad, users()[2][1])}
    with ledger.PrivacyLedger.create(path, header, run) as book:

      def record(drawn):
        screened = cohort.screen(self.model, drawn, sizes_are_public=True)
        book.record(
          1,
          screened.clients,
          [
            ledger.release_id(key_of(client).tobytes(), b'model', b'settings')
            for client in screened.clients
          ],
          noise_multipliers=[5.0] * len(screened.clients),
          releases_per_client=STEPS,
        )

      wrong = sequence(0, bad[:, :7], users()[2][1])
      with self.assertRaisesRegex(ValueError, 'x of client 0 must be'):
        record(drawn | {0: wrong})
      self.assertEqual([book.epsilon(k) for k in range(3)], [0, 0, 0])
      record(drawn)
      spent = [book.epsilon(k) for k in range(3)]
      # The client whose data are bad releases as much as the others.
      self.assertGreater(spent[0], 0)
      self.assertEqual(spent, [spent[0], 0, spent[0]])


if __name__ == '__main__':
  absltest.main()
