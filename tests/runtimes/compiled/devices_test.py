"""What TensorFlow is told to have: threads, and a GPU if it is used."""

from unittest import mock

import tensorflow as tf
from absl.testing import absltest, parameterized

from tvdp_tf.runtimes.compiled import devices
from tvdp_tf.training import settings as settings_lib


class ConfigureTest(parameterized.TestCase):
  @parameterized.product(waits=(False, True), clients=(1, 10))
  def test_a_thread_more_than_cores_only_where_one_waits(self, waits, clients):
    threading = mock.Mock()
    with (
      mock.patch.object(tf.config, 'threading', threading),
      mock.patch.object(devices, 'cores', return_value=4),
    ):
      devices.configure('cpu', clients, waits=waits)
    threading.set_inter_op_parallelism_threads.assert_called_once_with(
      4 + waits
    )
    threading.set_intra_op_parallelism_threads.assert_called_once_with(
      {1: 4, 10: 1}[clients]
    )

  @parameterized.parameters(
    ('cpu', 1, 'CPU'), ('auto', 1, 'GPU'), ('gpu', 1, 'GPU'), ('auto', 0, 'CPU')
  )
  def test_a_gpu_is_used_or_hidden(self, device, count, used):
    visible = [f'gpu{number}' for number in range(count)]
    grows = []

    def hide(devices_, kind):
      self.assertEqual((devices_, kind), ([], 'GPU'))
      visible.clear()

    with (
      mock.patch.object(tf.config, 'threading'),
      mock.patch.object(
        tf.config, 'get_visible_devices', lambda kind: list(visible)
      ),
      mock.patch.object(tf.config, 'set_visible_devices', hide),
      mock.patch.object(
        tf.config.experimental,
        'set_memory_growth',
        lambda gpu, growth: grows.append((gpu, growth)),
      ),
    ):
      devices.configure(device, 10)
      self.assertIn(used, devices.device_name('auto'))
    self.assertEqual(bool(visible), used == 'GPU')
    self.assertEqual(grows, [('gpu0', True)] if used == 'GPU' else [])


class SettingsTest(parameterized.TestCase):
  @parameterized.parameters(
    (True, {}),
    (True, {'mechanism': 'distributed', 'local_steps': 1, 'seed': 1}),
    (True, {'noise': 'discrete', 'seed': 1}),
    (False, {'noise': 'continuous'}),
    (False, {'seed': 1}),
    (False, {'runtime': 'tff'}),
    (False, {'mechanism': 'paper', 'delta': 1e-3}),
    (False, {'mechanism': 'none'}),
  )
  def test_which_clients_may_draw_discretely(self, expected, values):
    settings = settings_lib.TrainingSettings(**values)
    self.assertEqual(settings.used_device, 'cpu' if expected else 'auto')
    if expected:
      with self.assertRaisesRegex(ValueError, 'cpu with discrete noise'):
        settings_lib.TrainingSettings(**values, device='gpu')
    self.assertEqual(settings.may_draw_discretely, expected)


if __name__ == '__main__':
  absltest.main()
