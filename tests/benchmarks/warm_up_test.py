"""Warm-up ends when everyone took part, or the time is up."""

import dataclasses
from unittest import mock

from absl.testing import absltest

from benchmarks.harness import warm_up
from tests.benchmarks import fakes

WORK = dataclasses.replace(fakes.WORK, users=40)


def session_of(seconds):
  """A program each of whose rounds takes so long, or says so."""
  session = mock.Mock()
  session.run.side_effect = lambda rounds: [seconds] * rounds
  return session


class WarmUpTest(absltest.TestCase):
  def test_last_user(self):
    last = warm_up.rounds_until_all_took_part(WORK)

    def took_part(rounds):
      cohorts = [WORK.cohort(m).tolist() for m in range(1, rounds + 1)]
      return len({user for cohort in cohorts for user in cohort})

    self.assertEqual(took_part(last), 40)
    self.assertEqual(took_part(last - 1), 39)

  def test_all_of_them(self):
    session = session_of(1e-6)
    warm_up.until_all_took_part(session, WORK)
    run = sum(call.args[0] for call in session.run.call_args_list)
    self.assertEqual(run, warm_up.rounds_until_all_took_part(WORK))

  def test_time_is_up(self):
    session = session_of(1e-6)
    warm_up.until_all_took_part(session, WORK, 0.0)
    session.run.assert_called_once_with(warm_up.ROUNDS)

  def test_slow_rounds_are_no_more_than_there_is_time_for(self):
    session = session_of(4.0)
    # The last of these has a time that is nearly over.
    with mock.patch.object(
      warm_up.time, 'monotonic', side_effect=[0.0, 0.0, 8.0, 12.0]
    ):
      warm_up.until_all_took_part(session, WORK, 10.0)
    numbers = [call.args[0] for call in session.run.call_args_list]
    self.assertEqual(numbers, [warm_up.ROUNDS, 2, 1])


if __name__ == '__main__':
  absltest.main()
