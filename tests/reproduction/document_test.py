"""The tables of the documents are those of the results and the code."""

import re

from absl.testing import absltest, parameterized

from reproduction import catalogue, result_tables
from reproduction import document as reproduction_document
from reproduction.catalogue import tasks


class DocumentTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.text = reproduction_document.DOCUMENT.read_text()

  def test_tables_are_those_of_the_results(self):
    self.maxDiff = None
    readme = reproduction_document.README.read_text()
    for text in (self.text, readme):
      self.assertIn('<!-- table: ends equal_mnist -->', text)
      self.assertMultiLineEqual(text, reproduction_document.filled(text))
    schedule = reproduction_document.SCHEDULE.read_text()
    self.assertIn('<!-- table: correlated -->', schedule)
    self.assertMultiLineEqual(schedule, reproduction_document.filled(schedule))

  def test_every_experiment_is_in_it(self):
    for name in catalogue.EXPERIMENTS:
      self.assertIn(f'--experiment={name}', self.text)

  def test_a_changed_number_is_found(self):
    changed, count = re.subn(r'± 0\.\d+', '± 0.123', self.text, count=1)
    self.assertEqual(count, 1)
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
