"""Pictures of results; only this module sets Matplotlib up without a screen."""

import pathlib
import sys

import matplotlib

if 'ipykernel' not in sys.modules:  # A notebook must still show its pictures.
  matplotlib.use('Agg')  # No screen is needed.

from matplotlib import pyplot as plt
from matplotlib import ticker

from tvdp_tf.output import files

__all__ = [
  'STYLES',
  'draw_training_curves',
  'legend_beside',
  'plt',
  'save_figure',
  'ticker',
]


# Styles of curves that can be distinguished in black and white.
STYLES = ('o-', 's--', '^:', 'v-.', 'D-', 'x--')


def draw_training_curves(
  metrics_path: pathlib.Path, picture_path: pathlib.Path, title: str
) -> None:
  """Draws loss, accuracy, noise and delivered epsilon against the rounds.

  Args:
    metrics_path: A run's `metrics.csv`.
    picture_path: The PNG to write, atomically.
    title: One line above the picture.
  """
  rows = files.read_csv(metrics_path)
  rounds = [int(row['round']) for row in rows]
  panels = (
    ('test_loss', 'test loss', 'tab:blue'),
    ('test_accuracy', 'test accuracy', 'tab:green'),
    ('noise_stddev', 'noise stddev', 'tab:gray'),
    ('delivered_epsilon', 'delivered epsilon, worst client', 'tab:red'),
  )
  figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharex=True)
  for axis, (column, label, color) in zip(axes.flat, panels, strict=True):
    axis.plot(rounds, [float(row[column]) for row in rows], '.-', color=color)
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.xaxis.get_major_locator().set_params(integer=True)
  for axis in axes[1]:
    axis.set_xlabel('round')
  figure.suptitle(title)
  figure.tight_layout()
  save_figure(figure, picture_path)


def legend_beside(axis) -> None:
  """Puts the legend to the right of a panel, where it covers no curve."""
  axis.legend(fontsize='small', loc='center left', bbox_to_anchor=(1.02, 0.5))


def save_figure(figure, picture_path: pathlib.Path) -> None:
  """Writes a figure as a PNG, atomically, and closes it."""
  try:
    with files.replaced(picture_path) as temporary:
      figure.savefig(temporary, format='png', dpi=120)
  finally:
    plt.close(figure)
