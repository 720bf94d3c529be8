"""The compiled runtime on a GPU, against itself on a CPU; needs a GPU.

`tests/runtimes/compiled/runtime_test.py` holds the CPU's side against TFF's
worker. The GPU's products are added in another order, so models agree up to
rounding; what is drawn from keys is the same to the bit.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized

from tests.binaries import program_runner
from tests.runtimes.compiled import runtime_test
from tvdp_tf import mechanisms, privacy, runtimes
from tvdp_tf.learning import chacha20, discrete_gaussian, models, noise

_NEEDS_GPU = unittest.skipUnless(
  tf.config.list_physical_devices('GPU'), 'there is no GPU'
)


def _train(process, device):
  with runtimes.compiled_runtime(device):
    state, _ = runtime_test.train(process, runtime_test.make_users())
  return state.global_model_weights.trainable


@_NEEDS_GPU
class GpuTest(parameterized.TestCase):
  @parameterized.product(
    mechanism=tuple(runtime_test.MECHANISMS), model=('mlp', 'convolutional')
  )
  def test_the_model_of_the_cpu(self, mechanism, model):
    keras_model = (
      models.MODELS['mlp'].build([8, 8, 1], 10, 1)
      if model == 'mlp'
      else runtime_test.convolutional_model()
    )
    process = runtime_test.build(
      runtime_test.MECHANISMS[mechanism], keras_model
    )
    expected = _train(process, 'cpu')
    actual = _train(process, 'gpu')
    for one, other in zip(actual, expected, strict=True):
      self.assertIn('GPU', tf.convert_to_tensor(one).device)
      np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)

  def test_products_are_not_rounded_to_tensor_float_32(self):
    # 1 + 2^-12 is 1 with TensorFloat-32's ten bits.
    process = runtime_test.build(
      runtime_test.MECHANISMS['gradient'],
      models.MODELS['mlp'].build([8, 8, 1], 10, 1),
    )
    _train(process, 'gpu')
    with tf.device('/device:GPU:0'):
      row = tf.fill([64, 64], tf.constant(1 + 2.0**-12))
      product = tf.linalg.matmul(row, tf.eye(64))
    self.assertIn('GPU', product.device)
    np.testing.assert_array_equal(product, row)

  def test_the_bits_of_keys(self):
    key = noise.seeded_noise_key(1, 2, 3)
    drawn = {}
    for device in ('CPU', 'GPU'):
      with tf.device(f'/device:{device}:0'):
        words = chacha20.words_of_few_ops(
          tf.constant(key),
          tf.constant(50, tf.int64),
          tf.constant(7, tf.int64),
          tf.constant(0, tf.int64),
        )
        exact = tf.function(
          lambda key: discrete_gaussian.discrete_gaussian(key, 20_000)
        )(tf.constant(key))
        drawn[device] = words.numpy(), exact.numpy()
    for one, other in zip(drawn['CPU'], drawn['GPU'], strict=True):
      np.testing.assert_array_equal(one, other)

  def test_noise_without_a_key_is_fresh_for_every_client(self):
    runtime_test.check_noise_without_a_key(self, 'gpu')

  def test_errors_of_a_graph_reach_the_caller(self):
    process = runtime_test.build(
      mechanisms.PaperMechanism(privacy.GeometricSchedule(1.0, 1, 0.1), 4.0),
      models.MODELS['mlp'].build([8, 8, 1], 10, 1),
    )
    users = runtime_test.make_users()
    with runtimes.compiled_runtime('gpu'):
      state = process.initialize()
      state = process.next(state, runtime_test.data_of(users, 1)).state
      with self.assertRaisesRegex(
        tf.errors.InvalidArgumentError, 'no further round'
      ):
        process.next(state, runtime_test.data_of(users, 2))

  def test_memory_is_taken_as_needed(self):
    code = """
import tensorflow as tf
from tvdp_tf import runtimes
runtimes.configure('gpu', 10)
with tf.device('/device:GPU:0'):
  tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64])).numpy()
gpu = tf.config.list_physical_devices('GPU')[0]
assert tf.config.experimental.get_memory_growth(gpu)
taken = tf.config.experimental.get_memory_info('GPU:0')
assert taken['peak'] < 2**24, taken
"""
    subprocess.run([sys.executable, '-c', code], check=True)


@_NEEDS_GPU
class ProgramTest(parameterized.TestCase):
  def _model(self, folder: pathlib.Path, *arguments) -> list[bytes]:
    """The weights that a seeded run exports."""
    done = program_runner.run(
      'train.py',
      f'--output_dir={folder}',
      '--dataset=digits',
      '--users=10',
      '--users_per_round=5',
      '--rounds=3',
      '--seed=3',
      '--device=gpu',
      '--noprogress',
      *arguments,
      fresh=True,
    )
    self.assertEqual(done.returncode, 0, done.stderr)
    return [
      path.read_bytes() for path in folder.glob('model/variables/*.data*')
    ]

  @parameterized.parameters(
    '--mechanism=paper',
    '--mechanism=gradient --noise=continuous',
    '--mechanism=central --participation=poisson',
  )
  def test_deterministic_runs_are_the_same_to_the_bit(self, flags):
    with tempfile.TemporaryDirectory() as folder:
      one, other = (
        self._model(
          pathlib.Path(folder) / name,
          *flags.split(),
          '--deterministic',
        )
        for name in ('one', 'other')
      )
    self.assertNotEmpty(one)
    self.assertEqual(one, other)


if __name__ == '__main__':
  absltest.main()
