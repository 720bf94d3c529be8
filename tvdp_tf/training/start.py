"""Prepares a run before round 1: its data, noise, folder and ledger."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import pathlib
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tvdp_tf import errors, mechanisms
from tvdp_tf.learning import discrete_gaussian
from tvdp_tf.mechanisms import statements
from tvdp_tf.privacy import ledger as ledger_lib
from tvdp_tf.privacy import noise_distance, spending
from tvdp_tf.privacy import statement as statement_lib
from tvdp_tf.training import federation, rounds, run_folder, shared_ledger
from tvdp_tf.training import selection as selection_lib
from tvdp_tf.training import settings as settings_lib

_RECORDED_VERSIONS = (
  'tensorflow-federated',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
)


def _versions() -> dict[str, str]:
  versions = {
    name: importlib.metadata.version(name) for name in _RECORDED_VERSIONS
  }
  return {'tensorflow': tf.__version__, **versions}


# In the configuration, how many examples are dealt out to protected users.
_EXAMPLES = 'examples'


def _resolved(
  plan: mechanisms.Mechanism, fed: federation.Federation
) -> dict[str, Any]:
  """Returns the values that the settings resolve to."""
  resolved: dict[str, Any] = {
    'public_seed': fed.public_seed,
    'partition_seed': fed.partition_seed,
    'noise': plan.noise,
  }
  if plan.settings.seed is not None and plan.noise == noise_distance.DISCRETE:
    resolved['discrete_noise_stream'] = discrete_gaussian.STREAM
  if plan.header.unit == 'example':
    # If users are protected, so are their numbers of examples.
    resolved['examples_per_user'] = fed.examples_per_user.tolist()
  elif plan.settings.number_decides:
    # Another number of examples would be dealt out to other users.
    resolved[_EXAMPLES] = len(fed.dataset.train_labels)
  kind, _, path = plan.settings.model.partition(':')
  if kind == 'keras':
    content = pathlib.Path(path).read_bytes()
    resolved['model_sha256'] = hashlib.sha256(content).hexdigest()
  if kind == federation.OWN:
    # Digests of data would reveal something about them.
    resolved['model_weights'] = [list(w.shape) for w in fed.initial_weights]
  if fed.features_sha256:
    resolved['features_sha256'] = fed.features_sha256
  if plan.schedule is not None:
    resolved['schedule'] = plan.schedule.to_json_dict()
  return resolved


def _build(
  settings: settings_lib.TrainingSettings,
  public_seed: int | None,
  partition_seed: int | None,
  progress: bool,
  own: federation.Own | None,
) -> tuple[
  mechanisms.Mechanism,
  federation.Federation,
  tff.learning.templates.LearningProcess,
]:
  try:
    fed = federation.assemble(
      settings,
      public_seed,
      partition_seed=partition_seed,
      progress=progress,
      own=own,
    )
    plan = mechanisms.build(settings, fed)
    # Refuses a model that noise cannot hide before the folder is created.
    return plan, fed, rounds.build_process(plan, fed)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error


def _header(
  plan: mechanisms.Mechanism,
  fed: federation.Federation,
  ledger: shared_ledger.SharedLedger | None,
  found: ledger_lib.LedgerHeader | None,
  resolved: Mapping[str, Any],
) -> ledger_lib.LedgerHeader:
  """Returns the header of the run's ledger, its own or a shared one."""
  own = plan.header
  assert fed.partition_seed is not None
  # If users are protected, so are their numbers of examples.
  sizes = fed.examples_per_user.tolist() if own.unit == 'example' else []
  data_on_record = functools.partial(
    federation.data_on_record, plan.settings, fed.partition_seed
  )
  data = data_on_record(sizes)
  # Ledgers of earlier versions do not have the number that is dealt out.
  if _EXAMPLES in resolved and not (found and found.data == data):
    data = data_on_record([resolved[_EXAMPLES]])
  own = dataclasses.replace(
    own,
    data=data,
    partition_seed=fed.partition_seed,
    units=plan.units,
  )
  if ledger is None:
    return dataclasses.replace(own, renyi_order=_renyi_order(plan, found))
  planned = plan.planned_multipliers if own.sampling == 'poisson' else ()
  _, is_proven = plan.sensitivity_on_record
  return ledger.header(
    own,
    found,
    planned,
    plan.settings.sampling_rate,
    plan.delta,
    plan.noise_distance if is_proven else 0.0,
  )


