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
  def draw(self, rows_by_curve, experiment=catalogue.EXPERIMENTS['fig8']):
    path = pathlib.Path(self.create_tempdir().full_path, 'figure.png')
    with mock.patch.object(plots, 'save_figure') as save:
      training_plots.draw(experiment, rows_by_curve, path)
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

  def test_generated_data_are_named_and_all_curves_in_sight(self):
    experiment = catalogue.EXPERIMENTS['fig8']
    first, second, third, *_ = (
      curve for curve in experiment.curves if curve.startswith('FMNIST')
    )
    rows = {first: _rows(0.5), second: _rows(0.5), third: _rows(50.0)}
    outside = {line.get_label() for line in self.draw(rows)[2].get_lines()}
    self.assertIn(f'{third} (outside)', outside)
    axes = self.draw(rows, experiment.on_generated_data())
    for axis in axes[2:]:
      low, high = axis.get_ylim()
      for line in axis.get_lines():
        self.assertTrue(all(low <= y <= high for y in line.get_ydata()))
        self.assertNotIn('outside', line.get_label())
    title = axes[0].figure.get_suptitle()
    self.assertEndsWith(title, '(generated data)')

  def test_no_legend_covers_a_panel(self):
    axes = self.draw(
      {c: _rows(0.5) for c in catalogue.EXPERIMENTS['fig8'].curves}
    )
    axes[0].figure.canvas.draw()
    for axis in axes:
      legend = axis.get_legend()
      if legend is not None:
        frame = legend.get_window_extent()
        self.assertFalse(any(frame.overlaps(a.bbox) for a in axes))
        self.assertLessEqual(frame.x1, axes[0].figure.bbox.x1)

  def test_a_part_of_the_curves(self):
    axes = self.draw({'FMNIST, theta = 1': _rows(0.5)})
    self.assertEmpty(axes[0].get_lines())
    self.assertLen(axes[2].get_lines(), 1)


if __name__ == '__main__':
  absltest.main()
