"""One training run: rounds, releases on record, evaluation, and its folder."""

import asyncio
import collections
import dataclasses
import hashlib
import importlib.metadata
import json
import pathlib
import secrets
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from tvdp_tf import errors, federated, privacy, simulation
from tvdp_tf.experiments import (
  export,
  federation,
  plans,
  plots,
  run_folder,
)
from tvdp_tf.experiments import rounds as rounds_lib
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.learning import evaluation, functional, noise
from tvdp_tf.privacy import ledger as ledger_lib

_RECORDED_VERSIONS = (
  'tensorflow-federated',
  'tensorflow-privacy',
  'dp-accounting',
  'numpy',
)


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """What a run ends with.

  Attributes:
    loss: Test loss of the last round.
    accuracy: Test accuracy of the last round.
    statement: What the run's releases reveal.
    output_dir: The run's folder.
  """

  loss: float
  accuracy: float
  statement: privacy.PrivacyStatement
  output_dir: pathlib.Path


class _Run:
  """The state of a run between its rounds."""

  def __init__(
    self,
    plan: plans.Plan,
    ledger: ledger_lib.PrivacyLedger,
    settings_digest: bytes,
    output_dir: pathlib.Path,
  ):
    self.plan = plan
    self.settings, self.fed = plan.settings, plan.fed
    self.ledger = ledger
    self.output_dir = output_dir
    self.loss = self.accuracy = float('nan')
    self._settings_digest = settings_digest
    self.rounds = rounds_lib.Rounds(plan, rounds_lib.build_process(plan))
    self.evaluator = evaluation.Evaluator(
      functional.FunctionalModel(self.fed.initial_model()),
      self.fed.spec.loss,
      self.fed.dataset.test_features,
      self.fed.dataset.test_labels,
    )
    self.state_manager = tff.program.FileProgramStateManager(
      output_dir / run_folder.CHECKPOINTS,
      prefix='round_',
      keep_total=2,
      keep_first=False,
    )
    self.release_managers = [
      tff.program.CSVFileReleaseManager(
        output_dir / run_folder.METRICS,
        # Each release rewrites the file and renames it: never half a line.
        save_mode=tff.program.CSVSaveMode.WRITE,
        key_fieldname=run_folder.METRICS_COLUMNS[0],
      ),
      tff.program.TensorBoardReleaseManager(
        str(output_dir / run_folder.TENSORBOARD)
      ),
    ]

  def next_round(self, state, round_number: int):
    """Runs one round; returns the new state and the row of metrics."""
    started = time.monotonic()
    releases = self._affordable(
      state,
      self.rounds.releases(
        state, round_number, self.rounds.cohort(round_number)
      ),
    )
    noise_keys = self.rounds.noise_keys(releases)
    # On record before they happen, so that no failure can hide them.
    self._record(releases, noise_keys, state)
    state = self.rounds.run(state, releases, noise_keys)
    self.loss, self.accuracy = self.evaluator.evaluate(
      state.global_model_weights.trainable
    )
    row = collections.OrderedDict(
      noise_stddev=releases.noise_stddev,
      test_loss=self.loss,
      test_accuracy=self.accuracy,
      delivered_epsilon=self.plan.worst_epsilon(self.rounds.history),
      seconds=time.monotonic() - started,
      rounds=self.rounds.total,
    )
    if self.ledger.header.sampling == 'none':
      # The size of a secret cohort would tell whether a user was in it.
      row['participants'] = len(releases.clients)
    return state, row

  def _affordable(self, state, drawn: plans.Round) -> plans.Round:
    """The releases of those of a cohort whose budget covers the round."""
    header = self.ledger.header
    if (
      not header.enforced or header.sampling != 'none' or not len(drawn.clients)
    ):
      return drawn
    left = [
      client
      for client, multiplier in zip(
        drawn.clients.tolist(), drawn.noise_multipliers.tolist(), strict=True
      )
      if self.ledger.affordable(client, **self.plan.amounts(multiplier))
    ]
    if not left:
      raise errors.TrainingFailedError(
        f'no client of round {drawn.number} has budget left for it: the run '
        f'stops after {len(self.rounds.history)} rounds'
      )
    if len(left) == len(drawn.clients):
      return drawn
    return self.rounds.releases(state, drawn.number, np.array(left, np.int64))

  def _record(
    self, releases: plans.Round, noise_keys: dict[int, np.ndarray], state
  ) -> None:
    model_digest = hashlib.sha256()
    for weight in state.global_model_weights.trainable:
      model_digest.update(np.ascontiguousarray(weight).tobytes())
    if self.plan.shares_noise:
      keys = [self._shared_noise_key(releases.number)]
    else:
      keys = [noise_keys[c].tobytes() for c in releases.clients.tolist()]
    self.ledger.record(
      releases.number,
      release_ids=[
        ledger_lib.release_id(key, model_digest.digest(), self._settings_digest)
        for key in keys
      ],
      **self.plan.entry(releases),
    )

  def _shared_noise_key(self, round_number: int) -> bytes:
    seed = self.settings.seed
    if seed is None:
      return secrets.token_bytes(16)  # Drawn where nobody sees it.
    key = noise.seeded_noise_key(seed, round_number, noise.SERVER)
    return key.tobytes()

  def write_results(self) -> privacy.PrivacyStatement:
    """Writes the statement and the picture on the rounds so far."""
    statement = self.plan.statement(self.rounds.history)
    run_folder.write_json(
      self.output_dir / run_folder.PRIVACY,
      {
        **statement.to_json_dict(),
        'rounds': len(self.rounds.history),
        'ledger_head': self.ledger.head_hash,
      },
    )
    plots.draw_training_curves(
      self.output_dir / run_folder.METRICS,
      self.output_dir / run_folder.CURVES,
      f'{self.settings.dataset}, {self.settings.model}, mechanism '
      f'{self.settings.mechanism}, theta = {self.settings.theta:g}',
    )
    return statement


