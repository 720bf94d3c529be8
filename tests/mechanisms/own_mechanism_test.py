"""A mechanism of one's own, in one class, trained and audited like the others.

`Ball` is Algorithm 1 with the sensitivity that is proven: the diameter of the
ball that the parameters are projected to, whatever the data.
"""

import dataclasses
import functools
import importlib.util
import json
import pathlib
import types
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

import tvdp_tf
from tests.training import resume_cases
from tvdp_tf import errors, mechanisms, privacy, runtimes
from tvdp_tf.attacks.membership_game import settings as game_settings
from tvdp_tf.attacks.model_audit import settings as audit_settings
from tvdp_tf.privacy import sensitivity
from tvdp_tf.training import federation, rounds, shared_ledger, train
from tvdp_tf.training import settings as settings_lib

_EXAMPLE = pathlib.Path(__file__).parents[2] / 'examples/own_mechanism.py'


class Ball(mechanisms.Mechanism):
  name = 'ball'
  unit = 'user'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self._rule = privacy.projection_rule(settings.l2_norm_clip)
    schedule = privacy.calibrate(
      settings.epsilon,
      self.delta,
      settings.theta,
      settings.rounds,
      self._rule.value,
    )
    self.mechanism = mechanisms.PaperMechanism(schedule, settings.l2_norm_clip)

  @property
  def sensitivity_on_record(self):
    return f'2 C, C = {self.settings.l2_norm_clip!r}', True

  def sensitivities(self):
    return np.full(self.settings.users, self._rule.value)

  def statement(self):
    return self.sound_statement(
      self.delivered_views('server', 'server, median client'),
      'server',
      why='two points of a ball are no further apart than its diameter',
      assumptions=('clients run this code and keep their noise secret',),
      rule=self._rule,
    )


class Careless(Ball):
  """Its author has written a statement from scratch."""

  name = 'careless'
  epsilon = 8.0

  def statement(self):
    return privacy.PrivacyStatement(
      target_epsilon=self.settings.epsilon,
      delta=self.settings.delta,
      claimed_epsilon=self.settings.epsilon,
      delivered={'server': {'exact': self.epsilon}},
      unit='user',
      adjacency=self.adjacency,
      assumptions=('mine',),
      holds=True,
      reason='I say so',
      view='server',
      sensitivity=self._rule,
    )


class TooLittle(Careless):
  name = 'too_little'
  epsilon = 0.1


class LittleLess(Careless):
  name = 'little_less'
  epsilon = 7.99


class AtAnotherDelta(Careless):
  name = 'at_another_delta'

  def statement(self):
    return dataclasses.replace(super().statement(), delta=1e-9)


class LedgerOfAnotherDelta(Careless):
  name = 'ledger_of_another_delta'

  @property
  def header(self):
    return dataclasses.replace(super().header, delta=0.5)


class AccountsAtAnotherDelta(Careless):
  name = 'accounts_at_another_delta'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self.delta = 0.4


class OfAnotherUnit(Careless):
  name = 'of_another_unit'

  def statement(self):
    rule = sensitivity.gradient_rule(1.0, 10)
    return dataclasses.replace(
      super().statement(), unit='example', sensitivity=rule
    )


class Unsound(Careless):
  name = 'unsound'
  is_sound = False


class Unenforced(Careless):
  name = 'unenforced'

  @property
  def header(self):
    return dataclasses.replace(super().header, enforced=False)


