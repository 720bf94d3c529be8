"""Reports on claims: seeds that count, and words."""

from absl.testing import absltest

from reproduction import catalogue, verdicts
from reproduction.catalogue import claims


def rows(losses):
  """Of (curve, seed) -> loss."""
  return [
    {
      'curve': curve,
      'seed': seed,
      'planned_rounds': '5',
      'round': '5',
      'test_loss': str(loss),
    }
    for (curve, seed), loss in losses.items()
  ]


def experiment(*all_claims):
  return catalogue.Experiment(
    'name', 'title', all_claims, {}, {'a': {}, 'b': {}}, catalogue.ROUNDS
  )


class DecideTest(absltest.TestCase):
  def test_only_seeds_with_all_curves_count(self):
    decisions = verdicts.decide(
      experiment(claims.order('a below b', 'a', 'b')),
      rows({('a', '0'): 1, ('b', '0'): 2, ('a', '1'): 3}),
    )
    (decision,) = decisions
    self.assertEqual((decision.held, decision.seeds), (1, 1))

  def test_a_claim_without_its_curves_is_left_out(self):
    self.assertEmpty(
      verdicts.decide(
        experiment(claims.order('a below b', 'a', 'b')), rows({('a', '0'): 1})
      )
    )


class TextTest(absltest.TestCase):
  def decision(self, *names):
    return claims.Decision('said', {name: [0.25] for name in names}, 1, 1)

  def test_table(self):
    self.assertEqual(
      verdicts.table([self.decision('a', 'b, c')]).splitlines()[-1],
      '| said | a: 0.250; b, c: 0.250 | **holds** |',
    )

  def test_what_is_common_is_said_once(self):
    table = verdicts.table([self.decision('x, a, y', 'x, b, y')])
    self.assertIn('| (x, y) a: 0.250; b: 0.250 |', table)
    self.assertIn('| x, y: 0.250 |', verdicts.table([self.decision('x, y')]))

  def test_report(self):
    report = verdicts.report(experiment(), [self.decision('a')], 'the command')
    self.assertStartsWith(report, '# name: title\n')
    self.assertIn('| said | a: 0.250 | **holds** |', report)
    self.assertIn('```\nthe command\n```', report)
    self.assertNotIn('|', verdicts.report(experiment(), [], 'c'))


if __name__ == '__main__':
  absltest.main()
