from absl.testing import absltest

from tools import program_cost


class ProgramCostTest(absltest.TestCase):
  def test_measures_rounds_of_both(self):
    whole, alone = program_cost.measure('digits', None, 3)
    self.assertLen(whole, 3)
    self.assertLen(alone, 3)
    self.assertGreater(min(whole + alone), 0)


if __name__ == '__main__':
  absltest.main()
