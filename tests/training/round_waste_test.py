"""What a round of a training must not do again, or more often than needed."""

import collections
import os
import pathlib
import tempfile
from unittest import mock

from absl.testing import absltest
from tensorflow.python.framework import ops  # For what has no public name.

from tests.training import resume_cases
from tvdp_tf.learning import evaluation
from tvdp_tf.training import rounds
from tvdp_tf.training import train as training

_ROUNDS = 6


class RoundWasteTest(absltest.TestCase):
  """Counts between the start of round 3 and that of the last round."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    counts: collections.Counter[str] = collections.Counter()
    cls.seen = []
    run = rounds.Rounds.run

    def noted(self, *arguments):
      cls.seen.append(counts.copy())
      return run(self, *arguments)

    def counted(owner, name):
      original = getattr(owner, name)

      def call(*args, **kwargs):
        counts[name] += 1
        return original(*args, **kwargs)

      return mock.patch.object(owner, name, call)

    folder = pathlib.Path(cls.create_tempdir_of_class(), 'run')
    with (
      counted(os, 'fsync'),
      counted(os, 'replace'),
      counted(ops.Graph, '__init__'),
      counted(evaluation.Evaluator, 'evaluate'),
      mock.patch.object(rounds.Rounds, 'run', noted),
    ):
      training.train(resume_cases.small(rounds=_ROUNDS), folder)

  @classmethod
  def create_tempdir_of_class(cls):
    return cls.enterClassContext(tempfile.TemporaryDirectory())

  def in_the_mean(self, name):
    return (self.seen[-1][name] - self.seen[2][name]) / (_ROUNDS - 3)

  def test_nothing_is_traced_after_the_first_rounds(self):
    self.assertGreater(self.seen[2]['__init__'], 0)
    self.assertEqual(self.in_the_mean('__init__'), 0)

  def test_syncs(self):
    # The ledger's line, its head and their folder; a checkpoint and its folder.
    self.assertEqual(self.in_the_mean('fsync'), 5)

  def test_files_that_are_replaced(self):
    # The ledger's head and the checkpoint; the rows, beside the next round,
    # may be those of a round before.
    self.assertBetween(self.in_the_mean('replace'), 2, 4)

  def test_one_evaluation(self):
    self.assertBetween(self.in_the_mean('evaluate'), 2 / 3, 4 / 3)


if __name__ == '__main__':
  absltest.main()
