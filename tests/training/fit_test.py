"""A model and data of one's own, in a cell of a notebook or out of it."""

import asyncio
import contextlib
import dataclasses
import fractions
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import _validate, errors, privacy
from tvdp_tf.training import fit, recorder, run_folder, shared_ledger
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

_RNG = np.random.default_rng(0)
_LAYERS = tf.keras.layers
_CENTERS = _RNG.normal(0, 1, [3, 4]).astype(np.float32)


def _examples(count: int) -> tuple[np.ndarray, np.ndarray]:
  labels = np.arange(count) % 3
  noise = _RNG.normal(0, 0.3, [count, 4]).astype(np.float32)
  return _CENTERS[labels] + noise, labels


X, Y = _examples(600)
TEST = _examples(90)


def model(activation: str | None = 'softmax') -> tf.keras.Model:
  return tf.keras.Sequential([_LAYERS.Dense(3, activation=activation)])


class FitTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path, 'run')

  def fit(self, *args, exports=False, **kwargs):
    kwargs = {'test': TEST, 'rounds': 2, 'progress': False, **kwargs}
    with (
      contextlib.nullcontext() if exports else resume_cases.without_exports()
    ):
      return fit.fit(*args, output_dir=self.folder, **kwargs)


class FitTest(FitTestCase):
  def test_defaults_hold_and_the_model_is_of_use(self):
    given = model()
    given(X[:1])  # Builds it.
    before = given.get_weights()
    found = self.fit(given, X, Y, exports=True, users=20, rounds=50)
    self.assertTrue(found.statement.holds)
    self.assertLessEqual(found.statement.epsilon, 3.0)
    self.assertEqual(found.statement.delta, 1e-5)
    self.assertGreater(found.accuracy, 0.85)
    outputs = found.model.predict(TEST[0], verbose=0)
    np.testing.assert_allclose(outputs.sum(axis=1), 1, atol=1e-5)
    right = (outputs.argmax(axis=1) == TEST[1]).mean()
    self.assertAlmostEqual(right, found.accuracy, places=6)
    for one, other in zip(before, given.get_weights(), strict=True):
      np.testing.assert_array_equal(one, other)
    self.assertLen(found.metrics['test_loss'], 50)
    shown = found._repr_html_()
    self.assertIn('HOLDS', shown)
    self.assertIn('SIMULATED', shown)
    self.assertIn('data:image/png;base64,', shown)
    self.assertIn('epsilon = 3 at delta = 1e-05 HOLDS', str(found))
    self.assertNotIn('most frequent class', str(found))
    share = max(np.mean(TEST[1] == label) for label in range(10))
    self.assertEqual(found.majority, share)
    self.assertNotIn('weights', repr(found))
    useless = dataclasses.replace(found, accuracy=share)
    self.assertIn('most frequent class (0.3333)', str(useless))

  def test_is_train_to_the_last_bit(self):
    """The same data by name, the same model from a file: the same run."""
    dataset = training.federation.datasets.load('digits')
    mine = training.federation.models.build_linear((8, 8, 1), 10, 0)
    settings = {
      'seed': 3,
      'users': 5,
      'mechanism': 'gradient',
      'rounds': 3,
      'learning_rate': 0.2,
    }
    by_name = training.train(
      settings_lib.TrainingSettings(
        **{**fit._DEFAULTS, **settings}, model='linear', users_per_round=5
      ),
      self.folder.parent / 'named',
    )
    by_hand = self.fit(
      mine,
      dataset.train_features,
      dataset.train_labels,
      test=(dataset.test_features, dataset.test_labels),
      **settings,
    )
    self.assertEqual(by_hand.loss, by_name.loss)
    np.testing.assert_array_equal(
      by_hand.model.get_weights()[0], by_name.weights[0]
    )

  @parameterized.parameters(('int32', 7), ('float32', None))
  def test_text(self, dtype, length):
    tokens, public = np.random.default_rng(0).integers(0, 50, [2, 60, 7])
    text = tf.keras.Sequential(
      [
        tf.keras.Input([length], dtype=dtype),
        _LAYERS.Embedding(50, 4),
        _LAYERS.GlobalAveragePooling1D(),
        _LAYERS.Dense(3),
      ]
    )
    run = self.fit(text, tokens, Y[:60], test=(public, Y[:60]), users=4)
    self.assertTrue(run.statement.holds)

  def test_a_folder_is_a_path(self):
    with self.assertRaisesRegex(
      errors.UsageError, '^output_dir must be a path, got 5$'
    ):
      fit.fit(model(), X, Y, users=4, test=TEST, output_dir=5)  # type: ignore[arg-type]
    home = pathlib.Path.home()
    self.assertEqual(_validate.path('output_dir', '~/runs'), home / 'runs')
    self.assertEqual(_validate.path('output_dir', 'a/~'), pathlib.Path('a/~'))

  def test_a_fork_of_a_process_that_has_trained_is_refused(self):
    training.check_process()
    training.check_process()
    if not (child := os.fork()):
      refused = 1
      try:
        fit.fit(mock.Mock(), X, Y, users=4, test=TEST)
      except errors.UsageError as error:
        refused = int('not forked from one' not in str(error))
      finally:
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    self.assertEqual(os.waitstatus_to_exitcode(status), 0)

  def test_bytes_are_the_models_to_scale(self):
    images, public = np.random.default_rng(0).integers(0, 256, [2, 60, 4])
    weights = []
    for dtype in ('uint8', 'int32'):
      layers = [
        _LAYERS.Rescaling(1 / 255),
        _LAYERS.Dense(3, None, True, 'zeros'),
      ]
      scaled = tf.keras.Sequential([tf.keras.Input([4], dtype=dtype), *layers])
      run = self.fit(
        scaled,
        images.astype('uint8'),
        Y[:60],
        test=(public, Y[:60]),
        users=4,
        seed=3,
      )
      weights.append(run.model.get_weights())
      shutil.rmtree(self.folder)
    for one, other in zip(*weights, strict=True):
      np.testing.assert_array_equal(one, other)

  def test_numbers_of_numpy_and_lists(self):
    run = self.fit(
      model(),
      X[:60].tolist(),
      Y[:60].tolist(),
      users=np.int64(3),
      epsilon=np.float32(8),
      rounds=np.array(2),
    )
    self.assertEqual(run.statement.target_epsilon, 8.0)
    lines = (self.folder / 'metrics.csv').read_text().splitlines()
    self.assertLen(lines, 1 + 2)

  def test_features_of_a_model_that_does_not_know_its_input(self):
    def halved(example):
      return example[:2]

    run = self.fit(model(), X, Y, users=3, features=halved)
    self.assertEqual(run.model.input_shape, (None, 2))

  def test_features_that_fail(self):
    def failing(example):
      return example.no_such

    with self.assertRaisesRegex(
      errors.UsageError, r'^features must accept any .* got AttributeError: '
    ):
      self.fit(model(), X, Y, users=3, features=failing)

  def test_users_with_their_own_examples(self):
    parts = [(X[:9], Y[:9]), (X[9:100], Y[9:100]), (X[100:], Y[100:])]
    found = self.fit(
      model, [tf.data.Dataset.from_tensor_slices(p).batch(8) for p in parts]
    )
    self.assertTrue(found.statement.holds)
    config = run_folder.read_config(self.folder)
    self.assertEqual(config['resolved']['examples_per_user'], [9, 91, 500])
    self.assertEqual(config['settings']['split'], 'own')

  def test_a_column_of_ids(self):
    ids = [f'user {i % 7}' if i else 'user 9' for i in range(600)]
    found = self.fit(model, X, Y, users=ids)
    self.assertTrue(found.statement.holds)
    config = run_folder.read_config(self.folder)
    sizes = [ids.count(user) for user in sorted(set(ids))]
    self.assertEqual(config['resolved']['examples_per_user'], sizes)
    self.assertEqual(config['settings']['users'], 8)

  def test_one_output_and_a_function_that_builds(self):
    def build():
      inputs = tf.keras.Input([4])
      return tf.keras.Model(inputs, _LAYERS.Dense(1, 'sigmoid')(inputs))

    found = self.fit(
      build, X, Y == 0, users=4, test=(TEST[0], TEST[1] == 0), rounds=40
    )
    right = (found.model(TEST[0]).numpy()[:, 0] > 0.5) == (TEST[1] == 0)
    self.assertGreater(found.accuracy, 0.8)
    self.assertAlmostEqual(right.mean(), found.accuracy, places=6)

  def test_interrupted_and_resumed(self):
    self.enter_context(resume_cases.compiling_once())
    arguments = {'users': 4, 'seed': 1, 'mechanism': 'gradient', 'rounds': 4}
    given = model()
    given(X[:1])
    whole = self.fit(given, X, Y, **arguments)
    self.folder = self.folder.parent / 'resumed'
    record = recorder.Recorder.record

    def failing(self, state, round_number, *ready):
      if round_number == 3:
        raise KeyboardInterrupt
      return record(self, state, round_number, *ready)

    with (
      mock.patch.object(recorder.Recorder, 'record', failing),
      self.assertRaisesRegex(
        KeyboardInterrupt, f"output_dir='{self.folder}', resume=True$"
      ),
    ):
      self.fit(given, X, Y, **arguments)
    other = tf.keras.Sequential([_LAYERS.Dense(5), _LAYERS.Dense(3)])
    with self.assertRaisesRegex(errors.UsageError, '^resume must find the mod'):
      self.fit(other, X, Y, resume=True, **arguments)
    for _ in range(2):  # The second time, it is finished.
      found = self.fit(given, X, Y, resume=True, **arguments)
      self.assertEqual(found.loss, whole.loss)
      for one, other in zip(
        found.model.get_weights(), whole.model.get_weights(), strict=True
      ):
        np.testing.assert_array_equal(one, other)

  def test_what_cannot_hold_is_said_before_training(self):
    with self.assertLogs(level='WARNING') as logs:
      found = self.fit(model(), X, Y, users=4, epsilon=100.0, rounds=1)
    self.assertRegex(
      logs.output[0], 'will not hold, use a smaller epsilon: .* is cut off too'
    )
    self.assertIn('DOES NOT HOLD', str(found))

  def test_interrupted_before_any_release(self):
    with (
      mock.patch.object(
        recorder.Recorder, 'record', side_effect=KeyboardInterrupt
      ),
      self.assertRaisesRegex(KeyboardInterrupt, 'nothing was written$'),
    ):
      self.fit(model(), X, Y, users=4)
    self.assertFalse(self.folder.exists())

  @parameterized.named_parameters(
    ('users', {}, r'^users must be given'),
    ('many_users', {'users': 601}, r'^users must be at most .* 600, got 601$'),
    (
      'setting',
      {'users': 3, 'split': 'iid'},
      r'^split is not a setting of fit',
    ),
    ('rounds', {'users': 3, 'rounds': 10**9}, r'^rounds must be an integer fr'),
    ('typo', {'users': 3, 'epsilno': 1}, r'^epsilno is not a setting of fit'),
    ('epsilon', {'users': 3, 'epsilon': -1}, r'^epsilon must be .*, got -1$'),
    (
      'fraction',
      {'users': 3, 'epsilon': fractions.Fraction(3, 2)},
      r'^epsilon must be a plain value of .*, got Fracti.* the type Fraction$',
    ),
    (
      'tensor',
      {'users': 3, 'learning_rate': tf.constant(0.1)},
      r'^learning_rate must be a plain value of .*, got [^\n]* EagerTensor$',
    ),
    (
      'column',
      {'users': 3, 'rounds': np.array([[1], [2]])},
      r'^rounds must be a plain value of .*, got array[^\n]* ndarray$',
    ),
    (
      'listed',
      {'users': 3, 'mechanism': ['gradient']},
      r"^mechanism must be one of .*, got \['gradient'\]$",
    ),
    ('nothing', {'users': 3, 'noise': {}}, r'^noise must be a plain value of'),
    (
      'gpu',
      {'users': 3, 'device': 'gpu'},
      r'^device must be .* noise=continuous with mechanism gradient or cent',
    ),
    ('loss', {'users': 3, 'loss': 'hinge'}, r'^loss must be cross_entropy for'),
    (
      'indices',
      {
        'given': tf.keras.Sequential(
          [
            tf.keras.Input((4,)),
            *(_LAYERS.Embedding(9, 2), _LAYERS.Flatten(), _LAYERS.Dense(3)),
          ]
        ),
        'users': 3,
      },
      r'^test must hold indices that the embeddings of the model have, got ano',
    ),
    ('test', {'users': 3, 'test': None}, r'^test must be public examples'),
    ('resume', {'users': 3, 'resume': True}, r'^output_dir must be the folder'),
    (
      'dropouts',
      {'users': 3, 'dropouts': 1, 'mechanism': 'gradient'},
      r'^dropouts must be 0 with mechanism gradient, whose',
    ),
    (
      'schedule',
      {'users': 3, 'schedule': lambda m: 1.0 + m},
      r'^schedule must be a function of a round and the number',
    ),
    (
      'a_word',
      {'users': 'id'},
      r"^users must be the number of users, .* 'id'$",
    ),
  )
  def test_refused_before_there_is_a_folder(self, arguments, text):
    given = {'given': model(), **arguments}
    with self.assertRaisesRegex(errors.UsageError, text):
      self.fit(given.pop('given'), X, Y, **given)
    self.assertFalse(self.folder.exists())

  def test_refused_in_a_graph_or_a_strategy(self):
    strategy = tf.distribute.OneDeviceStrategy('/cpu:0')
    for scope, text in (
      (tf.Graph().as_default(), '^fit must be called eagerly, got a call in a'),
      (strategy.scope(), '^fit must be called outside of the scope of a tf.d'),
    ):
      with scope, self.assertRaisesRegex(errors.UsageError, text):
        self.fit(mock.Mock(), X, Y, users=3)

  def test_history_is_a_frame_or_says_what_to_install(self):
    (self.folder).mkdir()
    (self.folder / 'metrics.csv').write_text('round,test_loss\n1,2.5\n2,1.5\n')
    found = fit.PrivateRun(1.5, 0.5, mock.Mock(), self.folder, model=model())
    with (
      mock.patch.dict(sys.modules, {'pandas': None}),
      self.assertRaisesRegex(ImportError, 'pip install pandas'),
    ):
      _ = found.history
    np.testing.assert_array_equal(found.metrics['test_loss'], [2.5, 1.5])