def _renyi_order(
  plan: mechanisms.Mechanism, found: ledger_lib.LedgerHeader | None
) -> float | None:
  """Returns the Renyi order of the run's own ledger, fixed before round 1.

  An interrupted run releases rounds again, so its noise depends on when it is
  interrupted. Constant noise does not, and needs no fixed order.

  Args:
    plan: The run's mechanism.
    found: The header of its ledger, if the run is resumed. Headers of older
      versions have no order.

  Returns:
    The order; None if none is needed, or if none fits the plan.
  """
  own = plan.header
  if own.sampling != 'poisson' or not own.enforced:
    return None
  planned = plan.planned_multipliers
  if len({*planned}) < 2:
    return None
  if found is not None:
    return found.renyi_order
  rate = plan.settings.sampling_rate
  try:
    order = ledger_lib.renyi_order(
      planned, rate, own.target_epsilon, plan.delta
    )
  except ValueError:
    return None
  book = spending.RenyiSpending(1, own.target_epsilon, plan.delta, order)
  for multiplier in planned:
    # Recorded noise is rounded differently.
    book.record([], [multiplier * (1 - 1e-12)], rate=rate)
  return order if book.worst_epsilon() <= own.target_epsilon else None


def _check_room(
  plan: mechanisms.Mechanism, ledger: shared_ledger.SharedLedger
) -> None:
  """Checks that the ledger's budget covers a client's first round.

  Raises:
    UsageError: If it covers nobody's.
  """
  if not plan.header.enforced or plan.schedule is None:
    return
  first = plan.round(
    1, plan.fed.participation.cohort(1), plan.schedule.initial_stddev
  )
  secret = plan.header.sampling == 'poisson'
  clients = [0] if secret else first.clients.tolist()
  rate = plan.settings.sampling_rate if secret else None
  with ledger_lib.PrivacyLedger.open(ledger.path, shared=True) as there:
    for client, multiplier in zip(
      clients, first.noise_multipliers.tolist(), strict=False
    ):
      if np.isfinite(multiplier) and there.affordable(
        client, **plan.amounts(multiplier), sampling_rate=rate
      ):
        return
    spent = statement_lib.format_epsilon(float(there.epsilons().max()))
    total = statement_lib.format_epsilon(there.header.target_epsilon)
  raise errors.UsageError(
    'ledger must have room for the first round of this run, got '
    f'{str(ledger.path)!r}, whose runs have spent epsilon = {spent} of {total}'
  )


