"""One training run: rounds, evaluation, and the run's folder."""

import asyncio
import collections
import dataclasses
import importlib.metadata
import pathlib
import time

import numpy as np
import tensorflow_federated as tff
import tqdm

from tvdp_tf import errors, federated, privacy
from tvdp_tf.experiments import (
  export,
  federation,
  plots,
  run_folder,
  statements,
)
from tvdp_tf.experiments import settings as settings_lib
from tvdp_tf.federated import client_data
from tvdp_tf.learning import evaluation, functional, noise, participation
from tvdp_tf.privacy import mechanisms

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
    settings: settings_lib.TrainingSettings,
    fed: federation.Federation,
    mechanism: federation.Mechanism,
    output_dir: pathlib.Path,
  ):
    self.settings = settings
    self.fed = fed
    self.mechanism = mechanism
    self.output_dir = output_dir
    self.cohorts: list[np.ndarray] = []
    self.noise_stddevs: list[float] = []
    self.loss = self.accuracy = float('nan')
    initial_model = fed.initial_model()
    self.process = federated.build_learning_process(
      federated.functional_model(fed.spec, initial_model),
      mechanism,
      local_steps=settings.local_steps,
      learning_rate=settings.learning_rate,
    )
    self.evaluator = evaluation.Evaluator(
      functional.FunctionalModel(initial_model),
      fed.spec.loss,
      fed.dataset.test_features,
      fed.dataset.test_labels,
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

  def _noise_key(self, round_number: int, user: int) -> np.ndarray:
    if self.settings.seed is None:
      return noise.fresh_noise_key()
    return noise.seeded_noise_key(self.settings.seed, round_number, user)

  def next_round(self, state, round_number: int):
    """Runs one round; returns the new state and the row of metrics."""
    started = time.monotonic()
    cohort = self.fed.participation.cohort(round_number)
    data = [
      client_data.client_sequence(
        *self.fed.user_data(user), self._noise_key(round_number, int(user))
      )
      for user in cohort
    ]
    # Counted before they happen, so that a failure cannot hide them.
    self.cohorts.append(cohort)
    self.noise_stddevs.append(self._noise_stddev(state))
    output = self.process.next(state, data)
    self.loss, self.accuracy = self.evaluator.evaluate(
      output.state.global_model_weights.trainable
    )
    row = collections.OrderedDict(
      noise_stddev=self.noise_stddevs[-1],
      test_loss=self.loss,
      test_accuracy=self.accuracy,
      delivered_epsilon=self.worst_epsilon(),
      seconds=time.monotonic() - started,
    )
    return output.state, row

  def _noise_stddev(self, state) -> float:
    if isinstance(self.mechanism, mechanisms.NoMechanism):
      return 0.0
    return float(state.aggregator['variance']) ** 0.5

  @property
  def _taken(self) -> np.ndarray:
    return participation.participations(self.cohorts, self.settings.users)

  def worst_epsilon(self) -> float:
    """Delivered so far, to the client that has spent most."""
    if isinstance(self.mechanism, mechanisms.NoMechanism):
      return float('inf')
    return statements.worst_epsilon(
      self._taken,
      np.array(self.noise_stddevs),
      2 * self.settings.l2_norm_clip / self.fed.examples_per_user,
      self.settings.delta,
    )

  def statement(self) -> privacy.PrivacyStatement:
    """The statement on all releases so far."""
    if isinstance(self.mechanism, mechanisms.NoMechanism):
      return statements.noiseless_statement(self.settings)
    return statements.paper_statement(
      self.settings,
      self.fed.examples_per_user,
      self._taken,
      np.array(self.noise_stddevs),
    )

  def write_results(self) -> privacy.PrivacyStatement:
    """Writes the statement and the picture on the rounds so far."""
    statement = self.statement()
    run_folder.write_json(
      self.output_dir / run_folder.PRIVACY,
      {**statement.to_json_dict(), 'rounds': len(self.cohorts)},
    )
    plots.draw_training_curves(
      self.output_dir / run_folder.METRICS,
      self.output_dir / run_folder.CURVES,
      f'{self.settings.dataset}, {self.settings.model}, mechanism '
      f'{self.settings.mechanism}, theta = {self.settings.theta:g}',
    )
    return statement


def _config(run_settings, fed, mechanism) -> dict:
  resolved = {
    'public_seed': fed.public_seed,
    'examples_per_user': fed.examples_per_user.tolist(),
  }
  if isinstance(mechanism, mechanisms.PaperMechanism):
    resolved['initial_noise_stddev'] = mechanism.schedule.initial_stddev
  return {
    'settings': dataclasses.asdict(run_settings),
    'resolved': resolved,
    'versions': {
      name: importlib.metadata.version(name) for name in _RECORDED_VERSIONS
    },
  }


async def _train(run: _Run, progress: bool) -> None:
  state = run.process.initialize()
  with tqdm.tqdm(
    total=run.settings.rounds, unit='round', disable=not progress
  ) as bar:
    for round_number in range(1, run.settings.rounds + 1):
      state, row = run.next_round(state, round_number)
      if not np.isfinite(row['test_loss']):
        raise errors.TrainingFailedError(
          f'the test loss of round {round_number} is {row["test_loss"]}: '
          'lower --learning_rate or the noise'
        )
      await run.state_manager.save(state, round_number)
      for manager in run.release_managers:
        await manager.release(row, round_number)
      bar.set_postfix(loss=f'{run.loss:.3f}', accuracy=f'{run.accuracy:.3f}')
      bar.update()
  export.save_model(
    run.output_dir / run_folder.MODEL,
    run.fed.spec,
    run.fed.input_shape,
    run.fed.dataset.num_classes,
    state.global_model_weights.trainable,
  )


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
    UsageError: If a setting does not fit the data set, or `output_dir` exists
      or cannot be written.
    DatasetUnavailableError: If the data set cannot be loaded.
    TrainingFailedError: If the loss is not finite.
  """
  run_folder.check_absent(output_dir)
  try:
    fed = federation.assemble(settings)
    mechanism = federation.build_mechanism(settings, min(fed.examples_per_user))
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  run_folder.create(output_dir, _config(settings, fed, mechanism))
  run = _Run(settings, fed, mechanism, output_dir)
  with federated.local_runtime():
    try:
      asyncio.run(_train(run, progress))
    finally:
      # A failed run has released things too: its statement counts them.
      if run.cohorts:
        statement = run.write_results()
  return TrainingResult(run.loss, run.accuracy, statement, output_dir)
