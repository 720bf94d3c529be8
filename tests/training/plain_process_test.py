"""The process without TFF: equal to TFF's, and the same under Keras 3."""

import concurrent.futures
import functools
import importlib.util
import json
import pathlib
import unittest
from unittest import mock

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from tensorflow.python.eager import context  # No public name.

from tests.training import plain_cases as cases
from tvdp_tf import mechanisms, privacy
from tvdp_tf.federated import schedule_state
from tvdp_tf.learning import onednn
from tvdp_tf.privacy import ledger
from tvdp_tf.training import plain_process, recorder, rounds

VECTORS = json.loads(cases.VECTORS.read_text())
WITH_TFF = importlib.util.find_spec('tensorflow_federated') is not None


@functools.cache
def process_of(noise, model):
  """A process has no state of its own."""
  return plain_process.build_process(
    *cases.built(cases.settings(noise, model=model))
  )


def tearDownModule():
  # At the end of the interpreter TensorFlow cannot free them any more.
  process_of.cache_clear()


def plain(noise, model='linear', **changes):
  plan, fed = cases.built(cases.settings(noise, model=model, **changes))
  return plan, fed, process_of(noise, model)


class VectorsTest(parameterized.TestCase):
  def test_integers_to_the_bit(self):
    self.assertEqual(cases.integers(), VECTORS['integers'])

  def test_floats_but_for_their_last_bits(self):
    for name, value in cases.floats().items():
      expected = cases.from_text(VECTORS['floats'][name])
      self.assertEqual(value.dtype, expected.dtype)
      np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-8)

  @parameterized.parameters(*cases.NOISES)
  def test_a_run(self, noise):
    states = cases.trained(*plain(noise))
    start, end = cases.flat(states[0]), cases.flat(states[-1])
    expected = cases.from_text(VECTORS['floats'][f'{noise}_model'])
    np.testing.assert_allclose(end, expected, rtol=1e-5, atol=1e-6)
    self.assertGreater(np.linalg.norm(end - start), 0.1)  # It is no small step.
    schedule = cases.schedule(states[-1])
    np.testing.assert_allclose(
      [schedule['variance']],
      cases.from_text(VECTORS['floats'][f'{noise}_variance']),
      rtol=1e-9,
    )


class ThreadTest(absltest.TestCase):
  @unittest.skipUnless(onednn.is_used(), 'oneDNN is off')
  def test_a_thread_that_has_called_a_function_before_fuses_nothing(self):
    before = tf.config.optimizer.get_experimental_options()
    self.addCleanup(
      tf.config.optimizer.set_experimental_options,
      {'remapping': before.get('remapping', True)},
    )
    _, _, process = plain('continuous')
    state = process.initialize()
    tf.config.optimizer.set_experimental_options({'remapping': True})

    def fuses():
      options = context.context().function_call_options.config_proto_serialized
      config = tf.compat.v1.ConfigProto.FromString(options)
      rewriting = config.graph_options.rewrite_options
      return rewriting.remapping != rewriting.OFF

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      thread.submit(tf.function(lambda: tf.constant(1.0))).result()
      onednn.require_sound()
      self.assertTrue(thread.submit(fuses).result())
      thread.submit(process.next, state, []).result()
      self.assertFalse(thread.submit(fuses).result())


@unittest.skipUnless(WITH_TFF, 'needs TFF')
class SameAsTffTest(parameterized.TestCase):
  @parameterized.parameters(
    ('continuous', 'linear'), ('discrete', 'linear'), ('discrete', 'mlp')
  )
  def test_to_the_bit(self, noise, model):
    from tvdp_tf import runtimes  # noqa: PLC0415

    ours = cases.trained(*plain(noise, model))
    plan, fed = cases.built(cases.settings(noise, model=model))
    with runtimes.compiled_runtime('cpu'):
      process = rounds.build_process(plan, fed)
      theirs = cases.trained(plan, fed, process)
      # The states have the same parts.
      self.assertEqual(ours[0]._fields, theirs[0]._fields)
    for one, other in zip(ours, theirs, strict=True):
      np.testing.assert_array_equal(cases.flat(one), cases.flat(other))
      self.assertEqual(
        {k: float(v) for k, v in cases.schedule(one).items()},
        {k: float(v) for k, v in cases.schedule(other).items()},
      )


