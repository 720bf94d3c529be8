"""Makes absl's test helpers work under pytest, quietly."""

import gc
import os
import sys
import tempfile

import hypothesis
import pytest
from absl import flags
from absl.testing import absltest

# Read when TensorFlow is imported, and inherited by the programs under test.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# Random examples are the same in every run, so that a change alone can make a
# test fail; `make fuzz` looks for new ones.
hypothesis.settings.register_profile(
  'same', derandomize=True, database=None, deadline=None
)
hypothesis.settings.register_profile('new', max_examples=1000, deadline=None)
hypothesis.settings.load_profile('same')

# absl's own folder for temporary files is shared by all runs on a machine.
_temporary_files = tempfile.TemporaryDirectory()


@pytest.fixture(autouse=True)
def _same_weights():
  """Has Keras draw the same initial weights in every run of a test."""
  if tensorflow := sys.modules.get('tensorflow'):
    tensorflow.keras.utils.set_random_seed(0)


def pytest_configure():
  """Parses absl's flags, as `absltest.main` would."""
  flags.FLAGS(
    ['pytest', f'--{absltest.TEST_TMPDIR.name}={_temporary_files.name}']
  )


def pytest_collection_finish():
  """Spares the garbage collector what lives as long as the process.

  TensorFlow, TFF and thousands of tests: looking through them, for every few
  hundred objects of a graph, is a fifth of the time of a training.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure():
  """Removes the tests' files."""
  _temporary_files.cleanup()
