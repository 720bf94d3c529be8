"""Reference values of every formula: 50-digit arithmetic and dp-accounting.

`vectors.json` names its own tolerances. Every group of it has a handler, which
computes every expected value from the inputs with the package alone; a group or
a value without one fails.
"""

import json
import pathlib

from absl.testing import absltest, parameterized

from tests.privacy import vector_handlers

HANDLERS = vector_handlers.HANDLERS
VECTORS = json.loads(
  pathlib.Path(__file__).with_name('vectors.json').read_text('utf-8')
)
TOLERANCES = VECTORS['meta']['suggested_tolerances']

# Groups of the file without values of the package, and why.
ELSEWHERE = {'meta': 'describes the file: tolerances, versions, names'}
# Leaves that say how a reference was computed, which is not how it is here.
NOT_VALUES = frozenset({'order', 'interval', 'as'})
_ROOTS = frozenset({'M_star', 'M_star_brute_force', 'root'})


def _leaves(value, path=()):
  """(path, number) of every leaf of a nest of dicts and lists."""
  if isinstance(value, list):
    value = dict(enumerate(value))
  if not isinstance(value, dict):
    yield path, value
    return
  for key, child in value.items():
    if key not in NOT_VALUES:
      yield from _leaves(child, (*path, key))


def _tolerance(path):
  """The relative tolerance that the file names for a value.

  It allows 1e-9 for theta next to 1; the general 1e-12 is met there too.
  """
  for name in ('rdp', 'pld'):
    if path[0].endswith(name):
      return TOLERANCES[name]
  return TOLERANCES['M_star' if path[0] in _ROOTS else 'closed_forms']


class VectorsTest(parameterized.TestCase):
  def test_every_group_has_a_handler_or_a_reason(self):
    self.assertCountEqual(VECTORS, [*HANDLERS, *ELSEWHERE])

  def test_nothing_was_lost_from_the_file(self):
    self.assertEqual(sum(len(VECTORS[name]) for name in HANDLERS), 290)

  @parameterized.named_parameters(
    (f'{group}_{i}', group, entry)
    for group in HANDLERS
    for i, entry in enumerate(VECTORS[group])
  )
  def test_value(self, group, entry):
    computed = dict(_leaves(HANDLERS[group](entry['inputs'])))
    expected = dict(_leaves(entry['expected']))
    self.assertNotEmpty(expected)
    for path, value in expected.items():
      self.assertIn(path, computed)
      if isinstance(value, int):
        self.assertEqual(computed[path], value, path)
      else:
        self.assertLessEqual(
          abs(computed[path] - value),
          _tolerance(path) * abs(value),
          f'{path}: {computed[path]!r} for {value!r}',
        )


if __name__ == '__main__':
  absltest.main()
