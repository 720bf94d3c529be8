"""What TensorFlow is told before it is imported."""

import importlib.metadata
import os
import subprocess
import sys
from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized
from tensorflow.python.util import _pywrap_util_port

from tvdp_tf import _environment

_PROGRAM = """
import os
from tvdp_tf.cli import program
program.run(lambda: print(os.environ['TF_ENABLE_ONEDNN_OPTS']))
"""


class EnvironmentTest(parameterized.TestCase):
  @parameterized.parameters(
    ('2.14.1', {}, '1'),
    ('2.9', {}, '1'),
    ('2.15.0', {}, '0'),
    ('3.0.0rc1', {}, '0'),
    ('2.14.1', {'TF_ENABLE_ONEDNN_OPTS': '0'}, '0'),
    ('2.21.0', {'TF_ENABLE_ONEDNN_OPTS': '1'}, '1'),
  )
  def test_onednn(self, version, given, expected):
    with (
      mock.patch.dict(os.environ, given, clear=True),
      mock.patch.object(
        importlib.metadata, 'version', return_value=version, autospec=True
      ),
    ):
      _environment.set_defaults()
      self.assertEqual(os.environ['TF_ENABLE_ONEDNN_OPTS'], expected)
      self.assertEqual(os.environ['TF_CPP_MIN_LOG_LEVEL'], '3')

  def test_no_tensorflow(self):
    error = importlib.metadata.PackageNotFoundError
    with (
      mock.patch.dict(os.environ, TF_CPP_MIN_LOG_LEVEL='1', clear=True),
      mock.patch.object(importlib.metadata, 'version', side_effect=error),
    ):
      _environment.set_defaults()
      self.assertEqual(dict(os.environ), {'TF_CPP_MIN_LOG_LEVEL': '1'})

  def test_is_on_here(self):
    """The tests run as the programs do, whatever the processor."""
    version = _environment.release(tf.__version__)
    self.assertEqual(
      _pywrap_util_port.IsMklEnabled(),
      version <= _environment.LAST_WITH_ONEDNN,
    )

  def test_programs_set_it(self):
    without = {
      name: value
      for name, value in os.environ.items()
      if name != 'TF_ENABLE_ONEDNN_OPTS'
    }
    printed = subprocess.check_output(
      [sys.executable, '-c', _PROGRAM], env=without, text=True
    )
    self.assertEqual(printed.strip(), os.environ['TF_ENABLE_ONEDNN_OPTS'])


if __name__ == '__main__':
  absltest.main()
