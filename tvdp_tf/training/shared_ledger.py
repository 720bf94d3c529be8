"""One ledger, and one budget, for several runs on the same users' data.

Runs are counted together correctly only if a user's number stands for the same
user in all of them. So the ledger's header states, in public, which data the
users have and how these were distributed. A run that joins must distribute them
in the same way.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from tvdp_tf import _validate, errors
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.privacy import spending, statement
from tvdp_tf.training import settings as settings_lib

# What runs that share a ledger must have in common, of its header.
_COMMON = (
  *('unit', 'adjacency', 'accounting', 'sampling', 'delta', 'clients'),
  *('enforced', 'data', 'partition_seed', 'units'),
)


@dataclasses.dataclass(frozen=True)
class SharedLedger:
  """Where a shared ledger is, and what all its runs may spend.

  Attributes:
    path: The file; its folder must exist. Created if it is missing.
    epsilon: What a client may spend in all runs together; None for what the
      ledger says, or for a new one what its first run may spend.

  Raises:
    ValueError: If `epsilon` is not a finite number > 0.
  """

  path: pathlib.Path
  epsilon: float | None = None

  def __post_init__(self):
    if self.epsilon is not None:
      _validate.positive('ledger_epsilon', self.epsilon)

  def check(self, settings: settings_lib.TrainingSettings) -> None:
    """Checks what the run's settings must be.

    Raises:
      UsageError: If the run cannot share a ledger, whatever the ledger holds.
    """
    if settings.seed is not None:
      raise errors.UsageError(
        f'ledger must be given without --seed, got --seed={settings.seed}: '
        'noise that is reproducible protects nobody'
      )
    if self.epsilon is not None and self.epsilon < settings.epsilon:
      raise errors.UsageError(
        'ledger_epsilon must be at least --epsilon, '
        f'{settings.epsilon!r}, got {self.epsilon!r}'
      )
    if not self.path.parent.is_dir():
      raise errors.UsageError(
        f'ledger must be in a folder that exists, got {str(self.path)!r}'
      )
    if settings.participation == 'poisson':
      # When it was written tells how many were drawn.
      mode = self.path.parent.stat().st_mode & 0o777
      if mode & 0o077:
        raise errors.UsageError(
          'ledger must be in a folder that nobody else may open (chmod 700), as'
          ' with participation poisson its times tell of secret draws, got'
          f' {str(self.path)!r} in one of mode {mode:o}'
        )

  def find(self) -> ledger_lib.LedgerHeader | None:
    """The header of the ledger, if there is one.

    Raises:
      UsageError: If it was given another `epsilon`.
      LedgerError: If it is damaged, or somebody has it for himself.
    """
    if not self.path.exists():
      return None
    with ledger_lib.PrivacyLedger.open(self.path, shared=True) as ledger:
      found = ledger.header
    if self.epsilon is not None and self.epsilon != found.target_epsilon:
      raise errors.UsageError(
        f'ledger_epsilon must be {found.target_epsilon!r}, as of the ledger '
        f'{str(self.path)!r}, or not given, got {self.epsilon!r}'
      )
    return found

  def header(
    self,
    own: ledger_lib.LedgerHeader,
    found: ledger_lib.LedgerHeader | None,
    noise_multipliers: Sequence[float],
    sampling_rate: float,
    delta: float,
    distance: float,
  ) -> ledger_lib.LedgerHeader:
    """The header of the ledger, found or to be created.

    Args:
      own: What the header would be were the run alone, with `data`.
      found: Of `find`.
      noise_multipliers: Of the run's rounds, as planned; used with secret
        sampling alone, for the Renyi order of a new ledger.
      sampling_rate: The run's.
      delta: What the run's noise was set for: a bit below that of `own`.
      distance: `noise_distance` of a run that promises something; 0 of others.

    Raises:
      UsageError: If the run cannot join the ledger that was found, or its
        target is too small for a ledger of several runs, or the ledger's too
        large for its noise.
    """
    if found is not None:
      for name in _COMMON:
        there, here = getattr(found, name), getattr(own, name)
        if there != here:
          raise errors.UsageError(
            f'ledger must have {name} {here!r}, as this run has, got '
            f'{there!r} in {str(self.path)!r}'
          )
      return found
    total = self.epsilon or own.target_epsilon
    if not spending.is_gaussian_enough(own.delta, total, distance):
      raise errors.UsageError(
        'ledger_epsilon must be smaller, for what is drawn is not Gaussian as'
        f' far out as this needs it, got {total!r}'
      )
    order = None
    if own.sampling == 'poisson':
      try:
        order = ledger_lib.renyi_order(
          noise_multipliers, sampling_rate, total, delta
        )
      except ValueError as error:
        raise errors.UsageError(str(error)) from error
    return dataclasses.replace(own, target_epsilon=total, renyi_order=order)


def together(ledger: ledger_lib.PrivacyLedger) -> str:
  """What the runs of a shared ledger have spent so far, in a sentence."""
  try:
    with ledger.locked():  # With what the others have recorded.
      number = statement.format_epsilon
      spent, total = ledger.epsilons().max(), ledger.header.target_epsilon
      runs = len(ledger.runs)
      is_proven = spending.is_gaussian_enough(
        ledger.header.delta,
        total,
        sum(run.noise_distance for run in ledger.runs),
      )
  except ledger_lib.LedgerError:
    return (
      'epsilon counts this run alone, of a shared ledger that could not be '
      'read: what all its runs have told together is not known here'
    )
  if not (is_proven and ledger.header.enforced):
    cause = (
      'what they draw is not Gaussian as far out as it needs'
      if ledger.header.enforced
      else 'it was not enforced'
    )
    return (
      f'epsilon counts this run alone, run {ledger.run} of a shared ledger: '
      "what all its runs tell together is not bounded by the ledger's epsilon ="
      f' {number(total)}, for {cause}'
    )
  return (
    f'epsilon counts this run alone, run {ledger.run} of a shared ledger: what '
    'all its runs tell of a client together is bounded by epsilon = '
    f'{number(total)}; so far {number(float(spent))} is spent, in {runs} runs;'
    " every client's data are taken to have been the same in all of them"
  )
