import doctest
import importlib
import inspect
import json
import pathlib
import pkgutil
import subprocess
import sys

from absl.testing import absltest, parameterized

from tvdp_tf import privacy

MODULES = tuple(
  info.name
  for info in pkgutil.walk_packages(privacy.__path__, 'tvdp_tf.privacy.')
)
# dp_accounting takes a second and pulls in much of SciPy; what uses it
# imports it.
HEAVY = ('dp_accounting', 'tensorflow', 'tensorflow_federated')


class ImportTest(absltest.TestCase):
  def test_loads_neither_tensorflow_nor_tff(self):
    program = (
      'import json, sys\n'
      f'for name in {MODULES!r}: __import__(name)\n'
      'print(json.dumps(sorted({n.split(".")[0] for n in sys.modules})))\n'
    )
    done = subprocess.run(
      [sys.executable, '-c', program],
      cwd=pathlib.Path(__file__).parents[2],
      stdin=subprocess.DEVNULL,
      capture_output=True,
      check=True,
      timeout=120,
      text=True,
    )
    loaded = json.loads(done.stdout)
    self.assertIn('tvdp_tf', loaded)
    self.assertEmpty(set(HEAVY) & set(loaded))


class NamesTest(absltest.TestCase):
  def test_all_is_sorted_and_exists(self):
    self.assertLen(set(privacy.__all__), len(privacy.__all__))
    for name in privacy.__all__:
      self.assertTrue(hasattr(privacy, name), name)

  def test_signatures_that_others_rely_on(self):
    theorem1 = 'theta rounds epsilon delta sampling_rate sensitivity'
    expected = {
      'GeometricSchedule': 'theta rounds initial_stddev',
      'theorem1_stddev': theorem1,
      'tight_moment_stddev': theorem1,
      'theorem2_stddev': (
        'theta round new_rounds epsilon delta sampling_rate sensitivity'
      ),
      'gaussian_epsilon': 'noise_multiplier delta',
      'gaussian_delta': 'noise_multiplier epsilon',
      'gaussian_noise_multiplier': 'epsilon delta',
      'delivered_epsilon': (
        'noise_multipliers delta accountant sampling sampling_rate'
      ),
      'refine_stddev': 'theta past_stddevs new_rounds budget',
      'divergence_gap': 'x gamma eta smoothness',
      'optimal_theta': 'contraction',
    }
    for name, parameters in expected.items():
      signature = inspect.signature(getattr(privacy, name))
      self.assertEqual(' '.join(signature.parameters), parameters, name)
    calibrate = list(inspect.signature(privacy.calibrate).parameters)
    self.assertEqual(calibrate[:4], ['epsilon', 'delta', 'theta', 'rounds'])


class DoctestTest(parameterized.TestCase):
  @parameterized.parameters(*MODULES)
  def test_examples(self, name):
    results = doctest.testmod(importlib.import_module(name))
    self.assertEqual(results.failed, 0)

  def test_examples_are_found(self):
    finder = doctest.DocTestFinder()
    found = [
      test
      for name in MODULES
      for test in finder.find(importlib.import_module(name))
      if test.examples
    ]
    self.assertGreater(len(found), 10)


if __name__ == '__main__':
  absltest.main()
