"""A shared ledger and budget for several runs on the same users' data.

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

# Fields of the header that must be equal in all runs that share a ledger.
_COMMON = (
  *('unit', 'adjacency', 'accounting', 'sampling', 'delta', 'clients'),
  *('enforced', 'data', 'partition_seed', 'units'),
)


@dataclasses.dataclass(frozen=True)
class SharedLedger:
  """The path of a shared ledger, and the budget of all its runs.

  Attributes:
    path: The file, which is created if it is missing; its folder must exist.
    epsilon: What a client may spend in all runs together. None for the value in
      the ledger or, for a new ledger, the target of its first run.

  Raises:
    ValueError: If `epsilon` is not a finite number > 0.
  """

  path: pathlib.Path
  epsilon: float | None = None

  def __post_init__(self):
    if self.epsilon is not None:
      _validate.positive('ledger_epsilon', self.epsilon)

  def check(self, settings: settings_lib.TrainingSettings) -> None:
    """Checks that a run with these settings can share a ledger.

    Raises:
      UsageError: If it cannot, whatever the ledger holds.
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
      # The times of writes reveal how many clients were drawn.
      mode = self.path.parent.stat().st_mode & 0o777
      if mode & 0o077:
        raise errors.UsageError(
          'ledger must be in a folder that nobody else may open (chmod 700),'
          ' because with participation poisson its times reveal the secret'
          f' draws, got {str(self.path)!r} in a folder of mode {mode:o}'
        )

  def find(self) -> ledger_lib.LedgerHeader | None:
    """Returns the header of the ledger, if there is one.

    Raises:
      UsageError: If the ledger has another `epsilon`.
      LedgerError: If it is damaged, or another process has exclusive access.
    """
    if not self.path.exists():
      return None
    with ledger_lib.PrivacyLedger.open(self.path, shared=True) as ledger:
      found = ledger.header
    if self.epsilon is not None and self.epsilon != found.target_epsilon:
      raise errors.UsageError(
        f'ledger_epsilon must be {found.target_epsilon!r}, as in the ledger'
        f' {str(self.path)!r}, or must not be given, got {self.epsilon!r}'
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
    """Returns the header of the ledger, found or to be created.

    Args:
      own: The header if the run had its own ledger, with `data`.
      found: The result of `find`.
      noise_multipliers: Planned noise multipliers of the run's rounds. They are
        only used with secret sampling, for the Renyi order of a new ledger.
      sampling_rate: The run's sampling rate.
      delta: The delta that the run's noise is calibrated for, slightly below
        that of `own`.
      distance: `noise_distance` of a run that has a guarantee; 0 for others.

    Raises:
      UsageError: If the run cannot join the ledger that was found, if its
        target is too small for a ledger of several runs, or if the ledger's
        target is too large for its noise.
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
        f'ledger_epsilon must be smaller, got {total!r}: the noise that is'
        ' drawn is too far from Gaussian for it'
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
  """Describes in a sentence what the runs of a shared ledger have spent."""
  try:
    with ledger.locked():  # Includes other runs' records.
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
      'epsilon counts this run alone; the shared ledger could not be read, so'
      ' what all its runs have disclosed together is not known here'
    )
  if not (is_proven and ledger.header.enforced):
    cause = (
      'the noise that they draw is too far from Gaussian for it'
      if ledger.header.enforced
      else 'it was not enforced'
    )
    return (
      f'epsilon counts this run alone, run {ledger.run} of a shared ledger:'
      " what all its runs disclose together is not bounded by the ledger's"
      f' epsilon = {number(total)}, because {cause}'
    )
  return (
    f'epsilon counts this run alone, run {ledger.run} of a shared ledger: what'
    ' all its runs disclose about a client together is bounded by epsilon ='
    f' {number(total)}; so far {number(float(spent))} is spent, in {runs}'
    ' runs; every client is assumed to have the same data in all of them'
  )
