"""A privacy budget, kept on disk, for a custom training loop in any framework.

  with tvdp_tf.Budget(
    'ledger.jsonl', epsilon=3.0, delta=1e-5, clients=100, unit='user',
    sensitivity='2 * clip = 2.0',
  ) as budget:
    for m in range(1, rounds + 1):
      budget.spend(m, clients, noise_multiplier=z)  # Before anything leaves.
      ...
      log(budget.metrics())

The budget is kept in a `PrivacyLedger`, which `audit_ledger` can recompute
later. The loop itself must add the noise that the noise multiplier states.
"""

import dataclasses
import hashlib
import os
import secrets
from collections.abc import Callable, Iterable

from absl import logging

from tvdp_tf import _validate
from tvdp_tf.privacy import ledger, statement


class Budget:
  """Tracks what each client may spend and has spent in a custom training loop.

  Every client is charged for the releases that it takes part in, without
  amplification by sampling. Noise may depend on earlier releases, because
  `spend` is a privacy filter.
  """

  def __init__(
    self,
    path: str | os.PathLike,
    *,
    epsilon: float,
    delta: float,
    clients: int,
    unit: str,
    sensitivity: str,
    adjacency: str = 'replace-one',
    sensitivity_proven: bool = False,
    alarm_at: float = 0.8,
    on_alarm: Callable[[str], None] = logging.warning,
  ):
    """Creates the ledger, or continues an existing one.

    Args:
      path: The file of the ledger; its folder must exist.
      epsilon: The budget of each client, > 0.
      delta: In (0, 1).
      clients: The number of clients; they are numbered from 0.
      unit: What is protected: 'example' or 'user'.
      sensitivity: The sensitivity that noise multipliers are relative to, in
        words with numbers, for the record.
      adjacency: One of `sensitivity.ADJACENCIES`, of that unit.
      sensitivity_proven: Whether you vouch for the sensitivity. Only then can
        an audit say HOLDS.
      alarm_at: The share of epsilon that triggers the alarm, in (0, 1].
      on_alarm: Called once, with a message, when a client has spent that much.

    Raises:
      ValueError: If an argument is out of its range.
      LedgerError: If the ledger is damaged, open elsewhere, or a different
        ledger.
    """
    self._alarm_at = _validate.rate('alarm_at', alarm_at)
    if not callable(on_alarm):
      raise ValueError(f'on_alarm must be a function, got {on_alarm!r}')
    self._on_alarm = on_alarm
    _validate.positive('epsilon', epsilon)
    header = ledger.LedgerHeader(
      unit=unit,
      adjacency=adjacency,
      target_epsilon=epsilon,
      delta=delta,
      clients=clients,
    )
    run = ledger.LedgerRun(
      mechanism='a loop of its own',
      sensitivity=sensitivity,
      sensitivity_proven=sensitivity_proven,
      target_epsilon=epsilon,
      seeded=False,
      noise='as the loop draws it',
      settings_digest=hashlib.sha256(repr(header).encode()).hexdigest(),
    )
    run = dataclasses.replace(
      run, sensitivity=ledger.claimed(sensitivity, 'its author')
    )
    if os.path.exists(path):
      self._ledger = ledger.PrivacyLedger.open(path, header)
      try:
        self._continue(run, sensitivity, os.fspath(path))
      except BaseException:
        self.close()
        raise
    else:
      self._ledger = ledger.PrivacyLedger.create(path, header, run)
    self._alarmed = False

  def _continue(
    self, run: ledger.LedgerRun, sensitivity: str, path: str
  ) -> None:
    """Continues the run of an existing ledger.

    Args:
      run: The expected run.
      sensitivity: Its sensitivity as written in older ledgers, which do not say
        who claims it.
      path: Path of the ledger.

    Raises:
      LedgerError: If the ledger has a different run.
    """
    if not self._ledger.runs:  # It was killed before the run had joined.
      self._ledger.join(run)
      return
    found = self._ledger.runs[0]
    if (
      found.sensitivity not in (sensitivity, run.sensitivity)
      or found.sensitivity_proven != run.sensitivity_proven
    ):
      raise ledger.LedgerError(
        f'{path}: sensitivity must be {found.sensitivity!r} (proven:'
        f' {found.sensitivity_proven}), as on record, got {run.sensitivity!r}'
        f' (proven: {run.sensitivity_proven})'
      )

  def __enter__(self) -> 'Budget':
    return self

  def __exit__(self, *exc_info):
    self.close()

  def close(self):
    """Closes the file."""
    self._ledger.close()

  def affordable_clients(
    self,
    clients: Iterable[int],
    noise_multiplier: float,
    releases_per_client: int = 1,
  ) -> list[int]:
    """Those of `clients` who can afford such releases; arguments as `spend`."""
    return self._ledger.affordable_clients(
      clients, noise_multiplier, releases_per_client
    )

  def spend(
    self,
    round_number: int,
    clients: Iterable[int],
    noise_multiplier: float,
    releases_per_client: int = 1,
  ) -> None:
    """Records releases; call it before anything is released.

    A repetition counts again, because the first attempt may have been released.

    Args:
      round_number: Number of the round, from 1.
      clients: Distinct numbers of the clients that take part, [k].
      noise_multiplier: Standard deviation of the Gaussian noise divided by the
        sensitivity: of each client's own noise, or of the noise on their sum.
      releases_per_client: The number of releases of each client.

    Raises:
      ValueError: If an argument is out of its range.
      BudgetExceededError: If a client's budget would be exceeded. Nothing is
        recorded, and you must not release anything.
      LedgerError: If the ledger cannot be written.
    """
    try:
      numbers = list(clients)
    except TypeError:
      raise ValueError(
        f'clients must be the numbers of clients, got {clients!r}'
      ) from None
    # Noise that is drawn elsewhere never counts as a repeat.
    fresh = [
      ledger.release_id(secrets.token_bytes(32), b'', b'') for _ in numbers
    ]
    self._ledger.record(
      round_number, numbers, fresh, noise_multiplier, releases_per_client
    )
    spent, target = self.delivered_epsilon, self._ledger.header.target_epsilon
    if not self._alarmed and spent >= self._alarm_at * target:
      self._alarmed = True
      self._on_alarm(
        f'privacy budget: epsilon = {statement.format_epsilon(spent)} of'
        f' {target:g} is spent after round {round_number}'
      )

  @property
  def delivered_epsilon(self) -> float:
    """The epsilon of the client that has spent the most, rounded up."""
    return self._ledger.worst_epsilon()

  @property
  def remaining_epsilon(self) -> float:
    """Target minus delivered; for display only: epsilons do not add up."""
    return max(0.0, self._ledger.header.target_epsilon - self.delivered_epsilon)

  def metrics(self) -> dict[str, float]:
    """Delivered and remaining epsilon, by name, for a log or TensorBoard."""
    return {
      'delivered_epsilon': self.delivered_epsilon,
      'remaining_epsilon': self.remaining_epsilon,
    }
