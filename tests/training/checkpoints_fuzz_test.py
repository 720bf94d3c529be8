"""Checkpoints that are damaged, misnamed, or lead elsewhere."""

import os
import shutil
from unittest import mock

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tests import mutations
from tests.training import checkpoints_test
from tvdp_tf.output import files
from tvdp_tf.training import checkpoints


class DamageTest(checkpoints_test.CheckpointsTestCase):
  def setUp(self):
    super().setUp()
    self.save(1, checkpoints_test.state())
    self.path = self.folder / 'round_1'
    self.original = self.path.read_bytes()

  def load_quietly(self):
    with mock.patch.object(checkpoints.logging, 'warning'):
      return self.load()

  def test_any_damage_is_told(self):
    @mutations.quick(150)
    @hypothesis.given(st.data())
    def damage(data):
      damaged = data.draw(mutations.damaged(self.original))
      self.path.write_bytes(damaged)
      loaded = self.load_quietly()
      if damaged == self.original:
        self.assertIsNotNone(loaded)
      else:
        self.assertIsNone(loaded)
        (self.folder / 'round_1.unusable').unlink()

    damage()

  def test_every_bit_counts(self):
    for place in range(0, len(self.original), 7):
      content = bytearray(self.original)
      content[place] ^= 1 << place % 8
      self.path.write_bytes(content)
      self.assertIsNone(self.load_quietly(), place)
      (self.folder / 'round_1.unusable').unlink()

  @parameterized.parameters(*mutations.REPLACEMENTS)
  def test_something_else_in_its_place(self, kind):
    mutations.replace(self.path, kind)
    self.assertIsNone(self.load_quietly())


class NamesTest(checkpoints_test.CheckpointsTestCase):
  @parameterized.parameters(
    *('round_007', 'round_+7', 'round_1_0', 'round_ 9', 'round_\u0669'),
    *('round_-1', 'round_0', 'round_' + '9' * 200),
  )
  def test_what_is_no_checkpoint_is_set_aside(self, name):
    self.save(2, checkpoints_test.state(2.0))
    self.save(3, checkpoints_test.state(3.0))
    for file in (False, True):
      if file:
        (self.folder / name).touch()
      else:
        (self.folder / name).mkdir()
      with mock.patch.object(checkpoints.logging, 'warning'):
        self.assertEqual(self.load().completed, 3)
    # It counts no more as one of the last two.
    self.save(4, checkpoints_test.state(4.0))
    left = {entry for entry in os.listdir(self.folder) if '.' not in entry}
    self.assertContainsSubset({'round_3', 'round_4'}, left)

  @parameterized.parameters('round_', 'round_x', 'round_3.unusable', '3')
  def test_other_names_are_left_alone(self, name):
    (self.folder / name).mkdir()
    self.save(2, checkpoints_test.state())
    self.assertEqual(self.load().completed, 2)
    self.assertTrue((self.folder / name).is_dir())

  def test_folder_is_a_file(self):
    shutil.rmtree(self.folder)
    self.folder.touch()
    for write in ('open', 'save'):
      with self.assertRaises(files.NotWrittenError) as caught:
        if write == 'open':
          self.open()
        else:
          self.save(1, checkpoints_test.state())
      self.assertTrue(mutations.is_one_line(caught.exception))


if __name__ == '__main__':
  absltest.main()
