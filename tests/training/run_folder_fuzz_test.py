"""Files of a run's folder, damaged or edited: one line, or no change."""

import json
import pathlib

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tests import mutations
from tests.training import run_folder_test
from tvdp_tf import errors
from tvdp_tf.training import run_folder

_CONFIG = run_folder_test.config(
  settings={'theta': 0.9, 'seed': None, 'rounds': 3, 'model': 'mlp'},
  resolved={
    **run_folder_test.RESOLVED,
    'examples_per_user': [3, 4],
    'schedule': {},
  },
)


class ConfigTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.run_dir = pathlib.Path(self.create_tempdir().full_path, 'run')
    run_folder.create(
      self.run_dir, _CONFIG, run_folder_test.HEADER, run_folder_test.RUN
    )
    self.path = self.run_dir / run_folder.CONFIG
    self.written = self.path.read_bytes()

  def resume(self):
    """What `train --resume` does with the configuration."""
    config = run_folder.config_to_resume(self.run_dir, _CONFIG['settings'])
    run_folder.check_unchanged(
      self.run_dir, config, 'versions', _CONFIG['versions']
    )
    now = {
      **_CONFIG['resolved'],
      **{
        name: config['resolved'][name]
        for name in ('public_seed', 'partition_seed', 'run_id')
      },
    }
    run_folder.check_unchanged(self.run_dir, config, 'resolved', now)
    return config

  @mutations.quick(400)
  @hypothesis.given(st.data())
  def test_one_line_or_the_same(self, data):
    content = data.draw(
      mutations.damaged(self.written)
      | mutations.edited_json(json.loads(self.written))
    )
    self.path.write_bytes(content)
    try:
      config = self.resume()
    except errors.UsageError as error:
      self.assertTrue(mutations.is_one_line(error), error)
      return
    for name, part in _CONFIG.items():
      self.assertEqual(repr(config[name]), repr(part))

  @mutations.quick(200)
  @hypothesis.given(st.data())
  def test_a_run_is_finished_only_if_it_says_so(self, data):
    statement = {'epsilon': 1.0, 'rounds': 3, 'finished': False}
    text = json.dumps(statement).encode()
    content = data.draw(
      mutations.damaged(text) | mutations.edited_json(statement)
    )
    (self.run_dir / run_folder.PRIVACY).write_bytes(content)
    if run_folder.is_finished(self.run_dir):
      self.assertIs(json.loads(content)['finished'], True)

  @parameterized.parameters(*mutations.REPLACEMENTS)
  def test_something_else_in_its_place(self, kind):
    for name in (run_folder.CONFIG, run_folder.PRIVACY):
      mutations.replace(self.run_dir / name, kind)
    with self.assertRaises(errors.UsageError) as caught:
      self.resume()
    self.assertTrue(mutations.is_one_line(caught.exception))
    self.assertFalse(run_folder.is_finished(self.run_dir))

  def test_deep_nesting_at_every_depth(self):
    for depth in range(900, 1000):
      config = json.dumps(_CONFIG).replace('0.9', '[' * depth + ']' * depth)
      self.path.write_text(config)
      with self.assertRaises(errors.UsageError) as caught:
        self.resume()
      self.assertTrue(mutations.is_one_line(caught.exception))


if __name__ == '__main__':
  absltest.main()
