"""The picture of a pilot: its losses, and the fit that A is taken from."""

import pathlib

import matplotlib

matplotlib.use('Agg')  # No screen is needed.

import numpy as np
from matplotlib import pyplot as plt

from tvdp_tf.planner import pilot as planning_pilot

_CURVE_POINTS = 300
# More markers than this run into one another.
_MANY = 100


def draw(pilot: planning_pilot.Pilot, path: pathlib.Path) -> None:
  """Draws the losses with the fit, and the residuals below.

  Args:
    pilot: The pilot.
    path: The PNG file to write.
  """
  estimate = pilot.estimate
  rounds, losses = np.array(pilot.rounds), np.array(pilot.losses)
  low, high = estimate.contraction_interval
  dense = np.linspace(0, rounds[-1], _CURVE_POINTS)
  figure, (above, below) = plt.subplots(
    *(2, 1), figsize=(9, 6), sharex=True, height_ratios=(3, 1)
  )
  dots = {
    'linestyle': 'none',
    'marker': '.',
    'markersize': 8 if len(rounds) <= _MANY else 3,
    'color': 'black',
  }
  above.plot(rounds, losses, label='test loss of the pilot', zorder=3, **dots)
  above.plot(
    *(dense, estimate.loss(dense)),
    color='tab:blue',
    label=f'fit: A = {estimate.contraction:.5g} (95 % interval {low:.5g} to'
    f' {high:.5g}), Theta = {estimate.initial_gap:.4g}',
  )
  above.axhline(
    estimate.final_loss,
    color='0.5',
    linestyle='--',
    label=f'L_inf = {estimate.final_loss:.4g}',
  )
  above.set_ylabel('loss')
  above.set_title(
    'Contraction of a round without noise: loss(m) = L_inf + Theta A^m',
    fontsize=11,
  )
  above.legend(fontsize=9)
  below.plot(rounds, losses - estimate.loss(rounds), **dots)
  below.axhline(0, color='tab:blue')
  below.set_ylabel('loss - fit')
  below.set_xlabel('round m')
  below.set_xlim(left=0)
  for axis in (above, below):
    axis.grid(alpha=0.3)
  figure.align_ylabels()
  figure.tight_layout()
  figure.savefig(path, format='png', dpi=120)
  plt.close(figure)
