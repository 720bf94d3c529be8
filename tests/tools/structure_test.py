"""The figures of the code's structure."""

import pathlib

from absl.testing import absltest

from tools import structure

_SIX = [f'value_{i} = {i}' for i in range(6)]


class StructureTest(absltest.TestCase):
  def test_lines_that_stand_twice(self):
    texts = {'a.py': [*_SIX, 'end'], 'b.py': ['', *(f' {s}' for s in _SIX)]}
    self.assertEqual(structure._repeated(texts), 12)
    texts['b.py'].pop()
    self.assertEqual(structure._repeated(texts), 0)

  def test_names_of_mechanisms(self):
    path = pathlib.Path(self.create_tempdir().full_path, 'a.py')
    for text, expected in (
      ("if name == 'gradient': pass", True),
      ("'''Of the gradient.'''\nx = 'the gradient'  # gradient", False),
    ):
      path.write_text(text)
      self.assertEqual(structure._knows_a_mechanism(path), expected)

  def test_floors(self):
    arrows = [['a', 'b', 1], ['b', 'c', 1], ['a', 'c', 2], ['d', 'c', 1]]
    self.assertEqual(
      structure._floors(arrows), {'a': 2, 'b': 1, 'c': 0, 'd': 1}
    )
    arrows.append(['c', 'a', 1])  # A circle ends, too.
    self.assertLen(structure._floors(arrows), 4)

  def test_picture_and_table(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    figures = {
      **dict.fromkeys(structure._WORDS, 1234),
      'rooms': {'a': 10, 'tvdp_tf/b': 20},
      'arrows': [['a', 'tvdp_tf/b', 3]],
    }
    structure.files.write_json(folder / 'after.json', figures)
    structure.draw(figures, folder / 'after.png')
    self.assertGreater((folder / 'after.png').stat().st_size, 1000)
    self.assertIn('| 1,234 |', structure.report(folder))


if __name__ == '__main__':
  absltest.main()
