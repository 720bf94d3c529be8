"""Makes absl's test helpers work under pytest, quietly."""

import fnmatch
import functools
import gc
import os
import pathlib
import signal
import sys
import tempfile
from typing import Any
from unittest import mock

# Read when NumPy is imported. Its threads wait by spinning, at the cost of the
# tests that run beside.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

import hypothesis
import pytest
from absl import flags
from absl.testing import absltest

from tvdp_tf import _environment

# Read when TensorFlow is imported, and inherited by the programs under test.
_environment.set_defaults()

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
  """Has Keras draw the same initial weights in every run of a test.

  Without forgetting what TensorFlow has optimized: a third of the time of tests
  that share a graph. Only ops like `tf.random.normal`, whose kernels count
  their draws, would need it; no test rests on what they draw.
  """
  if tensorflow := sys.modules.get('tensorflow'):
    with mock.patch.object(
      sys.modules['tensorflow.python.pywrap_tfe'], 'TFE_ContextClearCaches'
    ):
      tensorflow.keras.utils.set_random_seed(0)


def long_patterns() -> list[str]:
  """Node ids of `long_tests.txt`, from the root."""
  text = pathlib.Path(__file__).with_name('long_tests.txt').read_text()
  lines = (line.strip() for line in text.splitlines())
  return [f'tests/{line}' for line in lines if line and line[0] != '#']


@pytest.hookimpl(optionalhook=True)  # Of xdist, which may not be there.
def pytest_xdist_auto_num_workers() -> int:
  """One more than there are cores: tests wait, for processes and for disks."""
  return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(tryfirst=True)  # Before `-m` is applied.
def pytest_collection_modifyitems(config, items):
  """Marks the tests of `long_tests.txt`."""
  unused = set(patterns := long_patterns())
  for item in items:
    found = {p for p in patterns if fnmatch.fnmatchcase(item.nodeid, p)}
    if found:
      item.add_marker(pytest.mark.long)
      unused -= found
  if unused and config.args_source == pytest.Config.ArgsSource.TESTPATHS:
    raise pytest.UsageError(f'long_tests.txt: no test matches {min(unused)}')


def pytest_configure():
  """Parses absl's flags, as `absltest.main` would."""
  # A shell ignores it for what runs in the background, and so would every
  # program that the tests start and interrupt.
  if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
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


# Functions of their arguments alone. Beside each, what it costs to compute the
# same every time. Their modules are not imported for that.
_COMPUTED_ONCE = (
  # A moment of a sampled Gaussian: half a second a statement of the same noise.
  ('dp_accounting.rdp.rdp_privacy_accountant', '_compute_log_a'),
  # scikit-learn reads a file of text: 30 ms a training.
  ('sklearn.datasets', 'load_digits'),
  # The methods of a protocol, for each `isinstance` of one: a fiftieth of all
  # time, in TensorFlow's tracing. Python 3.12 notes them down itself.
  ('typing', '_get_protocol_attrs'),
)


def _note_no_stacks_of_ops() -> None:
  """Has TensorFlow note one place for all ops, not the stack of each.

  Only its messages have them. pytest's stacks are deep: a twentieth of the time
  of tracing.
  """
  tf_stack: Any = sys.modules.get('tensorflow.python.util.tf_stack')
  if tf_stack and not isinstance(tf_stack.extract_stack, functools.partial):
    here = tf_stack.extract_stack()
    tf_stack.extract_stack = functools.partial(
      lambda place, *_, **__: place, here
    )


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup():
  """Spares TensorFlow and others what tests have no use of."""
  for module_name, name in _COMPUTED_ONCE:
    module: Any = sys.modules.get(module_name)
    function = getattr(module, name, None)
    if function and not hasattr(function, 'cache_info'):
      setattr(module, name, functools.cache(function))
  _note_no_stacks_of_ops()


def pytest_unconfigure():
  """Removes the tests' files."""
  _temporary_files.cleanup()
