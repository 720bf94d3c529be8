"""SIGKILL of the real program, on both runtimes; `make faults` kills more."""

import pathlib
import random

from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tools import kills, run_outcome
from tvdp_tf.privacy import ledger_audit

_ROUNDS = 6


class KillTest(parameterized.TestCase):
  @parameterized.parameters(
    ('compiled', {'mechanism': 'gradient'}, ['rounds', 'rounds']),
    ('tff', {'mechanism': 'paper'}, ['rounds']),
  )
  def test_killed_run_is_the_uninterrupted_one(self, runtime, changes, phases):
    settings = {**resume_cases.SMALL, **changes}
    settings.update(rounds=_ROUNDS, runtime=runtime, seed=7)
    folder = pathlib.Path(self.create_tempdir().full_path)
    seed = random.randrange(2**32)
    killer = kills.Killer(
      random.Random(seed),
      [f'--{name}={value}' for name, value in settings.items()],
      _ROUNDS,
    )
    # By the program, too: in this process an op has other threads, and on some
    # processors adds up in another order.
    killer.run(folder / 'uninterrupted', [])
    done = killer.run(folder / 'killed', phases)
    with self.subTest(seed=seed, kills=done):
      self.assertEmpty(
        run_outcome.read(folder / 'killed').differences(
          run_outcome.read(folder / 'uninterrupted')
        )
      )
      audit = ledger_audit.audit(folder / 'killed' / 'ledger.jsonl')
      self.assertTrue(audit.head_verified)
      self.assertEqual(audit.rounds, _ROUNDS)
      # No program said anything but what it had to.
      for kill in done:
        self.assertNotIn('Traceback', kill.stderr)
      said = done[-1].stderr.splitlines()
      if not done[-2].checkpoint:
        # Killed between the first round's record and its checkpoint.
        self.assertIn('no checkpoint can be used', said.pop(0))
      self.assertEmpty(said)


if __name__ == '__main__':
  absltest.main()