class OwnMechanismTest(resume_cases.FolderTestCase):
  exports = False

  def test_trains_under_a_guarantee_that_holds(self):
    settings = settings_lib.TrainingSettings(
      mechanism=Ball,
      epsilon=8.0,
      rounds=4,
      users=4,
      users_per_round=2,
      local_steps=2,
    )
    result = train.train(settings, self.run_dir)
    self.assertTrue(result.statement.holds, result.statement.reason)
    self.assertRegex(
      '\n'.join(result.statement.assumptions), 'mechanism ball is not part of'
    )
    audit = privacy.audit_ledger(self.run_dir / 'ledger.jsonl')
    self.assertTrue(audit.holds, audit.reason)
    self.assertRegex(audit.reason, '_test claims: none of this is proven here')
    # As far as is known: it is the author's claim, and the noise has a tail.
    self.assertIn('own_mechanism_test claims', audit.runs[0].run.sensitivity)
    self.assertGreater(audit.runs[0].run.noise_distance, 0)
    self.assertBetween(audit.worst_epsilon, 1.0, 8.0)
    config = json.loads((self.run_dir / 'config.json').read_text())
    self.assertEqual(config['settings']['mechanism'], 'ball')
    # It is known from now on, and another of its name is refused.
    settings_lib.TrainingSettings(mechanism='ball')
    with self.assertRaisesRegex(ValueError, 'its own name'):
      settings_lib.TrainingSettings(mechanism=type('Other', (Ball,), {}))

  def test_takes_a_class_that_is_defined_again(self):
    """As where a cell of a notebook is run again; not of another place."""
    for _ in range(2):
      kind = type('Again', (Ball,), {'name': 'again'})
      settings_lib.TrainingSettings(mechanism=kind)
      self.assertIs(mechanisms.MECHANISMS['again'], kind)
    for other in (
      type('Again', (Ball,), {'name': 'again', '__module__': 'elsewhere'}),
      type('Central', (Ball,), {'name': 'central'}),
      type(
        'Central',
        (Ball,),
        {'name': 'central', '__module__': mechanisms.Central.__module__},
      ),
    ):
      with self.assertRaisesRegex(ValueError, 'its own name, not that of'):
        settings_lib.TrainingSettings(mechanism=other)

  @parameterized.named_parameters(
    ('no_sensitivity', 'sensitivities', lambda self: np.zeros(4), '> 0'),
    ('of_others', 'sensitivities', lambda self: np.ones(3), r'shape \(3,\)'),
    ('a_list', 'sensitivities', lambda self: [1.0] * 4, 'got list of the'),
    (
      'no_releases',
      'releases_in_a_round',
      classmethod(lambda cls, *_: 0),
      'got 0',
    ),
    ('no_graph', 'mechanism', property(lambda self: 5, lambda *_: None), 'int'),
    ('nothing', 'sensitivity_on_record', None, 'got None'),
    ('no_pair', 'sensitivity_on_record', ('2 C',), r"got \('2 C',\)"),
    ('no_words', 'sensitivity_on_record', (True, '2 C'), r'\(str, bool\)'),
    ('no_statement', 'statement', lambda self: None, 'return a .* got None'),
  )
  def test_what_cannot_be_used(self, name, value, message):
    kind = type('Wrong', (Ball,), {'name': 'wrong', name: value})
    settings = settings_lib.TrainingSettings(
      mechanism=kind, users=4, users_per_round=2
    )
    with self.assertRaisesRegex(
      errors.UsageError, f'^mechanism must .*{message}'
    ):
      train.train(settings, self.run_dir)
    self.assertFalse(self.run_dir.exists())

  def test_a_constructor_that_leaves_out_the_bases(self):
    def init(self, settings, fed):
      del settings, fed

    kind = type('Bare', (Ball,), {'name': 'bare', '__init__': init})
    settings = settings_lib.TrainingSettings(
      mechanism=kind, users=4, users_per_round=2
    )
    with self.assertRaisesRegex(
      errors.UsageError, r'^mechanism must call super\(\).__init__.* got Bare, '
    ):
      train.train(settings, self.run_dir)

  def test_parts_that_are_none(self):
    @dataclasses.dataclass(frozen=True)
    class Without(mechanisms.PaperMechanism):
      def parts(self, build):
        return tuple(super().parts(build))

    def init(self, settings, fed):
      Ball.__init__(self, settings, fed)
      self.mechanism = Without(self.schedule, settings.l2_norm_clip)

    kind = type('Tuple', (Ball,), {'name': 'of_tuple', '__init__': init})
    settings = settings_lib.TrainingSettings(
      mechanism=kind, users=4, users_per_round=2
    )
    with self.assertRaisesRegex(
      errors.UsageError, '^mechanism must return Parts from parts, got tuple$'
    ):
      train.train(settings, self.run_dir)

  def test_values_that_are_no_fields_are_refused(self):
    """Two graphs that differ in them would be taken for one."""

    class Loose(mechanisms.PaperMechanism):
      def __init__(self, schedule, l2_norm_clip):
        super().__init__(schedule, l2_norm_clip)
        object.__setattr__(self, 'other_clip', l2_norm_clip)

    class OfLoose(Ball):
      name = 'of_loose'

      def __init__(self, settings, fed):
        super().__init__(settings, fed)
        self.mechanism = Loose(self.schedule, settings.l2_norm_clip)

    settings = settings_lib.TrainingSettings(
      mechanism=OfLoose, users=4, users_per_round=2
    )
    with self.assertRaisesRegex(
      errors.UsageError,
      '^mechanism must have .* a frozen dataclass .* got .*Loose',
    ):
      train.train(settings, self.run_dir)

  @parameterized.parameters(
    (mechanisms.Mechanism, 'a subclass of .* got Mechanism with the name None'),
    (int, 'a subclass of tvdp_tf.Mechanism .* got int with the name None'),
    (type('Odd', (Ball,), {'name': 'a b'}), r"an identifier, .* name 'a b'"),
    (
      type('Half', (mechanisms.Mechanism,), {'name': 'half'}),
      'define sensitivity_on_record, statement, got Half, which',
    ),
  )
  def test_what_is_no_mechanism(self, mechanism, message):
    with self.assertRaisesRegex(ValueError, f'^mechanism must .*{message}'):
      settings_lib.TrainingSettings(mechanism=mechanism)

  @parameterized.parameters(
    (Careless, None, True, 'I say so'),
    (Careless, 1, False, 'the noise is reproducible from --seed'),
    (
      TooLittle,
      None,
      False,
      r'it states epsilon = 0\.1\d*, but its releases have spent ',
    ),
    (
      LittleLess,
      None,
      False,
      r'it states epsilon = 7\.99, but its releases have spent 8',
    ),
    (
      AtAnotherDelta,
      None,
      False,
      'it states delta = 1e-09, but its releases are accounted at 0.3$',
    ),
    (
      LedgerOfAnotherDelta,
      None,
      False,
      'it states delta = 0.3, but its releases are accounted at 0.5$',
    ),
    (
      AccountsAtAnotherDelta,
      None,
      False,
      'it states delta = 0.3, but its releases are accounted at 0.4$',
    ),
    (
      OfAnotherUnit,
      None,
      False,
      'it states replace-one of one example, but its releases are accounted for'
      ' replace-one of one user$',
    ),
    (Unsound, None, False, 'mechanism unsound gives no enforced'),
    (Unenforced, None, False, 'mechanism unenforced gives no enforced'),
  )
  def test_a_statement_of_ones_own_leaves_nothing_out(
    self, mechanism, seed, holds, reason
  ):
    settings = settings_lib.TrainingSettings(
      mechanism=mechanism,
      epsilon=8.0,
      delta=0.3,
      rounds=2,
      users=4,
      users_per_round=4,
      local_steps=1,
      seed=seed,
    )
    result = train.train(settings, self.run_dir)
    self.assertEqual(result.statement.holds, holds)
    self.assertRegex(result.statement.reason, f'^{reason}')
    claims = f'as {__name__} claims'
    self.assertEqual(f', {claims}: it is' in result.statement.reason, holds)
    rule = result.statement.sensitivity
    assert rule is not None
    self.assertStartsWith(rule.reason, f'{claims}: ')
    written = json.loads((self.run_dir / 'privacy.json').read_text())
    self.assertEqual(written['holds'], holds)
    words = '\n'.join(written['assumptions'])
    self.assertStartsWith(words, 'mine\n')
    for text in (
      'the process that trains holds the data of all clients',
      'that clients send nothing else',
      'WARNING: delta = 0.3 is at least 1/n',
    ):
      self.assertEqual(words.count(text), 1, text)

  @parameterized.parameters((Careless, True), (TooLittle, False))
  def test_nor_does_it_before_a_run_or_in_a_shared_ledger(
    self, mechanism, holds
  ):
    settings = settings_lib.TrainingSettings(
      mechanism=mechanism,
      epsilon=8.0,
      rounds=2,
      users=4,
      users_per_round=4,
      local_steps=1,
    )
    planned = tvdp_tf.plan(settings)
    self.assertEqual(planned.statement.holds, holds)
    ledger = shared_ledger.SharedLedger(self.folder / 'ledger.jsonl', 20.0)
    for run in ('one', 'two'):
      result = train.train(settings, self.folder / run, ledger=ledger)
      self.assertEqual(result.statement.holds, holds, run)

  def test_nothing_that_is_shown_tells_what_users_hold(self):
    """The noise of the mean, beside the signal, would give their weights."""
    stddevs = []
    for sizes in ([10, 10], [400, 10]):
      fed = mock.Mock(examples_per_user=np.array(sizes), num_parameters=5)
      settings = settings_lib.TrainingSettings(
        mechanism=Ball, users=2, users_per_round=2, rounds=2
      )
      plan = Ball(settings, fed)
      releases = mechanisms.Round(
        1, np.array([0, 1]), np.ones(2), 3.0, np.ones(2)
      )
      stddevs.append(plan.mean_noise_stddev(releases))
    self.assertEqual(*stddevs)
    self.assertAlmostEqual(stddevs[0], 3.0 / np.sqrt(2))


class RegisteredTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.enter_context(mock.patch.dict(mechanisms.MECHANISMS))

  def test_what_a_module_defines(self):
    module = types.ModuleType('mine')
    kinds: list[type] = [
      type('Base', (Ball,), {'__module__': 'mine'}),
      type(
        'Half', (mechanisms.Mechanism,), {'__module__': 'mine', 'name': 'h'}
      ),
      type('Imported', (Ball,), {'__module__': 'elsewhere', 'name': 'there'}),
      type('Whole', (Ball,), {'__module__': 'mine', 'name': 'whole'}),
    ]
    for kind in [*kinds, str]:
      setattr(module, kind.__name__, kind)
    before = {*mechanisms.MECHANISMS}
    mechanisms.register_module(module)
    self.assertEqual({*mechanisms.MECHANISMS} - before, {'whole'})
    with self.assertRaisesRegex(
      ValueError, "^mechanism must define .*statement, got 'h', which"
    ):
      settings_lib.TrainingSettings(mechanism='h')
    again = type('Again', (Ball,), {'__module__': 'mine', 'name': 'paper'})
    setattr(module, 'Again', again)  # noqa: B010
    with self.assertRaisesRegex(ValueError, 'its own name, .* got .paper'):
      mechanisms.register_module(module)

  @parameterized.parameters(
    ({'unit': 'person'}, "^unit of mechanism must be one of .* got 'person'$"),
    (
      {'adjacencies': ()},
      r'^adjacencies of .* a tuple of replace-one, .*\(\)$',
    ),
    ({'adjacencies': 'replace-one'}, "a tuple of .*, got 'replace-one'$"),
    ({'participations': ('shuffled',)}, r"got \('shuffled',\)$"),
    (
      {'check': lambda settings: None},
      '^check of mechanism must be a class method, got function$',
    ),
    ({'noises': ('white',)}, '^noises of mechanism must be a tuple of cont'),
    ({'example_views': ('all',)}, '^example_views of mechanism must be a tup'),
  )
  def test_words_that_are_not_known(self, words, message):
    kind = type('Odd', (Ball,), {'name': 'odd', **words})
    with self.assertRaisesRegex(ValueError, message):
      mechanisms.register(kind)

  def test_attacks_take_what_they_can_attack(self):
    examples = type(
      'Examples', (Ball,), {'name': 'ex', 'unit': 'example', '__module__': 'm'}
    )
    # It says so, but has another graph than those that can be attacked.
    odd = type('Odd', (examples,), {'name': 'odd', 'clips_examples': True})
    clipped = type('Clipped', (mechanisms.Gradient,), {'name': 'c'})

    def settings(mechanism):
      return settings_lib.TrainingSettings(mechanism=mechanism, seed=1)

    game_settings.GameSettings(settings(examples))
    with self.assertRaisesRegex(ValueError, "got 'ball'"):
      game_settings.GameSettings(settings(Ball))
    audit_settings.ModelAuditSettings(settings(clipped))
    for kind, name in ((examples, 'ex'), (odd, 'odd')):
      with self.assertRaisesRegex(ValueError, f"got '{name}': canaries exist"):
        audit_settings.ModelAuditSettings(settings(kind))


