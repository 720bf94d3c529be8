"""The committed audits agree with themselves, and show what is said of them."""

import csv
import json
import pathlib

import numpy as np
from absl.testing import absltest, parameterized
from matplotlib import image

from tvdp_tf.attacks import audit_report, one_run
from tvdp_tf.attacks.model_audit import report
from tvdp_tf.output import machine

_RESULTS = pathlib.Path(__file__).resolve().parents[3] / 'results' / 'audit'
_NAMES = ('mnist', 'half_the_noise', 'distributed', 'distributed_users')
# What the pairs of an audit of users move.
_OF_USERS = ('update', '2 C_u')


def _read(name: str) -> dict:
  return json.loads((_RESULTS / name / report.JSON).read_text())


class AuditResultsTest(parameterized.TestCase):
  @parameterized.parameters(*_NAMES)
  def test_bound_is_that_of_the_guesses(self, name):
    written = _read(name)
    bound = written['one_run']['lower_bound']
    found = one_run.epsilon_lower_bound(
      bound['right'],
      bound['guesses'],
      bound['canaries'],
      bound['delta'],
      bound['confidence'],
    )
    self.assertAlmostEqual(
      found.epsilon_lower_bound, bound['epsilon_lower_bound'], places=3
    )
    with open(_RESULTS / name / report.GUESSES, newline='') as file:
      (planned,) = [
        row for row in csv.DictReader(file) if row['planned'] == '1'
      ]
    self.assertEqual(int(planned['right']), bound['right'])
    self.assertEqual(int(planned['guesses']), bound['guesses'])
    self.assertLess(written['hostile_pairs']['largest_ratio'], 1)

  def test_half_of_epsilon_in_ten_minutes(self):
    written = _read('mnist')
    self.assertEqual(written['settings']['training']['dataset'], 'mnist')
    self.assertIsNone(written['settings']['training']['seed'])
    bound = written['one_run']['lower_bound']['epsilon_lower_bound']
    self.assertBetween(bound, 0.5 * written['claimed_epsilon'], 4)
    self.assertEqual(written['claimed_epsilon'], 4)
    self.assertLess(written['seconds'], 600)
    self.assertFalse(written['refuted'])

  def test_half_the_noise_is_refuted(self):
    written = _read('half_the_noise')
    bound = written['one_run']['lower_bound']['epsilon_lower_bound']
    self.assertGreater(bound, written['claimed_epsilon'])
    self.assertLess(bound, written['one_run']['epsilon_of_the_noise_as_added'])
    self.assertTrue(written['refuted'])

  @parameterized.parameters(*_NAMES)
  def test_readme(self, name):
    written = _read(name)
    run = written['one_run']
    bound = run['lower_bound']
    low = audit_report.format_lower_bound
    row = ' | '.join(
      [
        f'| [{name}]({name})',
        f'{written["settings"]["noise_scale"]:g}',
        f'{run["epsilon_of_the_noise_as_added"]:.4g}',
        f'{bound["right"]} of {bound["guesses"]}',
        low(bound['epsilon_lower_bound']),
        low(run['lower_bound_if_gaussian']['epsilon_lower_bound']),
        f'{written["hostile_pairs"]["largest_ratio"]:.6f}',
        f'{written["seconds"]:.0f} |',
      ]
    )
    text = (_RESULTS / 'README.md').read_text()
    self.assertIn(row, text)
    self.assertIn(machine.in_words(written['host']), ' '.join(text.split()))

  @parameterized.parameters(*_NAMES)
  def test_picture_is_that_of_the_files(self, name):
    folder = pathlib.Path(self.create_tempdir().full_path)
    for file in (report.GUESSES, report.SCORES, report.PAIRS):
      (folder / file).write_bytes((_RESULTS / name / file).read_bytes())
    committed = image.imread(_RESULTS / name / report.PICTURE)
    # Its letters decide how high a title is.
    mechanism = _read(name)['settings']['training']['mechanism']
    of_users = [_OF_USERS] if mechanism == 'distributed_users' else []
    report.draw(folder, f'{mechanism}\nof two lines', '4', *of_users)
    drawn = image.imread(folder / report.PICTURE)
    self.assertEqual(drawn.shape, committed.shape)
    # Below the title.
    top = drawn.shape[0] // 6
    difference = np.abs(drawn[top:] - committed[top:]) > 0.1
    self.assertLess(np.mean(difference), 1e-3)


if __name__ == '__main__':
  absltest.main()
