"""The forms in which production platforms take our computations."""

import contextlib
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from absl.testing import absltest, parameterized

from tvdp_tf import federated, mechanisms, privacy, runtimes
from tvdp_tf.federated import client_data
from tvdp_tf.learning import datasets, models, noise

SCHEDULE = privacy.GeometricSchedule(theta=0.8, rounds=3, initial_stddev=0.05)
MECHANISMS: dict[str, mechanisms.GraphMechanism] = {
  'paper': mechanisms.PaperMechanism(SCHEDULE, 2.0),
  'gradient': mechanisms.GradientMechanism(SCHEDULE, 1.0),
  'central': mechanisms.CentralMechanism(SCHEDULE, 0.4, 3.0, seed=6),
  'none': mechanisms.NoMechanism(2.0),
}

_resources = contextlib.ExitStack()


def setUpModule():
  _resources.enter_context(runtimes.local_runtime())


def tearDownModule():
  _resources.close()


@functools.cache
def build(mechanism, **kwargs):
  spec = models.MODELS['mlp']
  return federated.build_learning_process(
    federated.functional_model(spec, spec.build([8, 8, 1], 10, 1)),
    MECHANISMS[mechanism],
    local_steps=1,
    learning_rate=0.3,
    max_upload_l2_norm=20.0,  # For the gradient mechanism.
    **kwargs,
  )


def data():
  digits = datasets.load('digits')
  return [
    client_data.client_sequence(
      digits.train_features[20 * user : 20 * user + 10 + 5 * user],
      digits.train_labels[20 * user : 20 * user + 10 + 5 * user],
      noise.seeded_noise_key(9, 1, user),
      0.01,
    )
    for user in range(3)
  ]


class Platform:
  """Runs the graphs of a `MapReduceForm`, server and clients apart."""

  def __init__(self, process):
    self._output_type = process.next.type_signature.result
    self.form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
      process.next
    )

  def work(self, state, clients) -> list[Any]:
    """What the clients upload."""
    broadcast = self.form.prepare(state)
    return [self.form.work(client, broadcast) for client in clients]

  def finish(self, state, uploads):
    """The server's new state and metrics, as of `process.next`."""
    halves = [self.form.zero(), self.form.zero()]
    for index, (upload, *secure) in enumerate(uploads):
      assert not any(secure)  # No secure sums.
      halves[index % 2] = self.form.accumulate(halves[index % 2], upload)
    report = self.form.report(self.form.merge(*halves))
    result = self.form.update(state, (report, *[()] * 3))
    # The compiler forgets Python's containers.
    return tff.types.type_to_py_container(
      tff.structure.from_container(result, recursive=True), self._output_type
    )


@functools.cache
def platform_of(mechanism):
  return Platform(build(mechanism))


class MapReduceFormTest(parameterized.TestCase):
  @parameterized.parameters(*MECHANISMS)
  def test_a_platform_computes_the_same_round(self, mechanism):
    process = build(mechanism)
    platform = platform_of(mechanism)
    state = process.initialize()
    uploads = platform.work(state, data())
    new_state, metrics = platform.finish(state, uploads)
    output = process.next(state, data())
    for one, other in zip(
      tf.nest.flatten(new_state), tf.nest.flatten(output.state), strict=True
    ):
      if np.array(other).dtype.kind in 'iuf':
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    self.assertEqual(
      federated.excluded_clients(metrics),
      federated.excluded_clients(output.metrics),
    )

  @parameterized.product(
    mechanism=('paper', 'gradient', 'central', 'none'),
    change=(lambda x: x * np.nan, lambda x: x + np.inf, lambda x: x * 1e20),
  )
  def test_the_server_leaves_out_what_another_program_uploads(
    self, mechanism, change
  ):
    process = build(mechanism)
    platform = platform_of(mechanism)
    state = process.initialize()
    uploads = platform.work(state, data())
    # Its tensors, not its weight.
    uploads[1] = tff.structure.map_structure(
      lambda x: change(np.array(x)) if np.ndim(x) else x,
      tff.structure.from_container(uploads[1], recursive=True),
    )
    new_state, metrics = platform.finish(state, uploads)
    self.assertEqual(
      federated.excluded_clients(metrics), None if mechanism == 'central' else 1
    )
    without = process.next(state, [data()[0], data()[2]]).state
    for one, other in zip(
      new_state.global_model_weights.trainable,
      without.global_model_weights.trainable,
      strict=True,
    ):
      np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)

  @parameterized.parameters('paper', 'gradient', 'none')
  def test_client_work_sends_what_has_its_noise_and_nothing_else(
    self, mechanism
  ):
    form = platform_of(mechanism).form
    upload, *secure = form.work.type_signature.result
    self.assertEqual(
      str(upload),
      '<<<float32[64,32],float32[32],float32[32,10],float32[10]>,float32>>',
    )
    self.assertEqual([str(part) for part in secure], ['<>'] * 3)


class DistributeAggregateFormTest(parameterized.TestCase):
  @parameterized.parameters(*MECHANISMS)
  def test_compiles_without_checks(self, mechanism):
    process = build(mechanism, check_uploads=False)
    form = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(
      process.next
    )
    tff.test.assert_types_equivalent(
      form.type_signature, process.next.type_signature
    )

  def test_tff_takes_no_aggregation_of_ones_own(self):
    # When this fails, TFF has learnt it: `check_uploads` has had its day.
    @tff.federated_computation(
      tff.FederatedType((), tff.SERVER),
      tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def summed(state, values):
      add = tff.tensorflow.computation(
        lambda one, other: one + other, [np.float32, np.float32]
      )
      same = tff.tensorflow.computation(lambda total: total, np.float32)
      total = tff.federated_aggregate(values, np.float32(0), add, add, same)
      return state, total

    tff.backends.mapreduce.get_map_reduce_form_for_computation(summed)
    with self.assertRaisesRegex(ValueError, 'FunctionType'):
      tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(
        summed
      )


if __name__ == '__main__':
  absltest.main()
