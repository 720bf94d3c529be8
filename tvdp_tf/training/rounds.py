"""Runs the rounds of a mechanism on a learning process.

Only `build_process` and `on_runtime` use TFF: `Rounds` takes any `Process`.
"""

import collections
import concurrent.futures
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from absl import logging

from tvdp_tf import mechanisms, privacy
from tvdp_tf.federated import client_data, schedule_state, usable_sums
from tvdp_tf.learning import noise
from tvdp_tf.training import federation, plain_process

if TYPE_CHECKING:
  import tensorflow_federated as tff

  from tvdp_tf.runtimes.worker import client_files


class PlateauDetector:
  """Reports rounds whose test loss is not below that of the previous round.

  This is the paper's trigger for the online refinement. The test set must be
  public: evaluating on protected data would be another release.

  Attributes:
    last: The loss of the previous round; infinite before the first.
  """

  def __init__(self):
    self.last = math.inf

  def update(self, loss: float) -> bool:
    """Updates the detector with a round's loss; True if it did not fall."""
    stopped = loss >= self.last
    self.last = loss
    return stopped


# Number of cohorts to draw at a time. Between rounds, whose data evict the
# caches, one draw takes as long as ten in a row.
_COHORTS_AHEAD = 16

# A tff.learning.templates.LearningAlgorithmState, which has no static type, or
# another tuple of its fields, with `_replace`.
State = Any


class Output(Protocol):
  """The result of a round."""

  @property
  def state(self) -> State:
    """The state for the next round."""

  @property
  def metrics(self) -> Any:
    """Metrics; they contain `excluded_clients`, if uploads are checked."""


class Process(Protocol):
  """What `Rounds` requires of a learning process; all it knows about TFF.

  `global_model_weights.trainable` of its state holds the model's weights, and
  `schedule_state.of` and `put` find the noise of the next round.
  """

  def initialize(self) -> State:
    """Returns the state before round 1."""

  def next(self, state: State, data: Any) -> Output:
    """Runs a round.

    Args:
      state: The state from `initialize` or from the previous round.
      data: A `client_data.client_sequence` for each client; or, if clients read
        files, a `client_data.client_block`.
    """


def build_process(
  plan: mechanisms.Mechanism, fed: federation.Federation
) -> 'tff.learning.templates.LearningProcess':
  """Builds a mechanism's learning process with the federation's initial model.

  Raises:
    ValueError: If the mechanism cannot hide what the model does
      (`example_independence`).
  """
  from tvdp_tf import federated  # noqa: PLC0415
  from tvdp_tf.federated import secure_sums  # noqa: PLC0415

  settings = plan.settings
  process = federated.build_learning_process(
    federated.functional_model(fed.spec, fed.functional_model),
    plan.mechanism,
    server_optimizer=settings.server_optimizer,
    **federation.local_steps(settings, fed.spec),
  )
  return secure_sums.simulated(process) if plan.sums_securely else process


