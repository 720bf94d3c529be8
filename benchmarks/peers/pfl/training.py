"""A whole training with pfl: one run of its algorithm, with a callback."""

from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics, get_overall_value

from benchmarks.harness import training as training_lib
from benchmarks.peers.pfl import simulation


class EveryRound(TrainingProcessCallback):
  """Evaluates and saves; pfl's own callback leaves out the first round."""

  def __init__(self, training: training_lib.Training):
    self._training = training
    self._test = simulation.dataset(*training.test())

  def after_central_iteration(
    self, aggregate_metrics, model, *, central_iteration
  ):
    """Rounds are counted from 0."""
    del aggregate_metrics
    number = central_iteration + 1
    found = model.evaluate(self._test)
    self._training.record(
      number,
      get_overall_value(found['loss']),
      get_overall_value(found['accuracy']),
    )
    model.save(str(self._training.checkpoint(number)))
    return False, Metrics()


def main() -> None:
  """Trains, evaluates and saves."""
  training = training_lib.start()
  program = simulation.Pfl(training, has_workers=False, is_first=True)
  program.reset(training.work.noise_stddev)
  program.train(training.rounds, [EveryRound(training)])


if __name__ == '__main__':
  main()
