"""Pictures of training runs."""

import pathlib
from unittest import mock

from absl.testing import absltest

from reproduction import catalogue
from reproduction import curve_plots as training_plots
from tvdp_tf.output import plots


def _rows(loss):
  return [
    {
      'seed': str(seed),
      'planned_rounds': str(rounds),
      'test_loss': str(loss + 0.1 * seed - 0.01 * rounds),
      'test_accuracy': '0.5',
    }
    for seed in range(3)
    for rounds in (5, 10)
  ]


class TrainingPlotsTest(absltest.TestCase):
  def draw(self, rows_by_curve):
    path = pathlib.Path(self.create_tempdir().full_path, 'figure.png')
    with mock.patch.object(plots, 'save_figure') as save:
      training_plots.draw(catalogue.EXPERIMENTS['fig8'], rows_by_curve, path)
    (figure, to), _ = save.call_args
    self.assertEqual(to, path)
    self.addCleanup(plots.plt.close, figure)
    return figure.axes

  def test_a_row_for_each_data_set(self):
    curves = catalogue.EXPERIMENTS['fig8'].curves
    losses = {c: 2.0 if 'CIFAR' in c else 0.5 for c in curves}
    axes = self.draw({curve: _rows(losses[curve]) for curve in curves})
    self.assertLen(axes, 4)
    labels = [{line.get_label() for line in axis.get_lines()} for axis in axes]
    self.assertEqual(labels[0], {c for c in curves if c.startswith('CIFAR')})
    self.assertEqual(labels[2], {c for c in curves if c.startswith('FMNIST')})
    # Means over the seeds, all of them in sight.
    (line, *_) = axes[0].get_lines()
    self.assertSequenceAlmostEqual(line.get_ydata(), [2.05, 2.0])
    self.assertLess(axes[2].get_ylim()[1], axes[0].get_ylim()[0])

  def test_a_part_of_the_curves(self):
    axes = self.draw({'FMNIST, theta = 1': _rows(0.5)})
    self.assertEmpty(axes[0].get_lines())
    self.assertLen(axes[2].get_lines(), 1)


if __name__ == '__main__':
  absltest.main()
