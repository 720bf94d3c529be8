"""A custom mechanism: every client hides its whole update from the server.

Each client clips its update to norm C_u and adds Gaussian noise to it. The
standard deviation of the noise follows a custom schedule. docs/EXTENDING.md
explains each part. Run it by
  TF_CPP_MIN_LOG_LEVEL=3 python examples/own_mechanism.py
"""

import dataclasses
import math
import pathlib
import tempfile

import numpy as np
import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import federated, mechanisms, privacy
from tvdp_tf.federated import client_work, learning_process


@dataclasses.dataclass(frozen=True)
class NoisyUpdates(mechanisms.GraphMechanism):
  """What enters TensorFlow's graph: the noise and the clip."""

  schedule: privacy.NoiseSchedule
  l2_norm_clip: float

  def parts(self, build):
    """The work of a client, and the aggregation of what clients bring."""
    work = client_work.build_difference(
      build.model, keyed=True, **build.local_steps
    )
    noisy_mean = federated.UnweightedTimeVaryingGaussianFactory(
      self.schedule, l2_norm_clip=self.l2_norm_clip
    )
    weighted = tff.aggregators.as_weighted_aggregator(noisy_mean)
    return learning_process.Parts(work, weighted, brings_update=True)


class LocalUsers(tvdp_tf.Mechanism):
  """The options, the noise, and what is promised."""

  name = 'local_users'
  summary = 'noise on every clipped update, a guarantee for users'
  noise_on = 'the clipped update of each client'
  unit = 'user'

  def __init__(self, settings, fed):
    super().__init__(settings, fed)
    self.rule = privacy.update_rule(settings.l2_norm_clip)  # 2 C_u.
    schedule = privacy.calibrate(
      settings.epsilon,
      self.delta,
      settings.noise_shape,
      settings.rounds,
      self.rule.value,
    )
    self.mechanism = NoisyUpdates(schedule, settings.l2_norm_clip)

  @property
  def sensitivity_on_record(self):
    """For the ledger: the sensitivity, and whether it is proven."""
    return self.rule.formula, True

  def sensitivities(self):
    """The L2 sensitivity of a release of each user."""
    return np.full(self.settings.users, self.rule.value)

  def statement(self):
    """The promise; the library adds what every run assumes."""
    return self.sound_statement(
      self.delivered_views('server', 'server, median user'),
      'server',
      why='every update is clipped and gets its noise before it is uploaded',
      assumptions=(
        'clients run this code and keep their noise secret',
        'the server is honest but curious, and the cohorts are public',
        'each person is one user',
      ),
      rule=self.rule,
    )


if __name__ == '__main__':
  settings = tvdp_tf.TrainingSettings(
    mechanism=LocalUsers,
    schedule=lambda m, rounds: 1.5 + math.cos(math.pi * m / rounds),
    epsilon=8.0,
    users=10,
    users_per_round=10,
    rounds=5,
    l2_norm_clip=0.1,
  )
  print('Planned:', tvdp_tf.plan(settings).statement.verdict)
  result = tvdp_tf.train(settings, pathlib.Path(tempfile.mkdtemp(), 'run'))
  print(result.statement.describe())
