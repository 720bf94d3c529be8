from absl.testing import absltest, parameterized

from tvdp_tf.learning import datasets, model_sizes, models

_SHAPES = {
  'images': ((28, 28, 1), 10),
  'colours': ((32, 32, 3), 10),
  'smallest': ((16, 17, 2), 3),
  'digits': ((8, 8, 1), 10),
  'table': ((108,), 2),
}


class ModelSizesTest(parameterized.TestCase):
  @parameterized.product(model=sorted(models.MODELS), data=sorted(_SHAPES))
  def test_is_that_of_keras(self, model, data):
    shape, classes = _SHAPES[data]
    try:
      expected = models.MODELS[model].build(shape, classes, 0).count_params()
    except ValueError as error:
      with self.assertRaises(ValueError) as caught:
        model_sizes.FORMULAS[model](shape, classes)
      self.assertEqual(str(caught.exception), str(error))
      return
    found = model_sizes.FORMULAS[model](shape, classes)
    self.assertEqual(found, expected)


class FactsTest(parameterized.TestCase):
  @parameterized.parameters(
    'digits', *(name for name in datasets.LOADERS if 'generated' in name)
  )
  def test_are_those_of_the_data(self, name):
    dataset = datasets.load(name)
    self.assertEqual(
      datasets.facts(name),
      datasets.Facts(
        len(dataset.train_labels),
        dataset.train_features.shape[1:],
        dataset.num_classes,
      ),
    )

  def test_of_a_loader_of_ones_own(self):
    small = datasets.load('generated_adult')
    for name in ('mine', 'mnist'):
      before = dict(datasets.LOADERS)
      self.addCleanup(datasets.LOADERS.update, before)
      datasets.LOADERS[name] = lambda data_dir: small
      self.assertEqual(datasets.facts(name), datasets.Facts(400, (108,), 2))
    self.addCleanup(datasets.LOADERS.pop, 'mine')

  def test_of_adult(self):
    from tvdp_tf.learning import adult  # noqa: PLC0415

    self.assertEqual(datasets.facts('adult').input_shape, (adult.NUM_FEATURES,))


if __name__ == '__main__':
  absltest.main()
