"""Compares `central` with a trusted server's other options at equal epsilon.

Users are in every round, or in few. All mechanisms use the clip that is best
for constant noise on the public fifth of the test set (`central_clips`); the
adaptive clip starts there.
"""

from typing import Any

from reproduction import alternatives
from reproduction.catalogue.experiment import ROUND, Experiment

_CONSTANT: dict[str, Any] = {'mechanism': 'central', 'theta': 1.0}
_OURS = 'ours, constant noise'
_CURVES: dict[str, dict[str, Any]] = {
  _OURS: {**_CONSTANT, 'participation': 'balanced'},
  'ours, theta = 0.9': {
    'mechanism': 'central',
    'theta': 0.9,
    'participation': 'balanced',
  },
  "tree aggregation (TFF's)": {'mechanism': alternatives.Tree},
  'banded square root': {'mechanism': alternatives.BandedRoot},
  "adaptive clip (TFF's)": {'mechanism': alternatives.Adaptive},
}
# Not for users in every round, where the cohort is no secret.
_SAMPLED = {'ours, Poisson sampling': {**_CONSTANT, 'participation': 'poisson'}}
_BASE: dict[str, Any] = {
  'model': 'linear',
  'local_steps': 5,
  'rounds': 16,
  'delta': 1e-3,
  'epsilon': 3.0,
  'learning_rate': 1.0,
}
# (data set, whether users are in every round) -> other settings; chosen clips.
_SETTINGS: dict[tuple[str, bool], dict[str, Any]] = {
  ('digits', True): {'users': 240, 'users_per_round': 240, 'l2_norm_clip': 2.0},
  ('digits', False): {'users': 240, 'users_per_round': 30, 'l2_norm_clip': 2.0},
  ('mnist', True): {'users': 480, 'users_per_round': 480, 'l2_norm_clip': 2.0},
  ('mnist', False): {'users': 480, 'users_per_round': 60, 'l2_norm_clip': 1.0},
}
_CLIPS = (0.5, 1.0, 2.0, 4.0, 8.0)


def _often(everyone: bool) -> str:
  return 'everyone' if everyone else 'rarely'


def setting(dataset: str, everyone: bool) -> dict[str, Any]:
  """Returns the base settings of an experiment."""
  return {**_BASE, 'dataset': dataset, **_SETTINGS[dataset, everyone]}


def _experiment(dataset: str, everyone: bool) -> Experiment:
  return Experiment(
    f'central_{dataset}_{_often(everyone)}',
    f'central and its alternatives: {dataset}, users in '
    f'{"every round" if everyone else "few rounds"}',
    (),
    setting(dataset, everyone),
    _CURVES if everyone else {**_CURVES, **_SAMPLED},
    ROUND,
  )


def _clips() -> Experiment:
  return Experiment(
    'central_clips',
    'The clip of central with constant noise',
    (),
    {**_BASE, 'users_per_round': 30},
    {
      f'{dataset}, {_often(everyone)}, C_u = {clip:g}': {
        **setting(dataset, everyone),
        **_CURVES[_OURS],
        'l2_norm_clip': clip,
      }
      for dataset, everyone in _SETTINGS
      for clip in _CLIPS
    },
    ROUND,
    test_part='tuning',
    seeds=1,
  )


EXPERIMENTS = (
  _clips(),
  *(_experiment(dataset, everyone) for dataset, everyone in _SETTINGS),
)
