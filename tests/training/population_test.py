"""Who takes part, by public facts and by the data."""

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.learning import models
from tvdp_tf.training import federation, population
from tvdp_tf.training import settings as settings_lib


class PopulationTest(parameterized.TestCase):
  @parameterized.product(
    dataset=('digits', 'generated_adult'),
    split=('iid', 'dirichlet'),
    participation=('uniform', 'balanced'),
  )
  def test_is_that_of_a_seeded_training(self, dataset, split, participation):
    settings = settings_lib.TrainingSettings(
      dataset=dataset, split=split, participation=participation, seed=5
    )
    found = population.expected(settings)
    fed = federation.assemble(settings)
    self.assertEqual(found.participation, fed.participation)
    self.assertEqual(found.num_parameters, fed.num_parameters)
    np.testing.assert_array_equal(
      found.examples_per_user, fed.examples_per_user
    )

  def test_a_model_of_a_file(self):
    path = self.create_tempdir().full_path + '/mine.keras'
    models.build_mlp((8, 8, 1), 10, 0).save(path)
    settings = settings_lib.TrainingSettings(model=f'keras:{path}')
    self.assertEqual(population.expected(settings).num_parameters, 2410)

  def test_of_data_that_are_not_there(self):
    settings = settings_lib.TrainingSettings(
      dataset='tfds:no_such_set', split='dirichlet'
    )
    found = population.expected(settings, 50, 7)
    self.assertEqual(found.examples_per_user.tolist(), [50] * 10)
    self.assertEqual(found.num_parameters, 7)


if __name__ == '__main__':
  absltest.main()
