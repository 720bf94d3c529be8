"""Warm-up ends when everyone took part, or the time is up."""

import dataclasses
from unittest import mock

from absl.testing import absltest

from benchmarks.harness import warm_up
from tests.benchmarks import fakes

WORK = dataclasses.replace(fakes.WORK, users=40)


class WarmUpTest(absltest.TestCase):
  def test_last_user(self):
    last = warm_up.rounds_until_all_took_part(WORK)

    def took_part(rounds):
      cohorts = [WORK.cohort(m).tolist() for m in range(1, rounds + 1)]
      return len({user for cohort in cohorts for user in cohort})

    self.assertEqual(took_part(last), 40)
    self.assertEqual(took_part(last - 1), 39)

  def test_all_of_them(self):
    session = mock.Mock()
    warm_up.until_all_took_part(session, WORK)
    run = sum(call.args[0] for call in session.run.call_args_list)
    self.assertEqual(run, warm_up.rounds_until_all_took_part(WORK))

  def test_time_is_up(self):
    session = mock.Mock()
    warm_up.until_all_took_part(session, WORK, 0.0)
    session.run.assert_called_once_with(warm_up.ROUNDS)


if __name__ == '__main__':
  absltest.main()