class LearningRateTest(FitTestCase):
  def rate(self, x, y, **settings):
    made = fit._own(model(), x, y, TEST, None, 'none')
    return fit._settings(made, 4, settings).learning_rate

  @parameterized.parameters((450, 1.0, 1.0), (60, 3.0, 1.0), (180, 3.0, 0.9))
  def test_is_that_of_the_noise(self, count, epsilon, theta):
    rate = self.rate(X[:count], Y[:count], epsilon=epsilon, theta=theta)
    even = privacy.calibrate(epsilon, 1e-5, 1.0, rounds=50)
    # Of the mean of clipped gradients, of which one is replaced.
    noise = even.noise_multipliers(1.0)[0] * 2 / count
    num_parameters = 3 * (X.shape[1] + 1)
    wanted = 0.3 / (noise * num_parameters**0.5)
    self.assertAlmostEqual(rate, wanted, delta=0.006)
    self.assertBetween(rate, 0.101, 0.999)

  def test_a_trained_model_is_warned_of(self):
    found = self.fit(model(), X, Y, users=4)
    self.folder = self.folder.parent / 'second'
    with self.assertLogs(level='WARNING') as caught:
      self.fit(found.model, X, Y, users=4)
    (line,) = (x for x in caught.output if 'adds up' in x)
    self.assertIn(repr(str(found.output_dir)), line)

  def test_has_bounds_and_gives_way(self):
    self.assertEqual(self.rate(X[:8], Y[:8]), 0.1)
    self.assertEqual(self.rate(X, Y, epsilon=20.0), 1.0)
    self.assertEqual(self.rate(X, Y, learning_rate=0.7), 0.7)
    self.assertEqual(self.rate(X, Y, mechanism='central'), 0.2)
    own = self.rate(X, Y, mechanism='gradient', example_l2_norm_clip=0.5)
    self.assertEqual(own, self.rate(-X, Y[::-1], mechanism='gradient'))

  @parameterized.parameters((False, 3 * 16 + 17), (True, 3 * 16 + 32 + 17))
  def test_counts_the_rows_of_an_example(self, normalizes, used):
    def build():
      layers = [_LAYERS.LayerNormalization()] if normalizes else []
      return tf.keras.Sequential(
        [
          tf.keras.Input((3,), dtype=tf.int32),
          _LAYERS.Embedding(1000, 16),
          *layers,
          _LAYERS.GlobalAveragePooling1D(),
          _LAYERS.Dense(1),
        ]
      )

    rng = np.random.default_rng(0)
    x, y = rng.integers(1000, size=[900, 3]), rng.integers(2, size=900)
    test = rng.integers(1000, size=[9, 3]), np.arange(9) % 2
    made = fit._own(build(), x, y, test, None, 'none')
    rate = fit._settings(made, 4, {'epsilon': 1.0}).learning_rate
    noise = privacy.calibrate(1.0, 1e-5, 1.0, rounds=50).noise_multipliers(1.0)
    wanted = 0.3 / (noise[0] * 2 / len(x) * used**0.5)
    self.assertBetween(wanted, 0.31, 0.99)
    wanted = 0.3 if normalizes else wanted
    self.assertAlmostEqual(rate, wanted, delta=0.006)

  def test_none_is_a_setting_that_is_not_given(self):
    given: dict[str, Any] = dict.fromkeys(
      ('learning_rate', 'local_steps', 'epsilon')
    )
    with mock.patch.object(fit.training, 'train', side_effect=KeyError) as run:
      for settings in ({}, given):
        with self.assertRaises(KeyError):
          fit.fit(model(), X, Y, test=TEST, users=4, **settings)
    without, with_none = (call.args[0] for call in run.call_args_list)
    self.assertEqual(with_none, without)