def _config(plan: plans.Plan) -> dict:
  resolved: dict = {'public_seed': plan.fed.public_seed}
  if plan.header.unit == 'example':
    # Where users are protected, so is how much they have.
    resolved['examples_per_user'] = plan.fed.examples_per_user.tolist()
  schedule = getattr(plan.mechanism, 'schedule', None)
  if schedule is not None:
    resolved['schedule'] = dataclasses.asdict(schedule)
  return {
    'settings': dataclasses.asdict(plan.settings),
    'resolved': resolved,
    'versions': {
      name: importlib.metadata.version(name) for name in _RECORDED_VERSIONS
    },
  }


async def _train(run: _Run, progress: bool) -> None:
  state = run.rounds.process.initialize()
  completed = 0
  with tqdm.tqdm(
    total=run.rounds.total, unit='round', disable=not progress
  ) as bar:
    while completed < run.rounds.total:
      completed += 1
      state, row = run.next_round(state, completed)
      if not np.isfinite(row['test_loss']):
        raise errors.TrainingFailedError(
          f'the test loss of round {completed} is {row["test_loss"]}: '
          'lower --learning_rate or the noise'
        )
      state = run.rounds.refined(state, run.loss)
      await run.state_manager.save(state, completed)
      for manager in run.release_managers:
        await manager.release(row, completed)
      bar.total = run.rounds.total
      bar.set_postfix(loss=f'{run.loss:.3f}', accuracy=f'{run.accuracy:.3f}')
      bar.update()
  export.save_model(
    run.output_dir / run_folder.MODEL,
    run.fed.spec,
    run.fed.input_shape,
    run.fed.dataset.num_classes,
    tf.nest.flatten(state.global_model_weights.trainable),
  )


def _runtime(settings: settings_lib.TrainingSettings):
  if settings.runtime == 'tff':
    return federated.local_runtime()
  return simulation.compiled_runtime(settings.device)


def train(
  settings: settings_lib.TrainingSettings,
  output_dir: pathlib.Path,
  progress: bool = False,
) -> TrainingResult:
  """Trains, and writes the run's folder.

  Args:
    settings: What to run.
    output_dir: The folder to create.
    progress: Whether to draw a progress bar on the standard error.

  Returns:
    The result.

  Raises:
    UsageError: If a setting does not fit the data set, `output_dir` exists or
      cannot be written, or a GPU is asked for and there is none.
    DatasetUnavailableError: If the data set cannot be loaded.
    TrainingFailedError: If the loss is not finite, or no client has any budget
      left.
  """
  run_folder.check_absent(output_dir)
  runtime = _runtime(settings)
  try:
    plan = plans.build(settings, federation.assemble(settings))
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  config = _config(plan)
  run_folder.create(output_dir, config)
  digest = hashlib.sha256(json.dumps(config).encode()).digest()
  with (
    ledger_lib.PrivacyLedger.create(
      output_dir / run_folder.LEDGER, plan.header
    ) as ledger,
    runtime,
  ):
    run = _Run(plan, ledger, digest, output_dir)
    try:
      asyncio.run(_train(run, progress))
    finally:
      # A failed run has released things too: its statement counts them.
      if run.rounds.history:
        statement = run.write_results()
  return TrainingResult(run.loss, run.accuracy, statement, output_dir)
