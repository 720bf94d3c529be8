"""Runs that may share a compiled process, and runs that must not."""

from absl.testing import absltest, parameterized

from tests.mechanisms import plan_cases


class GraphKeyTest(parameterized.TestCase):
  @parameterized.parameters('paper', 'laplace', 'gradient', 'central', 'none')
  def test_what_is_in_the_state_is_not_in_the_key(self, mechanism):
    one, other = (
      plan_cases.build(
        mechanism=mechanism, epsilon=epsilon, rounds=rounds, seed=1
      )
      for epsilon, rounds in ((8.0, 10), (4.0, 20))
    )
    self.assertEqual(one.graph_key(), other.graph_key())

  @parameterized.parameters(
    ('paper', {'l2_norm_clip': 3.0}),
    ('laplace', {'l2_norm_clip': 3.0}),
    ('gradient', {'example_l2_norm_clip': 3.0}),
    ('gradient', {'noise': 'discrete'}),
    ('central', {'l2_norm_clip': 3.0}),
    ('central', {'seed': 2}),
    ('central', {'users_per_round': 5}),
  )
  def test_what_is_in_the_graph_is(self, mechanism, changes):
    one = plan_cases.build(mechanism=mechanism, seed=1)
    other = plan_cases.build(**{'mechanism': mechanism, 'seed': 1, **changes})
    self.assertNotEqual(one.graph_key(), other.graph_key())


if __name__ == '__main__':
  absltest.main()
