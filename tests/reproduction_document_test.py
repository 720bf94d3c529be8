"""The tables of docs/REPRODUCTION.md are those of the results and the code."""

import re

from absl.testing import absltest, parameterized

from tools import reproduction_document, result_tables
from tvdp_tf.experiments import catalogue
from tvdp_tf.experiments.catalogue import tasks


class DocumentTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.text = reproduction_document.DOCUMENT.read_text()

  def test_tables_are_those_of_the_results(self):
    self.maxDiff = None
    self.assertMultiLineEqual(
      self.text, reproduction_document.filled(self.text)
    )

  def test_every_experiment_is_in_it(self):
    for name in catalogue.EXPERIMENTS:
      self.assertIn(f'--experiment={name}', self.text)

  def test_a_changed_number_is_found(self):
    block = re.search(r'<!-- table: .*?<!-- end -->', self.text, re.DOTALL)
    changed = self.text.replace(block[0], re.sub(r'\d', '7', block[0]))
    self.assertNotEqual(changed, self.text)
    self.assertEqual(reproduction_document.filled(changed), self.text)


class LearningRateTest(parameterized.TestCase):
  @parameterized.parameters(*tasks.TASKS)
  def test_rule(self, task):
    paper, gradient = result_tables.tuning_losses(task)
    self.assertEqual(task.learning_rate, min(paper, key=paper.__getitem__))
    rate, clip = min(gradient, key=gradient.__getitem__)
    self.assertEqual(
      task.gradient, {'learning_rate': rate, 'example_l2_norm_clip': clip}
    )


if __name__ == '__main__':
  absltest.main()
