"""TFF's programs on runtimes of ours."""

import asyncio
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest

from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data
from tvdp_tf.learning import models, noise

SCHEDULE = privacy.GeometricSchedule(theta=0.5, rounds=3, initial_stddev=0.2)


class ProgramContextTest(absltest.TestCase):
  def test_train_model_on_the_compiled_runtime_goes_on_where_it_was(self):
    """TFF's program and managers on a process of ours."""
    mlp = models.MODELS['mlp']
    process = federated.build_learning_process(
      federated.functional_model(mlp, mlp.build([3], 2, 1)),
      mechanisms.PaperMechanism(SCHEDULE, 1.0),
      local_steps=1,
      learning_rate=0.1,
    )
    (element,) = client_data.client_sequence(
      np.ones([4, 3], np.float32),
      np.zeros([4], np.int32),
      noise.seeded_noise_key(0, 1, 0),
      1.0,
    )

    @tff.tensorflow.computation(np.str_)
    def data_of(client_id):
      del client_id
      return tf.data.Dataset.from_tensors(element)

    process = tff.simulation.compose_dataset_computation_with_learning_process(
      data_of, process
    )
    source = tff.program.ClientIdDataSource(['a', 'b'])
    folder = pathlib.Path(self.create_tempdir().full_path)
    states = tff.program.FileProgramStateManager(folder / 'state')

    def train(rounds):
      with (
        runtimes.compiled_runtime('cpu') as runtime,
        runtimes.program_context(runtime),
      ):
        asyncio.run(
          tff.learning.programs.train_model(
            train_process=process,
            train_data_source=source,
            train_per_round_clients=2,
            train_total_rounds=rounds,
            program_state_manager=states,
            model_output_manager=tff.program.SavedModelFileReleaseManager(
              folder, prefix='model_'
            ),
            evaluation_manager=None,
            evaluation_periodicity=1,
          )
        )
      return asyncio.run(states.get_versions())

    with (
      self.assertRaisesRegex(TypeError, '^context must be the target of a run'),
      runtimes.program_context(runtimes.compiled_runtime('cpu')),
    ):
      pass
    self.assertEqual(train(1), [0, 1])
    self.assertEqual(train(3), [0, 1, 2, 3])
    self.assertTrue((folder / 'model_training_checkpoint_round_3').is_dir())


if __name__ == '__main__':
  absltest.main()
