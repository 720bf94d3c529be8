import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from scipy import stats

from tests import noise_checks
from tvdp_tf import mechanisms, privacy
from tvdp_tf.attacks import releases
from tvdp_tf.learning import clipping, local_training, noise, private_training

_SCHEDULE = privacy.GeometricSchedule(0.9, 5, 3.0)
_KEY = noise.seeded_noise_key(1, 2, 3)
_STEPS = 3
_RATE = 0.5


def _paper(pair, steps=_STEPS, rate=_RATE, l2_norm_clip=5.0):
  mechanism = mechanisms.PaperMechanism(_SCHEDULE, l2_norm_clip)
  return releases.build(pair, mechanism, steps, rate)


def _gradient(pair, steps=_STEPS, rate=_RATE):
  mechanism = mechanisms.GradientMechanism(_SCHEDULE, 0.7)
  return releases.build(pair, mechanism, steps, rate)


def _some_weights(pair):
  rng = np.random.default_rng(0)
  return [
    tf.constant(rng.normal(size=w.shape), w.dtype)
    for w in pair.model.initial_weights
  ]


def _tensors(data):
  return [tf.constant(part) for part in data]


def _assert_close(found, expected):
  for mine, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


class PaperReleasesTest(absltest.TestCase):
  def test_noiseless_is_training(self):
    pair = releases.digits_pair(40)
    weights = _some_weights(pair)
    for data in (pair.data, pair.alternative, pair.common):
      expected = local_training.local_steps(
        pair.loss_fn,
        weights,
        *_tensors(data),
        num_steps=_STEPS,
        learning_rate=_RATE,
        l2_norm_clip=5.0,
      )
      _assert_close(_paper(pair).noiseless(weights, data), expected)

  def test_one_upload_is_that_of_training(self):
    pair = releases.digits_pair(40)
    client = _paper(pair)
    weights = _some_weights(pair)
    upload = client.uploads(weights, pair.data, 0.3, _KEY, 1)
    expected = noise.perturb(client.noiseless(weights, pair.data), 0.3, _KEY)
    _assert_close([part[0] for part in upload], expected)

  def test_uploads_are_independent(self):
    pair = releases.digits_pair(40)
    client = _paper(pair)
    weights = _some_weights(pair)
    uploads = client.uploads(weights, pair.data, 0.3, _KEY, 30)
    added = releases.flatten(uploads, 30) - releases.flatten(
      client.noiseless(weights, pair.data)
    )
    self.assertEqual(added.shape, (30, 130))
    self.assertTrue(noise_checks.has_stddev(added, 0.3))
    self.assertTrue(noise_checks.rejects_neighbours(added, 0.3))
    self.assertTrue(noise_checks.are_independent(added))

  def test_noise_stddev(self):
    client = _paper(releases.outlier_pair(10))
    self.assertEqual(client.noise_stddev(3), _SCHEDULE.stddev(3))
    self.assertAlmostEqual(client.upload_variance(0.3), 0.09)

  def test_the_papers_sensitivity_is_wrong_600_times(self):
    pair = releases.outlier_pair(600)
    client = _paper(pair, steps=5, rate=1.0)
    models = [
      releases.flatten(client.noiseless(pair.model.initial_weights, data))
      for data in (pair.data, pair.alternative)
    ]
    distance = np.linalg.norm(models[0] - models[1])
    claimed = privacy.paper_rule(5.0, 600).value
    self.assertAlmostEqual(distance, 10, places=5)
    self.assertAlmostEqual(distance / claimed, 600, places=3)


class GradientReleasesTest(parameterized.TestCase):
  @parameterized.parameters('digits', 'outlier')
  def test_one_upload_is_that_of_training(self, name):
    pair = releases.CLIENTS[name](40)
    client = _gradient(pair)
    weights = _some_weights(pair)
    clipped_sum = clipping.vectorized_clipped_sum(pair.loss_fn)

    def train(data, noise_stddev):
      return private_training.private_local_steps(
        clipped_sum,
        weights,
        *_tensors(data),
        num_steps=_STEPS,
        learning_rate=_RATE,
        example_l2_norm_clip=0.7,
        noise_stddev=tf.constant(noise_stddev, tf.float64),
        noise_key=tf.constant(_KEY),
      )

    upload = client.uploads(weights, pair.data, 0.3, _KEY, 1)
    _assert_close([part[0] for part in upload], train(pair.data, 0.3))
    for data in (pair.alternative, pair.common):
      _assert_close(client.noiseless(weights, data), train(data, 0.0))

  def test_uploads_have_the_law_of_single_ones(self):
    # At this learning rate later steps depend on the noise of earlier ones.
    pair = releases.outlier_pair(5)
    client = _gradient(pair, rate=1.5)
    weights = pair.model.initial_weights
    together = releases.flatten(
      client.uploads(weights, pair.data, 0.4, _KEY, 4000), 4000
    )
    single = [
      releases.flatten(
        client.uploads(
          weights, pair.data, 0.4, noise.seeded_noise_key(9, 1, i), 1
        )
      )[0, 0]
      for i in range(1000)
    ]
    self.assertGreater(stats.ks_2samp(together[:, 0], single).pvalue, 1e-9)
    other = client.uploads(weights, pair.alternative, 0.4, _KEY, 4000)
    other = releases.flatten(other, 4000)[:, 0]
    self.assertLess(stats.ks_2samp(other, single).pvalue, 1e-9)

  def test_uploads_are_independent(self):
    pair = releases.digits_pair(10)
    client = _gradient(pair)
    uploads = client.uploads(_some_weights(pair), pair.data, 0.3, _KEY, 30)
    rows = releases.flatten(uploads, 30)
    self.assertTrue(noise_checks.are_independent(rows - rows.mean(axis=0)))

  def test_noise_stddev(self):
    client = _gradient(releases.outlier_pair(10))
    self.assertAlmostEqual(
      client.noise_stddev(3), _SCHEDULE.stddev(3) * 2 * 0.7 / 10
    )

  def test_upload_variance(self):
    # Where the gradient does not depend on the weights: all are clipped.
    pair = releases.outlier_pair(2)
    client = _gradient(pair)
    far = [np.array([[1000.0]], np.float32)]
    uploads = client.uploads(far, pair.common, 0.3, _KEY, 4000)
    rows = releases.flatten(uploads, 4000)
    centred = rows - releases.flatten(client.noiseless(far, pair.common))
    stddev = client.upload_variance(0.3) ** 0.5
    self.assertAlmostEqual(stddev, 3**0.5 * _RATE * 0.3)
    self.assertTrue(noise_checks.has_stddev(centred, stddev))
    self.assertTrue(noise_checks.rejects_neighbours(centred, stddev))


if __name__ == '__main__':
  absltest.main()
