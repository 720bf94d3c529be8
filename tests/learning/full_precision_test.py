import os
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.federated import bounded_value
from tvdp_tf.learning import clipping


class FullPrecisionTest(parameterized.TestCase):
  def test_tensorfloat_32_is_off(self):
    tf.config.experimental.enable_tensor_float_32_execution(True)
    clipping.require_full_precision()
    self.assertFalse(tf.config.experimental.tensor_float_32_execution_enabled())

  @parameterized.parameters(
    ('NVIDIA_TF32_OVERRIDE', '1', '0'),
    ('ONEDNN_DEFAULT_FPMATH_MODE', 'BF16', 'strict'),
    ('DNNL_DEFAULT_FPMATH_MODE', 'any', 'STRICT'),
    ('TF_SET_ONEDNN_FPMATH_MODE', 'BF16', ''),
    ('TF_ENABLE_AUTO_MIXED_PRECISION', '1', '0'),
  )
  def test_the_environment_must_not_cut_it_short(self, name, wrong, right):
    with (
      mock.patch.dict(os.environ, {name: wrong}),
      self.assertRaisesRegex(ValueError, f'{name} must be unset'),
    ):
      clipping.require_full_precision()
    with mock.patch.dict(os.environ, {name: right}):
      clipping.require_full_precision()

  def test_nor_must_an_option_of_tensorflow(self):
    tf.config.optimizer.set_experimental_options({'auto_mixed_precision': True})
    try:
      with self.assertRaisesRegex(ValueError, 'auto_mixed_precision must be'):
        clipping.require_full_precision()
    finally:
      tf.config.optimizer.set_experimental_options(
        {'auto_mixed_precision': False}
      )
    clipping.require_full_precision()

  @parameterized.parameters(
    ('--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit', '--tf_xla_auto_jit=0'),
    ('--tf_xla_auto_jit=fusible', '--tf_xla_cpu_global_jit'),
    ('--tf_xla_min_cluster_size=4 -tf_xla_auto_jit=1', ''),
    ('flags_of_xla.txt', '--tf_xla_min_cluster_size=4'),
  )
  def test_xla_must_be_asked_for(self, wrong, right):
    with (
      mock.patch.dict(os.environ, TF_XLA_FLAGS=wrong),
      self.assertRaisesRegex(ValueError, f"XLA's auto.*FLAGS='{wrong}'"),
    ):
      clipping.require_full_precision()
    with mock.patch.dict(os.environ, TF_XLA_FLAGS=right):
      clipping.require_full_precision()

  def test_nor_may_tensorflow_be_told_to_use_it(self):
    tf.config.optimizer.set_jit('autoclustering')
    try:
      with self.assertRaisesRegex(ValueError, "XLA's auto.*'autoclustering'"):
        clipping.require_full_precision()
      with self.assertRaisesRegex(ValueError, "XLA's auto.*'autoclustering'"):
        bounded_value.bounded([tf.ones([2])], 1.0)
    finally:
      tf.config.optimizer.set_jit(False)
    clipping.require_full_precision()


if __name__ == '__main__':
  absltest.main()
