"""Makes absl's test helpers work under pytest, quietly."""

import os
import tempfile

from absl import flags
from absl.testing import absltest

# Read when TensorFlow is imported, and inherited by the programs under test.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')


# absl's own folder for temporary files is shared by all runs on a machine.
_temporary_files = tempfile.TemporaryDirectory()


def pytest_configure():
  """Parses absl's flags, as `absltest.main` would."""
  flags.FLAGS(
    ['pytest', f'--{absltest.TEST_TMPDIR.name}={_temporary_files.name}']
  )


def pytest_unconfigure():
  """Removes the tests' files."""
  _temporary_files.cleanup()