@functools.cache
def _example():
  spec = importlib.util.spec_from_file_location('own_mechanism', _EXAMPLE)
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


class ExampleTest(resume_cases.FolderTestCase):
  """`examples/own_mechanism.py`, whose graph is its own, too."""

  def update(self, seed):
    """The change of all weights in one round of four users, flat."""
    settings = settings_lib.TrainingSettings(
      mechanism=_example().LocalUsers,
      epsilon=1.0,
      rounds=1,
      users=4,
      users_per_round=4,
      local_steps=1,
      l2_norm_clip=0.1,
      seed=seed,
    )
    fed = federation.assemble(settings)
    plan = mechanisms.build(settings, fed)
    with runtimes.compiled_runtime('cpu'):
      run = rounds.on_runtime(plan, fed)
      state = run.process.initialize()
      releases = run.releases(state, 1, run.cohort(1))
      found = run.run(state, releases, run.noise_keys(releases))
    flat = [
      np.concatenate([np.ravel(w) for w in one.global_model_weights.trainable])
      for one in (state, found)
    ]
    return flat[1] - flat[0], plan

  def test_noise_is_of_the_keys_and_as_large_as_stated(self):
    update, plan = self.update(seed=1)
    np.testing.assert_array_equal(update, self.update(seed=1)[0])
    stddev = plan.schedule.stddevs()[0]
    # The mean of the clipped updates is below a hundredth of that of the noise.
    self.assertGreater(stddev / 2, 100 * 0.1 / np.sqrt(len(update)))
    # Five standard deviations of what is estimated.
    self.assertAlmostEqual(
      np.std(update) / (stddev / 2), 1, delta=5 / np.sqrt(2 * len(update))
    )
    multiplier = plan.round(1, np.arange(4), stddev).noise_multipliers[0]
    self.assertAlmostEqual(stddev, 2 * 0.1 * multiplier)
    other, _ = self.update(seed=2)
    self.assertLess(abs(np.corrcoef(update, other)[0, 1]), 0.1)


if __name__ == '__main__':
  absltest.main()
