"""Makes absl's test helpers work under pytest, quietly."""

import os

from absl import flags

# Read when TensorFlow is imported, and inherited by the programs under test.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')


def pytest_configure():
  """Parses absl's flags, as `absltest.main` would."""
  flags.FLAGS(['pytest'])
