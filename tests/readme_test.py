"""The README's snippets run; that for TFF is in `federated.drop_in_test`."""

import contextlib
import functools
import io
import pathlib
import re
from unittest import mock

from absl.testing import absltest, parameterized

import tvdp_tf
from tvdp_tf.learning import datasets, models
from tvdp_tf.output import files

_README = pathlib.Path(__file__).parents[1] / 'README.md'


class ReadmeTest(parameterized.TestCase):
  # As it stands, which takes fifty rounds, and with so few that they are quick.
  @parameterized.parameters(({'rounds': 2}, r'0\.\d'), ({}, r'0\.[89]'))
  def test_fit(self, changes, accuracy):
    (snippet,) = re.findall(
      r'```python\n(run = .*?)```', _README.read_text(), re.DOTALL
    )
    self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
    dataset = datasets.load('digits')
    names = {
      'tvdp_tf': mock.Mock(fit=functools.partial(tvdp_tf.fit, **changes)),
      'model': models.build_mlp((8, 8, 1), 10, 0),
      'x': dataset.train_features,
      'y': dataset.train_labels,
      'xt': dataset.test_features,
      'yt': dataset.test_labels,
    }
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(snippet, names)
    self.assertRegex(printed.getvalue(), rf'^HOLDS {accuracy}')

  def test_number_of_faults_is_that_of_the_results(self):
    (said,) = re.findall(
      r'\[(\d+) faults\]\(results/faults\)', _README.read_text()
    )
    rows = files.read_csv(_README.with_name('results') / 'faults/faults.csv')
    self.assertEqual(len(rows), int(said))

  def test_train_then_plan_and_account(self):
    snippets = re.findall(
      r'```python\n(import tvdp_tf\n.*?)```', _README.read_text(), re.DOTALL
    )
    self.assertLen(snippets, 2)
    train, account = snippets
    self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(train, {})
    self.assertRegex(printed.getvalue(), r'^0\.[6-9]\d* True every local step')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(account, {})
    plan, planned, epsilon, holds = printed.getvalue().splitlines()
    self.assertRegex(plan, r'^[01]\.\d+ \d+$')
    self.assertEqual(planned, 'True')
    self.assertBetween(float(epsilon), 5, 20)
    self.assertEqual(holds, 'True')


if __name__ == '__main__':
  absltest.main()