class SharedLedgerTest(FitTestCase):
  def test_is_refused(self):
    """Of two sets of users nothing says that they are the same."""
    shared = shared_ledger.SharedLedger(self.folder.parent / 'ledger.jsonl')
    made = fit._own(model, X, Y, TEST, None, 'none')
    settings = fit._settings(made, 4, {'rounds': 2})
    with self.assertRaisesRegex(
      errors.UsageError, '^ledger must not be given with'
    ):
      training.train(settings, self.folder, ledger=shared, own=made.data)
    self.assertFalse(self.folder.exists())


class RunningLoopTest(FitTestCase):
  def test_fit_in_a_running_loop(self):
    # It calls `train`, which is what does without the loop.
    async def cell():
      return self.fit(model(), X, Y, users=4)

    self.assertTrue(asyncio.run(cell()).statement.holds)

  def test_results_and_errors_come_through(self):
    async def cell(function):
      return training.with_event_loop(function)

    def fails(run_coroutine):
      run_coroutine(asyncio.sleep(0))
      raise ValueError('mine')

    def ident(_):
      return threading.get_ident()

    self.assertEqual(training.with_event_loop(ident), threading.get_ident())
    self.assertNotEqual(asyncio.run(cell(ident)), threading.get_ident())
    with self.assertRaisesRegex(ValueError, 'mine'):
      asyncio.run(cell(fails))

  def test_interrupt_cancels_what_runs(self):
    ended = []

    def function(run_coroutine):
      async def work():
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
          await asyncio.sleep(60)
        finally:
          ended.append('cleaned up')

      run_coroutine(work())

    # As a notebook's kernel does, whose loop does not handle the signal.
    loop = asyncio.new_event_loop()

    async def cell():
      training.with_event_loop(function)

    started = time.monotonic()
    with self.assertRaises(KeyboardInterrupt):
      loop.run_until_complete(cell())
    self.assertEqual(ended, ['cleaned up'])
    self.assertLess(time.monotonic() - started, 30)


@absltest.skipUnless(
  os.environ.get('JUPYTER_PYTHON'), 'make check-notebook has a kernel for it'
)
class NotebookTest(FitTestCase):
  def test_in_a_kernel(self):
    done = subprocess.run(
      [
        os.environ['JUPYTER_PYTHON'],
        str(pathlib.Path(__file__).with_name('notebook.py')),
        self.folder.parent,
      ],
      capture_output=True,
      text=True,
      check=False,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    self.assertIn('HOLDS', done.stdout)


if __name__ == '__main__':
  absltest.main()