class _ReadAhead:
  """Reads cohorts' data from disk; a thread reads those of the next cohort."""

  def __init__(self, fed: federation.Federation):
    """Does not read anything yet."""
    self._fed = fed
    self._pool = concurrent.futures.ThreadPoolExecutor(1)
    self._next: dict[int, concurrent.futures.Future] = {}

  def read(
    self, clients: Sequence[int], then: Sequence[int]
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the clients' data; starts to read those of the next clients."""
    ready, self._next = self._next, {}
    data = [
      ready[client].result() if client in ready else self._fed.user_data(client)
      for client in clients
    ]
    self._next = {
      client: self._pool.submit(self._fed.user_data, client) for client in then
    }
    return data

  def close(self) -> None:
    """Ends the thread, which reads nothing more."""
    self._pool.shutdown(cancel_futures=True)


class _Begun(NamedTuple):
  """A round that was computed before it is on record.

  Attributes:
    state: The state before it.
    releases: Its releases.
    output: A finished future of its output.
  """

  state: State
  releases: mechanisms.Round
  output: 'concurrent.futures.Future[Output]'


class Rounds:
  """The rounds of one run; `close` frees the files, if there are any.

  Attributes:
    plan: The run's mechanism.
    fed: The users and their data.
    process: Runs a round.
    completed: The number of rounds that were started.
    total: The number of rounds planned now; a refinement changes it.
    excluded: How many uploads of the last round could not be used.
    optimizer: How the server applies the mean update.
    plateau: Triggers a refinement.
    stays_here: Whether the process computes a round in this process alone, so
      that what it computes is not released by computing it.
  """

  def __init__(
    self,
    plan: mechanisms.Mechanism,
    fed: federation.Federation,
    process: Process,
    files: 'client_files.ClientFiles | None' = None,
    stays_here: bool = False,
  ):
    """Starts before round 1.

    Args:
      plan: The run's mechanism.
      fed: The users and their data.
      process: Runs a round.
      files: The users' data, if the process reads them itself; None to pass
        them as an argument, as with the compiled runtime, which keeps them on
        its device.
      stays_here: See above.

    Raises:
      ValueError: If a process without TFF was built for another plan.
    """
    if isinstance(process, plain_process.PlainProcess):
      process.check_plan(plan)
    self.plan = plan
    self.fed = fed
    self.process = process
    self._files = files
    self._ahead = _ReadAhead(fed) if fed.dataset.is_on_disk else None
    self.completed = 0
    self.excluded = 0
    self.total = plan.settings.rounds
    self.stays_here = stays_here
    self._begun: _Begun | None = None
    self._cohorts: dict[int, np.ndarray] = {}
    self.optimizer = plan.settings.server_optimizer
    self.plateau = PlateauDetector()

  @property
  def history(self) -> list[mechanisms.Round]:
    """The releases of the rounds that were started."""
    return self.plan.history

  def cohort(self, round_number: int) -> np.ndarray:
    """Returns the users drawn for a round."""
    if round_number not in self._cohorts:
      draw = self.fed.participation.cohort
      ahead = range(round_number, round_number + _COHORTS_AHEAD)
      self._cohorts = {number: draw(number) for number in ahead}
    return self._cohorts[round_number]

  def releases(
    self, state: State, round_number: int, clients: np.ndarray
  ) -> mechanisms.Round:
    """Returns these clients' releases in a round, with the state's noise."""
    schedule = schedule_state.of(state)
    stddev = 0.0 if schedule is None else float(schedule['variance']) ** 0.5
    return self.plan.round(round_number, clients, stddev)

  def noise_keys(self, releases: mechanisms.Round) -> dict[int, np.ndarray]:
    """Returns a key for each client: fresh, or from the run's seed."""
    seed = self.plan.settings.seed
    return {
      client: (
        noise.fresh_noise_key()
        if seed is None
        else noise.seeded_noise_key(seed, releases.number, client)
      )
      for client in releases.clients.tolist()
    }

  def begin(
    self,
    state: State,
    releases: mechanisms.Round,
    noise_keys: dict[int, np.ndarray],
  ) -> None:
    """Computes a round that is not on record yet, for a `run` of the same.

    Only `run` shows anything of it, also if it failed.
    """
    output: concurrent.futures.Future[Output] = concurrent.futures.Future()
    try:
      output.set_result(self._output(state, releases, noise_keys))
    except Exception as error:
      output.set_exception(error)
    self._begun = _Begun(state, releases, output)

  def run(
    self,
    state: State,
    releases: mechanisms.Round,
    noise_keys: dict[int, np.ndarray],
  ) -> State:
    """Runs a round; releases enter the history before they happen."""
    self.plan.take(releases)
    self.completed = releases.number
    begun, self._begun = self._begun, None
    if begun and begun.state is state and begun.releases is releases:
      output = begun.output.result()
    else:
      output = self._output(state, releases, noise_keys)
    self.excluded = usable_sums.excluded_clients(output.metrics) or 0
    self.plan.observe(output.state)
    return output.state

  def _output(
    self,
    state: State,
    releases: mechanisms.Round,
    noise_keys: dict[int, np.ndarray],
  ) -> Output:
    return self.process.next(state, self._client_data(releases, noise_keys))

  def _client_data(
    self, releases: mechanisms.Round, noise_keys: dict[int, np.ndarray]
  ) -> list[Any]:
    clients = releases.clients.tolist()
    keys = [noise_keys[client] for client in clients]
    scales = releases.noise_scales.tolist()
    if self._files is not None:
      return client_data.client_block(clients, keys, scales)
    return [
      client_data.client_sequence(*data, key, scale)
      for data, key, scale in zip(
        self._users_data(releases.number, clients), keys, scales, strict=True
      )
    ]

  def _users_data(
    self, round_number: int, clients: Sequence[int]
  ) -> list[tuple[np.ndarray, np.ndarray]]:
    if self._ahead is None:
      return [self.fed.user_data(client) for client in clients]
    last = round_number >= self.total
    then = [] if last else self.cohort(round_number + 1).tolist()
    return self._ahead.read(clients, then)

  def close(self) -> None:
    """Frees the files, if there are any; it is safe to call it again."""
    if self._files is not None:
      self._files.close()
    if self._ahead is not None:
      self._ahead.close()

  def refined(self, state: State, loss: float) -> State:
    """Returns the state with a refined schedule, if the loss requires one.

    Args:
      state: The state after a round.
      loss: The test loss of the round.

    Returns:
      The state for the next round, if `total` leaves one.
    """
    settings, completed = self.plan.settings, self.completed
    if settings.refinement == 'none' or not self.plateau.update(loss):
      return state
    new_rounds = privacy.new_maximum_rounds(settings.alpha_d, self.total)
    self.total = max(new_rounds, completed)
    if self.total == completed:
      return state
    return self.replanned(state)

  def replanned(self, state: State) -> State:
    """Returns the state whose remaining rounds spend the remaining budget.

    Args:
      state: The state after the completed rounds, out of `total`.

    Returns:
      The state for the next round; if no budget is left, `total` is set to the
      number of completed rounds.
    """
    current = schedule_state.of(state)
    assert current is not None  # Only noise is refined.
    try:
      schedule = self.plan.refine(self.completed, self.total)
    except mechanisms.BudgetSpentError as error:
      logging.warning('%s', error)
      self.total = self.completed
      return state
    return schedule_state.put(state, schedule_state.refined(current, schedule))


def without_a_round(state: State) -> State:
  """Returns the state after a round in which nobody takes part."""
  schedule = schedule_state.of(state)
  if schedule is None:
    return state
  after = schedule_state.next_round(schedule)
  # Python's numbers: TFF's worker takes no NumPy numbers of other types.
  numbers = {'round': int(after['round']), 'variance': float(after['variance'])}
  return schedule_state.put(state, collections.OrderedDict(schedule, **numbers))


def _stays_here() -> bool:
  """Whether TFF computations are run by the compiled runtime."""
  import tensorflow_federated as tff  # noqa: PLC0415

  from tvdp_tf.runtimes.compiled import runtime  # noqa: PLC0415

  current = tff.framework.get_context_stack().current
  return isinstance(current, runtime.CompiledContext)


def on_runtime(
  plan: mechanisms.Mechanism,
  fed: federation.Federation,
  process: 'tff.learning.templates.LearningProcess | None' = None,
) -> Rounds:
  """Creates the rounds of a plan, for the runtime of its settings.

  TFF's worker reads the users' data from files, which `Rounds.close` frees. The
  compiled runtime takes them as an argument and keeps them on its device.

  Args:
    plan: The run's mechanism.
    fed: The users and their data.
    process: The result of `build_process`, if it was built before.

  Raises:
    ClientFilesError: If the files cannot be written.
  """
  process = process or build_process(plan, fed)
  if plan.settings.runtime != 'tff':
    return Rounds(plan, fed, process, stays_here=_stays_here())
  from tvdp_tf.runtimes.worker import (  # noqa: PLC0415
    client_blocks,
    client_files,
  )

  files = client_files.ClientFiles(
    map(fed.user_data, range(plan.settings.users))
  )
  try:
    process = client_blocks.read_in_worker(process, files)
    return Rounds(plan, fed, process, files)
  except BaseException:
    files.close()
    raise