class PlainProcessTest(parameterized.TestCase):
  def test_rounds_are_on_record_and_the_guarantee_holds(self):
    plan, fed, process = plain('continuous', seed=None)
    path = pathlib.Path(self.create_tempdir().full_path, 'ledger.jsonl')
    run = rounds.Rounds(plan, fed, process)
    digest = bytes(32)
    state = process.initialize()
    with ledger.PrivacyLedger.create(
      path, plan.header, plan.ledger_run(digest, 'b' * 32)
    ) as book:
      books = recorder.Recorder(run, book, digest)
      for number in (1, 2):
        recorded = books.record(state, number)
        state = run.run(state, recorded.releases, recorded.noise_keys)
    statement = plan.statement()
    self.assertTrue(statement.holds, statement.reason)
    audit = privacy.audit_ledger(path)
    self.assertTrue(audit.holds, audit.reason)
    self.assertBetween(audit.worst_epsilon, 7.9, 8.0)

  def test_a_budget_of_ones_own_keeps_the_books(self):
    plan, fed, process = plain('continuous', seed=None)
    path = pathlib.Path(self.create_tempdir().full_path, 'ledger.jsonl')
    run = rounds.Rounds(plan, fed, process)
    state, spent = process.initialize(), 0
    # Their clients' budget is spent after one round.
    with privacy.Budget(
      path,
      epsilon=9.0,
      delta=plan.settings.delta,
      clients=4,
      unit='example',
      sensitivity=plan.sensitivity_on_record[0],
      sensitivity_proven=True,
    ) as budget:
      for number in (1, 2):
        releases = run.releases(state, number, np.array([0, 2]))
        least = float(releases.noise_multipliers.min())
        try:
          budget.spend(number, [0, 2], least, plan.releases_per_client)
        except privacy.BudgetExceededError:
          break
        state = run.run(state, releases, run.noise_keys(releases))
        spent += 1
    self.assertEqual(spent, 1)
    self.assertTrue(privacy.audit_ledger(path).holds)

  def test_a_seeded_run_is_a_simulation(self):
    plan, fed, process = plain('continuous')
    cases.trained(plan, fed, process)
    statement = plan.statement()
    self.assertFalse(statement.holds)
    self.assertIn('simulation', statement.reason)

  @parameterized.parameters(
    {'example_l2_norm_clip': 0.5},
    {'local_steps': 3},
    {'adjacency': 'zero-out'},
    {'noise': 'discrete'},
  )
  def test_is_for_plans_of_its_clip_noise_and_steps_alone(self, **changes):
    process = process_of('continuous', 'linear')
    settings = {'noise_name': 'continuous', **changes}
    settings['noise_name'] = settings.pop('noise', settings['noise_name'])
    plan, fed = cases.built(cases.settings(model='linear', **settings))
    with self.assertRaisesRegex(ValueError, 'built for the plan'):
      rounds.Rounds(plan, fed, process)

  def test_the_noise_is_there(self):
    """Two rounds of one state differ by it alone, in their keys."""
    plan, fed, process = plain('continuous')
    run = rounds.Rounds(plan, fed, process)
    state = cases.started(process)
    releases = run.releases(state, 1, np.array([0, 1]))
    models = [
      cases.flat(run.run(state, releases, {0: one, 1: other}))
      for one, other in ((cases.KEY, cases.KEY + 1), (cases.KEY, cases.KEY))
    ]
    stddev = plan.mean_noise_stddev(releases)
    # The second client's half of the noise, drawn twice.
    gap = (models[0] - models[1]) / stddev
    self.assertBetween(gap.std(), 0.8, 1.2)

  def test_leaves_out_what_cannot_be_used(self):
    plan, fed, process = plain('continuous')
    run = rounds.Rounds(plan, fed, process)
    state = cases.started(process)
    releases = run.releases(state, 1, np.array([0, 1]))
    keys = run.noise_keys(releases)
    both = process.next(state, run._client_data(releases, keys))
    data = run._client_data(releases, keys)
    data[1][0]['noise_scale'] = np.float64(np.inf)
    one = process.next(state, data)
    self.assertEqual(int(both.metrics['aggregator']['used_clients']), 2)
    self.assertEqual(
      {k: int(v) for k, v in one.metrics['aggregator'].items()},
      {'used_clients': 1, 'excluded_clients': 1},
    )
    self.assertTrue(np.isfinite(cases.flat(one.state)).all())
    self.assertFalse(
      np.array_equal(cases.flat(one.state), cases.flat(both.state))
    )

  def test_runs_on_the_cpu(self):
    plan, fed, process = plain('discrete')
    upload, devices = process._upload, []

    def noted(*arguments):
      devices.append(context.context().device_name)
      return upload(*arguments)

    with (
      mock.patch.object(process, '_upload', noted),
      tf.device('/device:GPU:0'),  # Whether there is one or none.
    ):
      cases.trained(plan, fed, process)
    self.assertNotEmpty(devices)
    for device in devices:
      self.assertIn('CPU', device)

  def test_ends_with_its_schedule(self):
    plan, fed, process = plain('continuous')
    state = cases.trained(plan, fed, process)[-1]
    with self.assertRaisesRegex(
      tf.errors.InvalidArgumentError, 'no further round'
    ):
      process.next(state, [])

  def test_takes_another_schedule_between_rounds(self):
    plan, fed, process = plain('continuous')
    run = rounds.Rounds(plan, fed, process)
    state = cases.trained(plan, fed, process)[1]
    schedule = privacy.GeometricSchedule(0.5, 3, 2.0)
    state = schedule_state.put(
      state, schedule_state.refined(cases.schedule(state), schedule)
    )
    for number in (2, 3):
      releases = run.releases(state, number, run.cohort(number))
      state = run.run(state, releases, run.noise_keys(releases))
    found = cases.schedule(state)
    self.assertEqual(int(found['round']), 3)
    self.assertAlmostEqual(float(found['variance']), 4.0 * 0.5**3)

  @parameterized.parameters(
    ({'mechanism': 'paper', 'noise': None}, 'mechanism paper needs TFF'),
    (
      {
        'mechanism': 'distributed',
        'noise': None,
        'users_per_round': 4,
        'local_steps': 1,
      },
      'mechanism distributed needs TFF',
    ),
    ({'server_momentum': 0.5}, 'server_momentum'),
  )
  def test_refuses(self, changes, reason):
    plan, fed = cases.built(cases.settings('continuous', **changes))
    with self.assertRaisesRegex(ValueError, reason):
      plain_process.build_process(plan, fed)

  def test_refuses_work_without_noise(self):
    plan, _ = cases.built(
      cases.settings('continuous', mechanism='none', noise=None)
    )
    with self.assertRaisesRegex(ValueError, 'a noise schedule'):
      plain_process.PlainProcess(plan, mock.Mock(), mock.Mock())

  def test_every_mechanism_says_whether_it_needs_tff(self):
    without = {
      name
      for name, mechanism in mechanisms.MECHANISMS.items()
      if mechanism.graph.plain_work is not mechanisms.GraphMechanism.plain_work
    }
    self.assertEqual(without, {'gradient'})


if __name__ == '__main__':
  absltest.main()
