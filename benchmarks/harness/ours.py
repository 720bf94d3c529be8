"""This library as a program of the benchmark.

It measures what a run does in a round: `Rounds` on a learning process of
`build_learning_process` with fixed noise, with the paper's mechanism in a
projected work, and with `gradient` in a private one. Forms: `compiled`, in this
process; `continuous`, the same with continuous noise, if the default is
discrete; `tff`, on TFF's worker; on a GPU, `gpu` for a projected work, and
`gpu-continuous` for a private one, because discrete noise is refused there.
"""

import contextlib
import dataclasses
import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.harness import program as program_lib
from benchmarks.harness import work as work_lib
from tvdp_tf import mechanisms, privacy, runtimes
from tvdp_tf.federated import schedule_state
from tvdp_tf.learning import datasets, models, participation
from tvdp_tf.privacy import sensitivity
from tvdp_tf.training import federation
from tvdp_tf.training import rounds as rounds_lib
from tvdp_tf.training import settings as settings_lib

_FORMS = ('compiled', 'continuous', 'tff', 'gpu', 'gpu-continuous')
# More than are ever measured; theta = 1, so that all have the same noise.
_ROUNDS = 10**6
# Vanishes in float32 when added to any parameter.
_NO_NOISE = 1e-30
# Vanishes when added to any step. With less, a gradient would have more steps
# of the noise grid than an integer can hold.
_NO_STEP_NOISE = 1e-8


def _schedule(noise_stddev: float) -> privacy.GeometricSchedule:
  return privacy.GeometricSchedule(1.0, _ROUNDS, noise_stddev)


class _FixedNoise(mechanisms.Paper):
  """The paper's mechanism with a given standard deviation in all rounds."""

  def __init__(self, settings, fed, noise_stddev: float):
    super().__init__(settings, fed)
    self.mechanism = mechanisms.PaperMechanism(
      _schedule(noise_stddev), settings.l2_norm_clip
    )

  def fixed(self, noise_stddev: float) -> privacy.GeometricSchedule:
    """Returns the schedule for another standard deviation, possibly 0."""
    return _schedule(noise_stddev or _NO_NOISE)


class _FixedStepNoise(mechanisms.Gradient):
  """`gradient` with a given standard deviation in all steps of all rounds."""

  def __init__(self, settings, fed, noise_stddev: float):
    # Skips the calibration over the cohorts of all rounds: the noise is given.
    super(mechanisms.Gradient, self).__init__(settings, fed)
    self._examples = int(fed.examples_per_user[0])
    self._adopt(np.ones(settings.users), settings.rounds)
    schedule = self.fixed(noise_stddev)
    self._adopt(
      np.full(settings.users, schedule.initial_stddev), settings.rounds
    )

  def fixed(self, noise_stddev: float) -> privacy.GeometricSchedule:
    """Returns the schedule, in noise multipliers."""
    unit = self.mechanism.sensitivity(self._examples).value
    return _schedule((noise_stddev or _NO_STEP_NOISE) / unit)


def _example_clip(work: work_lib.Work) -> float:
  """Returns the clip with which we clip to C_g; rounding reduces ours."""
  rounding = sensitivity.relative_rounding(work.examples_per_user)
  return (work.example_l2_norm_clip or 1.0) * (1 + rounding)


def _model_spec(work: work_lib.Work) -> models.ModelSpec:
  """Returns the library's model with the work's initial weights."""
  spec = models.MODELS[work.model]

  def build(input_shape, num_classes, seed):
    model = spec.build(input_shape, num_classes, seed)
    if work.model == 'mlp' and work.hidden_units != 32:
      model = tf.keras.Sequential(
        [
          tf.keras.layers.InputLayer(input_shape=tuple(input_shape)),
          tf.keras.layers.Dense(work.hidden_units),
          tf.keras.layers.Dense(num_classes),
        ]
      )
    model.set_weights(work.initial_weights())
    return model

  return dataclasses.replace(spec, build=build)