def _run_id(config: Mapping[str, Any]) -> str:
  """Returns a random id; with a seed, it is reproducible like the whole run."""
  if config['settings']['seed'] is None:
    return secrets.token_hex(16)
  return run_folder.digest(config).hex()[:32]


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A run that is ready to start or to resume.

  Attributes:
    plan: The run's mechanism.
    fed: The users and their data.
    process: Runs a round.
    config: The content of its `config.json`.
    header: The header of its ledger.
    on_record: What the ledger records about it.
    found: Whether the ledger existed already.
  """

  plan: mechanisms.Mechanism
  fed: federation.Federation
  process: tff.learning.templates.LearningProcess
  config: dict[str, Any]
  header: ledger_lib.LedgerHeader
  on_record: ledger_lib.LedgerRun
  found: bool


def _prepare(
  settings: settings_lib.TrainingSettings,
  ledger: shared_ledger.SharedLedger | None,
  found: ledger_lib.LedgerHeader | None,
  selection: selection_lib.Selection | None,
  then: Mapping[str, Any] | None = None,
  progress: bool = False,
  own: federation.Own | None = None,
) -> Prepared:
  """Deals out the data, and calibrates the noise.

  Args:
    settings: The run's settings.
    ledger: The ledger that the run shares with others, if it does.
    found: The header of that ledger, or of the run's own, if it exists.
    selection: How the published run is selected, if it is one of several.
    then: The `resolved` part of the configuration of a run to resume.
    progress: As for `train`.
    own: As for `train`.
  """
  public_seed = partition_seed = None
  if then is not None:
    public_seed, partition_seed = then['public_seed'], then['partition_seed']
  elif found is not None:
    partition_seed = found.partition_seed
  elif selection is not None:
    partition_seed = selection.partition_seed
  plan, fed, process = _build(
    settings, public_seed, partition_seed, progress, own
  )
  if plan.schedule is not None and (warning := plan.schedule.warning()):
    logging.warning(warning)
  if plan.is_sound and settings.seed is None and not plan.reaches_far_enough:
    logging.warning(
      'the privacy statement will not hold, use a smaller epsilon: %s',
      statements.cut_off(plan),
    )
  config = {
    'settings': dataclasses.asdict(settings),
    'resolved': _resolved(plan, fed),
    'versions': _versions(),
  }
  if then is not None and _EXAMPLES not in then:  # Of an earlier version.
    config['resolved'].pop(_EXAMPLES, None)
  run_id = _run_id(config) if then is None else then['run_id']
  config['resolved'] |= {
    'run_id': run_id,
    'shared_ledger': ledger is not None,
  }
  header = _header(plan, fed, ledger, found, config['resolved'])
  if header.enforced and header.target_epsilon <= plan.header.target_epsilon:
    # The order of a ledger with a larger target does not fit this run's target.
    plan.renyi_order = header.renyi_order
  return Prepared(
    plan,
    fed,
    process,
    config,
    header,
    plan.ledger_run(
      run_folder.digest(config), run_id, selection.words if selection else ''
    ),
    found is not None,
  )


@contextlib.contextmanager
def _held_signals() -> Iterator[None]:
  """Delays Ctrl-C and SIGTERM until the end of the block."""
  if threading.current_thread() is not threading.main_thread():
    yield  # Only the main thread gets signals.
    return
  came: list[int] = []

  def note(signal_number: int, frame: object) -> None:
    del frame
    came.append(signal_number)

  handlers = {
    number: signal.signal(number, note)
    for number in (signal.SIGINT, signal.SIGTERM)
    if callable(signal.getsignal(number))
  }
  try:
    yield
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
    if came:
      signal.raise_signal(came[0])


def begun(
  settings: settings_lib.TrainingSettings,
  ledger: shared_ledger.SharedLedger | None,
  output_dir: pathlib.Path,
  selection: selection_lib.Selection | None,
  progress: bool,
  own: federation.Own | None,
  stack: contextlib.ExitStack,
) -> Prepared:
  """Starts a run: creates its folder, and records it; nothing is released yet.

  If the block of `stack` fails before the first release, the folder is removed
  at the end of the block.
  """
  while True:
    found = None if ledger is None else ledger.find()
    start = _prepare(
      settings, ledger, found, selection, progress=progress, own=own
    )
    if ledger is not None and start.found:
      _check_room(start.plan, ledger)
    path = None if ledger is None else ledger.path
    try:
      # No interrupt between creating the folder and arranging its removal.
      with _held_signals():
        run_folder.create(
          output_dir, start.config, start.header, start.on_record, path
        )
        path = path or output_dir / run_folder.LEDGER
        stack.enter_context(_removed_if_nothing_follows(output_dir, path))
      return start
    except ledger_lib.LedgerError:
      # Another run has created the ledger meanwhile: retry with its seed.
      if start.found or ledger is None or not ledger.path.exists():
        raise


def gone_on(
  settings: settings_lib.TrainingSettings,
  ledger: shared_ledger.SharedLedger | None,
  output_dir: pathlib.Path,
  config: Mapping[str, Any],
  progress: bool,
  own: federation.Own | None,
) -> Prepared:
  """Prepares to resume the run in the folder, if nothing has changed."""
  run_folder.check_unchanged(output_dir, config, 'versions', _versions())
  then = config['resolved']
  if then['shared_ledger'] != (ledger is not None):
    given = 'given' if then['shared_ledger'] else 'not given'
    raise errors.UsageError(
      f'ledger must be {given}, as when the run in {str(output_dir)!r} began'
    )
  found = (
    ledger_lib.read_header(output_dir / run_folder.LEDGER)
    if ledger is None
    else ledger.find()
  )
  start = _prepare(settings, ledger, found, None, then, progress, own)
  run_folder.check_unchanged(
    output_dir, config, 'resolved', start.config['resolved']
  )
  return start


@contextlib.contextmanager
def _removed_if_nothing_follows(
  output_dir: pathlib.Path, ledger: pathlib.Path
) -> Iterator[None]:
  """Removes the folder of a run that fails before its ledger has a release."""
  size = ledger.stat().st_size
  try:
    yield
  except BaseException:
    # Only the file counts, because the state in memory may be older.
    with contextlib.suppress(OSError), _held_signals():
      if ledger.stat().st_size == size:
        shutil.rmtree(output_dir)
    raise
