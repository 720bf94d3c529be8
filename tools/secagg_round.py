"""Runs a round of `distributed` through Flower's SecAgg+, in one process.

The clients do what they do in training: they compute the sum of clipped
gradients, in steps of a grid, and add a share of discrete Gaussian noise from
ChaCha20. The protocol computes the sum, in Flower's own workflow and client
mod, with a client that is lost after it has shared its keys.

The grid is coarser than in training, because Flower's vectors have 32 bits.
Here, its quantization is a shift by half of a range, which is checked: nothing
is rounded or cut off after the noise.

It runs in a separate environment: `make check-secagg`.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from flwr.client import ClientApp, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.common import (
  ConfigsRecord,
  Context,
  Error,
  Message,
  Metadata,
  RecordSet,
  bytes_to_ndarray,
  ndarrays_to_parameters,
  parameters_to_ndarrays,
  serde,
)
from flwr.common import recordset_compat as compat
from flwr.common.secure_aggregation import quantization
from flwr.common.secure_aggregation.secaggplus_constants import (
  RECORD_KEY_CONFIGS,
  Key,
  Stage,
)
from flwr.server import LegacyContext, SimpleClientManager
from flwr.server.compat.driver_client_proxy import DriverClientProxy
from flwr.server.driver import Driver
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import (
  MAIN_CONFIGS_RECORD,
  MAIN_PARAMS_RECORD,
)
from flwr.server.workflow.constant import Key as WorkflowKey

from tvdp_tf import federated, mechanisms
from tvdp_tf.federated import client_work
from tvdp_tf.learning import clipping, discrete_gaussian, noise
from tvdp_tf.privacy import noise_distance
from tvdp_tf.training import federation
from tvdp_tf.training import settings as settings_lib

# Standard deviation of a share, in steps of the coarse grid.
COARSE_STDDEV = 2**20
_COARSER = noise_distance.GRID_STDDEV // COARSE_STDDEV
# Modulus of Flower's vectors, and the range of a client's integers.
MODULUS = 2**32
RANGE = 2**29
_RUN = 1


def coarse_noise(noise_key: np.ndarray, size: int) -> np.ndarray:
  """Draws integers from N_Z(0, `COARSE_STDDEV`^2), int64 [size].

  It takes draws from N_Z(0, 2^62) that are multiples of 2^k, and divides them
  by 2^k. For these, P(n) is proportional to exp(-(2^k n)^2 / 2^63), which is
  the discrete Gaussian with a standard deviation 2^k times smaller. One draw in
  2^k is such a multiple, so `DISTANCE_FROM_DISCRETE` grows by slightly more
  than that factor.

  Args:
    noise_key: int64 [2].
    size: Number of integers.
  """
  found = np.zeros([0], np.int64)
  release = 0
  while len(found) < size:
    drawn = discrete_gaussian.discrete_gaussian(
      tf.constant(noise_key), 2**20, release
    ).numpy()
    found = np.append(found, drawn[drawn % _COARSER == 0] // _COARSER)
    release += 1
  return found[:size]


class Steps:
  """The client step of a mechanism that is calibrated for one round.

  Attributes:
    plan: The calibrated mechanism.
    share_stddev: Standard deviation of a client's share of the noise, in the
      unit of gradients.
    step: Step of the coarse grid.
  """

  def __init__(self, settings: settings_lib.TrainingSettings):
    self.fed = federation.assemble(settings)
    self.plan = mechanisms.build(settings, self.fed)
    mechanism = self.plan.mechanism
    assert isinstance(mechanism, mechanisms.DistributedMechanism)
    sensitivity = mechanism.sensitivity().value
    self.share_stddev = noise_distance.share_stddev(
      mechanism.schedule.stddev(1), sensitivity, mechanism.honest_clients
    )
    self.step = self.share_stddev / COARSE_STDDEV
    # Like the mechanism for its own grid: a slightly smaller clip makes room
    # for the rounding of two neighboring data sets.
    self._clip = mechanism.l2_norm_clip * (1 - 2.0**-12)
    room = 2.0**-12 * sensitivity
    if math.sqrt(self.fed.num_parameters) * self.step > room:
      raise ValueError('the grid must be finer: its rounding has no room')
    sizes = self.fed.examples_per_user
    longest = float(sizes.max()) * mechanism.l2_norm_clip / self.step + 1
    longest += noise_distance.LARGEST_DISCRETE * COARSE_STDDEV
    if longest >= RANGE / 2 or len(sizes) * RANGE >= MODULUS:
      raise ValueError(
        f'sums must fit into {MODULUS}, got {len(sizes)} clients up to'
        f' {longest:.4g}'
      )
    self._model = federated.functional_model(
      self.fed.spec, self.fed.functional_model
    )
    self._adjacency = settings.adjacency

  def integers(
    self, weights: Sequence[np.ndarray], user: int, noise_key: np.ndarray
  ) -> np.ndarray:
    """Returns what a client passes to the protocol, int64 [parameters]."""
    summed = client_work.clipped_sum(self._model, self._clip)
    features, labels = map(tf.constant, self.fed.user_data(user))
    totals = clipping.gradient_sum(
      summed,
      [tf.constant(w) for w in weights],
      clipping.examples(summed, features, labels),
      example_l2_norm_clip=self._clip,
      adjacency=self._adjacency,
    )
    steps = np.concatenate(
      [
        # `nearest` uses the fine grid of a standard deviation.
        np.ravel(noise.nearest(total, self.share_stddev * _COARSER))
        for total in totals
      ]
    )
    return steps + coarse_noise(noise_key, len(steps))


class Client(NumPyClient):
  """Uploads integers; Flower's quantization must only shift them."""

  def __init__(self, steps: Steps, user: int, uploads: dict[int, np.ndarray]):
    self._steps, self._user, self._uploads = steps, user, uploads

  def fit(self, parameters, config):
    del config
    upload = self._steps.integers(
      parameters, self._user, noise.fresh_noise_key()
    )
    exact = upload.astype(np.float64)
    (shifted,) = quantization.quantize([exact], RANGE / 2, RANGE)
    if not np.array_equal(shifted.astype(np.int64), upload + RANGE // 2):
      raise ValueError("Flower's quantization has changed an integer")
    self._uploads[self._user] = upload
    # A weight of 1, out of at most 1, so that the product with it is exact.
    return [exact], 1, {}


class _InProcess(Driver):
  """Passes messages to clients' apps, and loses some clients.

  Attributes:
    masked: What each client sent in place of its vector.
  """

  def __init__(self, apps: dict[int, ClientApp], lost: frozenset[int]):
    self._apps, self._lost = apps, lost
    self._contexts = {
      node: Context(_RUN, node, {}, RecordSet(), {}) for node in apps
    }
    self.masked: dict[int, np.ndarray] = {}

  def set_run(self, run_id: int) -> None:
    del run_id

  @property
  def run(self) -> Any:
    raise NotImplementedError

  def create_message(
    self, content, message_type, dst_node_id, group_id, ttl=None
  ) -> Message:
    metadata = Metadata(
      _RUN, '', 0, dst_node_id, '', group_id, ttl or 3600.0, message_type
    )
    return Message(metadata=metadata, content=content)

  def get_node_ids(self) -> list[int]:
    return list(self._apps)

  def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
    raise NotImplementedError

  def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
    raise NotImplementedError

  def send_and_receive(self, messages, *, timeout=None) -> list[Message]:
    del timeout
    return [self._answer(message) for message in messages]

  def _answer(self, message: Message) -> Message:
    node = message.metadata.dst_node_id
    stage = message.content.configs_records[RECORD_KEY_CONFIGS][Key.STAGE]
    stages = Stage.all()
    # It has shared its keys, but its vector never comes, nor anything later.
    late = stages.index(stage) >= stages.index(Stage.COLLECT_MASKED_VECTORS)
    if node in self._lost and late:
      return message.create_error_reply(Error(0, 'lost'))
    # A copy, as it would arrive, because a client changes what it gets.
    arrived = serde.message_from_proto(serde.message_to_proto(message))
    reply = self._apps[node](arrived, self._contexts[node])
    record = reply.content.configs_records[RECORD_KEY_CONFIGS]
    if Key.MASKED_PARAMETERS in record:
      # The first array is its weight.
      _, vector = map(bytes_to_ndarray, record[Key.MASKED_PARAMETERS])
      self.masked[node] = vector
    return reply


class _Sum(FedAvg):
  """Keeps the sum that the workflow has decoded.

  Attributes:
    total: int64; None before.
  """

  total: np.ndarray | None = None

  def aggregate_fit(self, server_round, results, failures):
    # The workflow sets each survivor's result to the mean.
    (mean,) = parameters_to_ndarrays(results[0][1].parameters)
    self.total = np.rint(mean * len(results)).astype(np.int64)
    return super().aggregate_fit(server_round, results, failures)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The outcome of a round.

  Attributes:
    total: The sum that the server has decoded, int64; None if the protocol
      failed.
    uploads: User -> its integers, for those that got that far.
    masked: User -> what the server saw of it.
  """

  total: np.ndarray | None
  uploads: dict[int, np.ndarray]
  masked: dict[int, np.ndarray]


def run(steps: Steps, lost: frozenset[int] = frozenset()) -> Outcome:
  """Runs a round; users are nodes, which are numbered from 1.

  Args:
    steps: The client step.
    lost: The users that are lost after they have shared their keys.
  """
  settings = steps.plan.settings
  uploads: dict[int, np.ndarray] = {}

  def app(user: int) -> ClientApp:
    return ClientApp(
      lambda context: Client(steps, user, uploads).to_client(),
      mods=[secaggplus_mod],
    )

  driver = _InProcess(
    {user + 1: app(user) for user in range(settings.users)},
    frozenset(user + 1 for user in lost),
  )
  manager = SimpleClientManager()
  for node in driver.get_node_ids():
    manager.register(DriverClientProxy(node, driver, _RUN))
  strategy = _Sum()
  context = LegacyContext(
    Context(_RUN, 0, {}, RecordSet(), {}),
    strategy=strategy,
    client_manager=manager,
  )
  initial = [np.asarray(w) for w in steps.fed.initial_weights]
  context.state.parameters_records[MAIN_PARAMS_RECORD] = (
    compat.parameters_to_parametersrecord(ndarrays_to_parameters(initial), True)
  )
  context.state.configs_records[MAIN_CONFIGS_RECORD] = ConfigsRecord(
    {WorkflowKey.CURRENT_ROUND: 1}
  )
  SecAggPlusWorkflow(
    num_shares=settings.users,
    # No sum of fewer clients than the mechanism requires.
    reconstruction_threshold=settings.users - settings.dropouts,
    max_weight=1.0,
    clipping_range=RANGE / 2,
    quantization_range=RANGE,
    modulus_range=MODULUS,
  )(driver, context)
  masked = {node - 1: vector for node, vector in driver.masked.items()}
  return Outcome(strategy.total, uploads, masked)
