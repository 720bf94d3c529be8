import csv
import dataclasses
import pathlib
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tests.training import resume_cases
from tvdp_tf import runtimes
from tvdp_tf.output import plots
from tvdp_tf.training import export, sweep
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training


class SweepTest(parameterized.TestCase):
  def train(self, settings):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    # What follows the last round is that of any run.
    self.enter_context(mock.patch.object(export, 'save_model'))
    self.enter_context(mock.patch.object(plots, 'draw_training_curves'))
    training.train(settings, folder)
    with open(folder / 'metrics.csv', newline='') as file:
      return list(csv.DictReader(file))

  def test_runs_equal_those_of_the_training_program(self):
    base = resume_cases.small(seed=1)
    changed: Any = dict.fromkeys(
      ('participation', 'calibration', 'adjacency'), ''
    )
    runs = [
      base,
      # What is not in the graph, with the process that is there already.
      dataclasses.replace(base, theta=1.1, epsilon=3.0, seed=2, rounds=4),
      dataclasses.replace(base, mechanism='gradient', **changed),
      dataclasses.replace(base, mechanism='central', **changed),
      dataclasses.replace(
        base, server_momentum=0.5, server_average=0.5, server_final_step=0.5
      ),
      dataclasses.replace(
        base, mechanism='gradient', **changed, schedule=(2, 1, 4)
      ),
      dataclasses.replace(base, rounds=15, refinement='budget', alpha_d=0.8),
    ]
    with runtimes.compiled_runtime('cpu') as context:
      one_process = sweep.Sweep(context)
      swept = [one_process.run(settings) for settings in runs]
    for settings, measurements in zip(runs, swept, strict=True):
      rows = self.train(settings)
      self.assertLen(measurements, len(rows))
      for field in dataclasses.fields(sweep.Measurement):
        np.testing.assert_allclose(
          [getattr(m, field.name) for m in measurements],
          [float(row[field.name]) for row in rows],
          rtol=1e-5,
          err_msg=f'{field.name} of {settings}',
        )

  def test_last_round_alone(self):
    settings = resume_cases.small(rounds=4, seed=1)
    with runtimes.compiled_runtime('cpu') as context:
      one_process = sweep.Sweep(context)
      every = one_process.run(settings)
      last = one_process.run(settings, every_round=False)
    self.assertEqual(last, every[-1:])

  def test_a_seed_is_needed(self):
    with (
      runtimes.compiled_runtime('cpu') as context,
      self.assertRaisesRegex(ValueError, 'seed must be given'),
    ):
      sweep.Sweep(context).run(settings_lib.TrainingSettings())

  def test_ends_where_the_loss_does(self):
    settings = resume_cases.small(l2_norm_clip=1e30, local_steps=10, seed=1)
    with runtimes.compiled_runtime('cpu') as context:
      measurements = sweep.Sweep(context).run(settings)
    self.assertLen(measurements, 1)
    self.assertTrue(np.isnan(measurements[0].test_loss))


if __name__ == '__main__':
  absltest.main()