def _federation(server: program_lib.Server) -> federation.Federation:
  """Returns the work's users with views of its data; the server drops these."""
  work = server.work
  features = server.features.reshape(-1, *work.input_shape)
  labels = server.labels.reshape(-1)
  size = work.examples_per_user
  return federation.Federation(
    dataset=datasets.Dataset(
      name='generated_mnist',
      train_features=features,
      train_labels=labels,
      test_features=features[:1],
      test_labels=labels[:1],
      num_classes=work_lib.NUM_CLASSES,
    ),
    spec=_model_spec(work),
    examples=[range(u * size, (u + 1) * size) for u in range(work.users)],
    participation=participation.UniformParticipation(
      work.users, work.users_per_round, work.seed
    ),
    public_seed=work.seed,
  )


class Ours(program_lib.Program):
  """The forms above; their runtime must be installed."""

  def __init__(self, server: program_lib.Server):
    work = server.work
    is_private = work.kind == work_lib.PRIVATE
    # Each mechanism has its own clip, and ignores the other's.
    settings = settings_lib.TrainingSettings(
      dataset='generated_mnist',
      mechanism='gradient' if is_private else 'paper',
      participation='uniform',
      model=work.model,
      users=work.users,
      users_per_round=work.users_per_round,
      # With this many discrete draws, a larger epsilon cannot be met.
      epsilon=1.0,
      theta=1.0,
      rounds=_ROUNDS,
      local_steps=work.local_steps,
      learning_rate=work.learning_rate,
      noise='continuous' if server.form.endswith('continuous') else '',
      runtime='tff' if server.form == 'tff' else 'compiled',
      l2_norm_clip=work.l2_norm_clip or 1.0,
      example_l2_norm_clip=_example_clip(work),
    )
    fed = _federation(server)
    self._plan: _FixedNoise | _FixedStepNoise = (
      _FixedStepNoise(settings, fed, work.noise_stddev)
      if is_private
      else _FixedNoise(settings, fed, work.noise_stddev)
    )
    self._rounds = rounds_lib.on_runtime(self._plan, fed)
    self._initial = self._rounds.process.initialize()

  def close(self) -> None:
    """Frees the users' files, if there are any."""
    self._rounds.close()

  def reset(self, noise_stddev: float) -> None:
    schedule = schedule_state.of(self._initial)
    assert schedule is not None  # Both mechanisms have one.
    self._state = schedule_state.put(
      self._initial,
      schedule_state.refined(schedule, self._plan.fixed(noise_stddev)),
    )

  def round(self, round_number: int) -> None:
    rounds = self._rounds
    releases = rounds.releases(
      self._state, round_number, rounds.cohort(round_number)
    )
    self._state = rounds.run(self._state, releases, rounds.noise_keys(releases))
    # Wait for the device.
    np.asarray(self._state.global_model_weights.trainable[-1])

  def weights(self) -> list[np.ndarray]:
    return [np.array(w) for w in self._state.global_model_weights.trainable]


def main() -> None:
  """Serves until the command to quit."""
  server = program_lib.start('compiled')
  if server.form not in _FORMS:
    raise ValueError(
      f'form must be one of {", ".join(_FORMS)}, got {server.form!r}'
    )
  is_discrete = (
    server.work.kind == work_lib.PRIVATE
    and not server.form.endswith('continuous')
  )
  device = 'gpu' if server.form.startswith('gpu') else 'cpu'
  runtimes.configure(  # Like train.py.
    device, server.work.users_per_round, waits=is_discrete
  )
  runtime = (
    runtimes.local_runtime()
    if server.form == 'tff'
    else runtimes.compiled_runtime(device)
  )
  with runtime, contextlib.closing(Ours(server)) as program:
    server.serve(program, tensorflow=tf.__version__, tff=tff.__version__)


if __name__ == '__main__':
  main()
