"""Whole training runs on several workers, of which one is lost in a round."""

import json
import pathlib
from unittest import mock

from absl.testing import absltest

from tests.runtimes.worker import remote_workers
from tvdp_tf.runtimes.worker import _worker_client, distributed_runtime
from tvdp_tf.training import run_folder, settings
from tvdp_tf.training import train as training


class LedgerTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.workers = remote_workers.start(self, 3)

  def _train(self, name, seed):
    """Trains; returns the ledger and the last loss."""
    folder = pathlib.Path(self.create_tempdir().full_path, name)
    on_workers = distributed_runtime.remote_runtime(
      [worker.target for worker in self.workers], insecure=True, timeout_s=60.0
    )
    result = training.train(
      settings.TrainingSettings(
        mechanism='gradient',
        rounds=3,
        local_steps=2,
        seed=seed,
        runtime='remote',
      ),
      folder,
      runtime=on_workers,
    )
    return (folder / run_folder.LEDGER).read_text(), result.loss

  def _train_with_a_loss(self, name, seed):
    lost, calls = self.workers[1], []
    invoke = _worker_client.RemoteWorker.invoke

    def invoke_or_die(worker, comp, arg):
      if worker.target == lost.target:
        calls.append(comp)
        if calls.count(calls[0]) == 2:  # Its share of round 2.
          lost.kill()
      return invoke(worker, comp, arg)

    with mock.patch.object(
      _worker_client.RemoteWorker, 'invoke', invoke_or_die
    ):
      trained = self._train(name, seed)
    self.assertRaises(OSError, lost.signal, 0)
    lost.start()
    return trained

  def test_a_loss_changes_nothing(self):
    # The ledger's records hold digests of the model and of the noise keys.
    self.assertEqual(
      self._train_with_a_loss('disturbed', seed=1), self._train('whole', seed=1)
    )

  def test_a_round_that_is_tried_again_is_one_release(self):
    ledger, _ = self._train_with_a_loss('disturbed', seed=None)
    _, _, *records = map(json.loads, ledger.splitlines())
    self.assertEqual(
      [(record['round'], record['attempt']) for record in records],
      [(1, 1), (2, 1), (3, 1)],
    )


if __name__ == '__main__':
  absltest.main()
