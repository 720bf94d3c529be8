"""The errata of the paper's theory as numbers: tables of docs/REPRODUCTION.md.

Everything is computed by `tvdp_tf.privacy`, in the paper's setting.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from tvdp_tf import privacy
from tvdp_tf.output import layout

DELTA = 1e-3
ROUNDS = 30
SAMPLING_RATE = 0.1
EPSILON = 10.0
SENSITIVITY = 2 * 5 / 600  # 2 C / |D_k|, as in the paper.
THETAS = (0.9, 0.95, 1.0, 1.05, 1.1)

_NOISE = (EPSILON, DELTA, SAMPLING_RATE, SENSITIVITY)


def _multipliers(theta: float, epsilon: float) -> np.ndarray:
  """Returns noise multipliers of Theorem 1's noise, as printed."""
  stddev = privacy.theorem1_stddev(
    theta, ROUNDS, epsilon, DELTA, SAMPLING_RATE, SENSITIVITY
  )
  schedule = privacy.GeometricSchedule(theta, ROUNDS, stddev)
  return schedule.noise_multipliers(SENSITIVITY)


def theorem1() -> str:
  """Tabulates what Theorem 1's noise delivers, if its sensitivity held."""
  rows = []
  for epsilon in (1.0, 2.0, 5.0, 10.0, 20.0):
    constant = _multipliers(1.0, epsilon)
    delivered = [
      privacy.delivered_epsilon(
        constant, DELTA, 'moments', sampling_rate=SAMPLING_RATE
      ),
      privacy.delivered_epsilon(
        constant, DELTA, 'exact', 'visible', SAMPLING_RATE
      ),
      privacy.delivered_epsilon(constant, DELTA, 'exact'),
    ]
    # Rounded up, so that the printed number is a bound, too.
    hundredths = [math.ceil(100 * value) for value in delivered]
    rows.append([f'{epsilon:g}', *(f'{n / 100:.2f}' for n in hundredths)])
  return layout.markdown_table(
    (
      'claimed epsilon',
      'by its own bound',
      'random selection, seen by the server, exact',
      'a user in every round, exact',
    ),
    rows,
  )


def sensitivity() -> str:
  """Tabulates five local gradient steps on 600 numbers, with one replaced."""

  def trained(data: np.ndarray) -> float:
    w = 0.0
    for _ in range(5):
      # The gradient of mean (w - x)^2 / 2, and the projection onto C = 5.
      w = float(np.clip(w - (w - data.mean()), -5, 5))
    return w

  one, other = np.zeros(600), np.zeros(600)
  one[0], other[0] = 6000, -6000
  distance = abs(trained(one) - trained(other))
  return layout.markdown_table(
    ('', 'distance of the two models'),
    [
      ['claimed, 2C/n', f'{SENSITIVITY:.4f}'],
      ['found', f'{distance:.4f}'],
      ['ratio', f'{distance / SENSITIVITY:.0f}'],
    ],
  )


def theorem2(done: int = 10, new_rounds: int = 24) -> str:
  """Tabulates the budget share spent by a run refined after `done` rounds."""
  rows = []
  for theta in (0.8, *THETAS):
    first = privacy.theorem1_stddev(theta, ROUNDS, *_NOISE)
    budget = privacy.GeometricSchedule(theta, ROUNDS, first).precision()
    printed = privacy.theorem2_stddev(theta, done, new_rounds, *_NOISE)
    past = privacy.GeometricSchedule(theta, done, first).stddevs()
    exact = privacy.refine_stddev(theta, past, new_rounds, budget)
    refined = privacy.GeometricSchedule(theta, new_rounds, printed).stddevs()
    spent = np.sum(past**-2.0) + np.sum(refined[done:] ** -2.0)
    rows.append(
      [
        f'{theta:g}',
        f'{spent / budget:.3f}',
        f'{printed / first:.3f}',
        f'{exact / first:.3f}',
      ]
    )
  return layout.markdown_table(
    (
      'theta',
      'share of the budget spent',
      "sigma'/sigma as printed",
      "sigma'/sigma that spends all of it",
    ),
    rows,
  )


def _setting(theta: float) -> privacy.ConvergenceSetting:
  return privacy.ConvergenceSetting(
    contraction=0.85,
    initial_gap=2.3,
    theta=theta,
    smoothness=1.0,
    sensitivity=SENSITIVITY,
    epsilon=EPSILON,
    delta=DELTA,
    sampling_rate=SAMPLING_RATE,
    users=100,
    dimension=25450,
    sum_squared_weights=0.1,
  )


def theorem3() -> str:
  """Tabulates the noise term of Theorem 3, and the best number of rounds."""
  rows = []
  for theta in THETAS:
    setting = _setting(theta)
    terms = [
      privacy.convergence_terms(setting, ROUNDS, form).noise
      for form in ('printed', 'corrected')
    ]
    best = ['none']
    if theta > 1:
      best = [f'{privacy.optimal_rounds(setting, "printed").real:.1f}']
    best.append(f'{privacy.optimal_rounds(setting).real:.1f}')
    rows.append([f'{theta:g}', *(f'{term:.2g}' for term in terms), *best])
  return layout.markdown_table(
    (
      'theta',
      'noise term as printed',
      'corrected',
      'best M as printed',
      'corrected',
    ),
    rows,
  )


def corollary2() -> str:
  """Tabulates the bound's second derivative in M, > 0 for convex functions."""
  rounds, step = 60.0, 0.01
  rows = []
  for theta in THETAS:
    setting = _setting(theta)
    before, here, after = (
      privacy.convergence_bound(setting, rounds + shift)
      for shift in (-step, 0.0, step)
    )
    second = (before - 2 * here + after) / step**2
    best = privacy.optimal_rounds(setting).real
    rows.append([f'{theta:g}', f'{second:.2g}', f'{best:.1f}'])
  return layout.markdown_table(
    ('theta', 'second derivative at M = 60', 'the only minimum, at M ='), rows
  )


def table2() -> str:
  """Tabulates the noise of round 1: the paper's Table II and its Theorem 1."""
  printed = (0.003556, 0.003654, 0.003749, 0.003841, 0.003932)
  rows = []
  for theta, value in zip(THETAS, printed, strict=True):
    stddev = privacy.theorem1_stddev(theta, ROUNDS, *_NOISE)
    rows.append([f'{theta:g}', f'{value:.6f}', f'{stddev:.6f}'])
  return layout.markdown_table(
    ('theta', 'Table II', 'Theorem 1, n = 600'), rows
  )


TABLES: Mapping[str, Callable[[], str]] = {
  'theorem1': theorem1,
  'sensitivity': sensitivity,
  'theorem2': theorem2,
  'theorem3': theorem3,
  'corollary2': corollary2,
  'table2_noise': table2,
}
