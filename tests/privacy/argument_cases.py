"""Every function of the package, arguments it takes, and what they must be."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvdp_tf import privacy

POSITIVE = 'a finite number > 0'
NON_NEGATIVE = 'a finite number >= 0'
OPEN_UNIT = 'a number strictly between 0 and 1'
RATE = 'a number in (0, 1]'
ACCOUNTANT = 'one of exact, rdp, pld, moments'
CALIBRATION = 'one of printed, tight, exact, rdp, pld'
SAMPLING = 'one of none, poisson, visible'
FORM = 'one of printed, corrected'

_NO_NUMBER = (math.nan, None, '1', True, [1.0, 2.0])
_NO_WORD = ('', 'Exact', None, 3)
# What is allowed, and values that are not.
BAD: Mapping[str, tuple[Any, ...]] = {
  POSITIVE: (0, -1.0, math.inf, *_NO_NUMBER),
  NON_NEGATIVE: (-1e-9, math.inf, *_NO_NUMBER),
  OPEN_UNIT: (0, 1, 1.5, -0.1, *_NO_NUMBER),
  RATE: (0, 1.0000001, -0.1, math.inf, *_NO_NUMBER),
  **dict.fromkeys((ACCOUNTANT, CALIBRATION, SAMPLING, FORM), _NO_WORD),
}
_NO_INTEGER = (1.0, '3', None, True, math.nan, math.inf)


def integer(minimum: int, maximum: int | None = None) -> str:
  if maximum is None:
    return f'an integer >= {minimum}'
  return f'an integer from {minimum} to {maximum}'


def bad_values(allowed: str) -> tuple[Any, ...]:
  if not allowed.startswith('an integer'):
    return BAD[allowed]
  words = allowed.split()
  if words[2] == '>=':
    return (int(words[3]) - 1, -5, *_NO_INTEGER)
  return (int(words[3]) - 1, int(words[5]) + 1, *_NO_INTEGER)


_Arguments = Mapping[str, tuple[Any, str | list[tuple[Any, str]]]]


@dataclasses.dataclass(frozen=True)
class Case:
  """A function, arguments that it takes, and what each must be.

  An argument with a list of (value, message) is tested with those instead.
  """

  function: Callable[..., Any]
  arguments: _Arguments

  def valid(self) -> dict[str, Any]:
    return {name: value for name, (value, _) in self.arguments.items()}


_CLAIM: _Arguments = {
  'epsilon': (1.0, POSITIVE),
  'delta': (1e-5, OPEN_UNIT),
  'sampling_rate': (0.1, RATE),
  'sensitivity': (1.0, POSITIVE),
}
_THEOREM1: _Arguments = {
  'theta': (0.9, POSITIVE),
  'rounds': (3, integer(1)),
  **_CLAIM,
}
_DESCENT: _Arguments = {
  'eta': (0.1, POSITIVE),
  'smoothness': (1.0, POSITIVE),
  'users': (10, integer(2)),
  'users_per_round': (5, integer(1, 10)),
  'dissimilarity_squared': (
    1.5,
    [
      (0.99, 'dissimilarity_squared must be a finite number >= 1, got 0.99'),
      (math.nan, f'dissimilarity_squared must be {POSITIVE}, got nan'),
    ],
  ),
  'form': ('corrected', FORM),
}
_SETTING: _Arguments = {
  'contraction': (0.9, OPEN_UNIT),
  'initial_gap': (1.0, POSITIVE),
  'theta': (0.9, POSITIVE),
  'smoothness': (1.0, POSITIVE),
  'sensitivity': (1.0, POSITIVE),
  'epsilon': (1.0, POSITIVE),
  'delta': (1e-3, OPEN_UNIT),
  'sampling_rate': (0.1, RATE),
}
# These may also be None.
OPTIONAL = {
  'users': (10, integer(2)),
  'dimension': (5, integer(1)),
  'sum_squared_weights': (0.5, RATE),
  'lipschitz': (1.0, POSITIVE),
  'gradient_divergence': (0.1, NON_NEGATIVE),
  'learning_rate': (0.1, POSITIVE),
}
_VALUES: dict[str, Any] = {
  name: value for name, (value, _) in {**_SETTING, **OPTIONAL}.items()
}
SETTING = privacy.ConvergenceSetting(**_VALUES)
_NOISE = 'noise_multipliers must be a sequence of numbers > 0'
_PAST = 'past_stddevs of round 2 must be a finite number > 0, got '
_ADJACENCY = 'one of replace-one, add-or-remove-one, zero-out'
BAD = {**BAD, _ADJACENCY: _NO_WORD}

_MEAN = [
  (1.0, 'mean must be above 1 and at most 1e+06, got 1.0'),
  (2e6, 'mean must be above 1 and at most 1e+06, got 2000000.0'),
  (math.nan, f'mean must be {POSITIVE}, got nan'),
  ('5', f"mean must be {POSITIVE}, got '5'"),
]
_SHAPE = [
  (-0.1, f'shape must be {NON_NEGATIVE}, got -0.1'),
  (-math.inf, f'shape must be {NON_NEGATIVE}, got -inf'),
  (math.nan, f'shape must be {NON_NEGATIVE}, got nan'),
  ('inf', f"shape must be {NON_NEGATIVE}, got 'inf'"),
]
_SELECTION: _Arguments = {
  'delta': (1e-5, OPEN_UNIT),
  'mean': (5.0, _MEAN),
  'shape': (1.0, _SHAPE),
  'sampling': (
    'poisson',
    [('visible', "sampling must be one of none, poisson, got 'visible'")],
  ),
  'sampling_rate': (0.1, RATE),
}
CASES = {
  'best_of_runs': Case(
    privacy.best_of_runs_epsilon,
    {
      'noise_multipliers': (
        [3.0, 4.0],
        [([3.0, 0.0], _NOISE), ([math.nan], _NOISE), (3.0, _NOISE)],
      ),
      **_SELECTION,
    },
  ),
  'calibrate_best_of_runs': Case(
    privacy.calibrate_best_of_runs,
    {
      'epsilon': (2.0, POSITIVE),
      'theta': (1.0, POSITIVE),
      'rounds': (3, integer(1)),
      'sensitivity': (1.0, POSITIVE),
      **_SELECTION,
    },
  ),
  'draw_number_of_runs': Case(
    privacy.draw_number_of_runs,
    {'mean': (5.0, _MEAN), 'shape': (1.0, _SHAPE)},
  ),
  'schedule': Case(
    privacy.GeometricSchedule,
    {
      'theta': (0.9, POSITIVE),
      'rounds': (3, integer(1)),
      'initial_stddev': (1.0, POSITIVE),
    },
  ),
  'shape': Case(privacy.GeometricShape, {'theta': (0.9, POSITIVE)}),
  'noise_multipliers': Case(
    privacy.GeometricSchedule(0.9, 3, 1.0).noise_multipliers,
    {'sensitivity': (1.0, POSITIVE)},
  ),
  'theorem1': Case(privacy.theorem1_stddev, _THEOREM1),
  'theorem1_log': Case(
    privacy.theorem1_log_stddev, {**_THEOREM1, 'round': (2, integer(1, 3))}
  ),
  'tight': Case(privacy.tight_moment_stddev, _THEOREM1),
  'rules': Case(
    privacy.schedule_for_every_round,
    {'calibration': ('exact', CALIBRATION), **_THEOREM1},
  ),
  'theorem2': Case(
    privacy.theorem2_stddev,
    {
      'theta': (0.9, POSITIVE),
      'round': (2, integer(1)),
      'new_rounds': (3, integer(3)),
      **_CLAIM,
    },
  ),
  'moment_bound_epsilon': Case(
    privacy.moment_bound_epsilon,
    {
      'moment': (
        1.0,
        [
          (-1.0, f'moment must be {NON_NEGATIVE}, got -1.0'),
          (math.nan, f'moment must be {NON_NEGATIVE}, got nan'),
        ],
      ),
      'delta': (1e-5, OPEN_UNIT),
    },
  ),
  'moment_bound_delta': Case(
    privacy.moment_bound_delta,
    {'moment': (1.0, POSITIVE), 'epsilon': (1.0, POSITIVE)},
  ),
  'gaussian_epsilon': Case(
    privacy.gaussian_epsilon,
    {
      'noise_multiplier': (
        1.0,
        [
          (value, f'noise_multiplier must be {POSITIVE}, got {value!r}')
          for value in (0, -1.0, -math.inf, *_NO_NUMBER)
        ],
      ),
      'delta': (1e-5, OPEN_UNIT),
    },
  ),
  'gaussian_delta': Case(
    privacy.gaussian_delta,
    {
      'noise_multiplier': (
        1.0,
        [(0.0, f'noise_multiplier must be {POSITIVE}, got 0.0')],
      ),
      'epsilon': (1.0, NON_NEGATIVE),
    },
  ),
  'gaussian_noise_multiplier': Case(
    privacy.gaussian_noise_multiplier,
    {'epsilon': (1.0, POSITIVE), 'delta': (1e-5, OPEN_UNIT)},
  ),
  'is_sound': Case(
    privacy.is_sound,
    {
      'accountant': ('rdp', ACCOUNTANT),
      'sampling': ('none', SAMPLING),
      'sampling_rate': (0.1, RATE),
    },
  ),
  'delivered_epsilon': Case(
    privacy.delivered_epsilon,
    {
      'noise_multipliers': (
        [1.0, 2.0],
        [
          ([1.0, 0.0], f'{_NOISE} (inf: no release), got 0.0 in round 2'),
          ([-1.0], f'{_NOISE} (inf: no release), got -1.0 in round 1'),
          ([1.0, math.nan], f'{_NOISE} (inf: no release), got nan in round 2'),
          (2.0, f'{_NOISE} (inf: no release), got shape ()'),
          ([[1.0]], f'{_NOISE} (inf: no release), got shape (1, 1)'),
          ('ab', f'{_NOISE} (inf: no release), got '),
          ([None], f'{_NOISE} (inf: no release), got '),
          ([[1.0], []], f'{_NOISE} (inf: no release), got '),
        ],
      ),
      'delta': (1e-5, OPEN_UNIT),
      'accountant': ('rdp', ACCOUNTANT),
      'sampling': ('visible', SAMPLING),
      'sampling_rate': (0.1, RATE),
    },
  ),
  'check_claim': Case(
    functools.partial(privacy.check_claim, 'dp-sgd'),
    {
      'delta': (1e-5, OPEN_UNIT),
      'rounds': (5, integer(1, 10**7)),
      'noise_multiplier': (1.0, POSITIVE),
      'sampling_rate': (0.1, RATE),
    },
  ),
  'check_claim_of_flower': Case(
    functools.partial(privacy.check_claim, 'flower-local-dp'),
    {
      'delta': (1e-5, OPEN_UNIT),
      'rounds': (5, integer(1, 10**7)),
      'epsilon': (1.0, POSITIVE),
      'clip': (1.0, POSITIVE),
      'sensitivity': (1.0, POSITIVE),
    },
  ),
  'calibrate': Case(
    privacy.calibrate,
    {
      'epsilon': (1.0, POSITIVE),
      'delta': (1e-5, OPEN_UNIT),
      'theta': (0.9, POSITIVE),
      'rounds': (3, integer(1)),
      'sensitivity': (1.0, POSITIVE),
      'accountant': ('rdp', ACCOUNTANT),
      'sampling': ('visible', SAMPLING),
      'sampling_rate': (0.1, RATE),
    },
  ),
  'refine_stddev': Case(
    privacy.refine_stddev,
    {
      'theta': (0.9, POSITIVE),
      'past_stddevs': (
        [1.0, 1.0],
        [
          ([1.0, 0.0], f'{_PAST}0.0'),
          ([1.0, math.inf], f'{_PAST}inf'),
          (np.array([1.0, math.nan]), f'{_PAST}nan'),
        ],
      ),
      'new_rounds': (
        5,
        [
          (5.0, f'new_rounds must be {integer(1)}, got 5.0'),
          (0, f'new_rounds must be {integer(1)}, got 0'),
          (2, 'new_rounds must exceed the 2 rounds already released, got 2'),
        ],
      ),
      'budget': (10.0, POSITIVE),
    },
  ),
  'new_maximum_rounds': Case(
    privacy.new_maximum_rounds,
    {
      'alpha_d': (
        0.5,
        [
          (value, f'alpha_d must be {RATE}, got {value!r}')
          for value in (0, 1.01, -1, math.nan, math.inf, None, 'x', '1/0', True)
        ],
      ),
      'rounds': (10, integer(1)),
    },
  ),
  'descent_coefficient': Case(privacy.descent_coefficient, _DESCENT),
  'contraction': Case(
    privacy.contraction, {**_DESCENT, 'pl_constant': (0.1, POSITIVE)}
  ),
  'divergence_gap': Case(
    privacy.divergence_gap,
    {
      'x': (2, NON_NEGATIVE),
      'gamma': (1.0, NON_NEGATIVE),
      'eta': (0.1, POSITIVE),
      'smoothness': (1.0, POSITIVE),
    },
  ),
  'divergence_gap_derivative': Case(
    privacy.divergence_gap_derivative,
    {
      'total_steps': (10, POSITIVE),
      'rounds': (2, POSITIVE),
      'gamma': (1.0, NON_NEGATIVE),
      'eta': (0.1, POSITIVE),
      'smoothness': (1.0, POSITIVE),
      'form': ('corrected', FORM),
    },
  ),
  'setting': Case(privacy.ConvergenceSetting, _SETTING),
  'convergence_bound': Case(
    privacy.convergence_bound,
    {
      'setting': (SETTING, []),
      'rounds': (3, POSITIVE),
      'form': ('corrected', FORM),
      'drift': (
        'single',
        [('x', "drift must be one of none, single, accumulated, got 'x'")],
      ),
      'local_steps': (
        5,
        [(-1, f'x must be {NON_NEGATIVE}, got -1')],
      ),
    },
  ),
  'bound_derivative': Case(
    privacy.bound_derivative,
    {
      'setting': (SETTING, []),
      'rounds': (3, POSITIVE),
      'form': ('corrected', FORM),
      'total_steps': (
        10,
        [(0, f'total_steps must be {POSITIVE}, got 0')],
      ),
    },
  ),
  'optimal_rounds': Case(
    privacy.optimal_rounds,
    {
      'setting': (SETTING, []),
      'form': ('corrected', FORM),
      'total_steps': (
        10,
        [
          (0, f'total_steps must be {integer(1)}, got 0'),
          (10.0, f'total_steps must be {integer(1)}, got 10.0'),
        ],
      ),
    },
  ),
  'optimal_theta': Case(
    privacy.optimal_theta, {'contraction': (0.81, OPEN_UNIT)}
  ),
  'optimal_plan': Case(
    privacy.optimal_plan,
    {
      'contraction': (0.9, OPEN_UNIT),
      'initial_gap': (1.0, POSITIVE),
      'budget': (1.0, POSITIVE),
      'noise_weight': (1.0, POSITIVE),
    },
  ),
  'sound_bound': Case(
    privacy.sound_bound,
    {
      'initial_gap': (1.0, POSITIVE),
      'rounds': (3, integer(1)),
      'theta': (0.9, POSITIVE),
      'initial_stddev': (1.0, POSITIVE),
      'pl_constant': (0.1, POSITIVE),
      'eta': (0.1, POSITIVE),
      'smoothness': (1.0, POSITIVE),
      'users': (2, integer(2)),
      'users_per_round': (1, integer(1, 2)),
      'local_steps': (3, integer(1)),
      'gradient_divergences': (
        [0.1, 0.2],
        [
          ([0.1, -0.2], f'gradient_divergences must be {NON_NEGATIVE}'),
          (
            [0.1],
            'gradient_divergences must be 2 numbers, one per user, got 1',
          ),
        ],
      ),
      'lipschitz': (1.0, POSITIVE),
      'dimension': (3, integer(1)),
    },
  ),
  'paper_rule': Case(
    privacy.paper_rule,
    {'l2_norm_clip': (1.0, POSITIVE), 'examples': (10, integer(1))},
  ),
  'projection_rule': Case(
    privacy.projection_rule, {'l2_norm_clip': (1.0, POSITIVE)}
  ),
  'gradient_rule': Case(
    privacy.gradient_rule,
    {
      'example_l2_norm_clip': (1.0, POSITIVE),
      'examples': (10, integer(1)),
      'adjacency': ('replace-one', _ADJACENCY),
    },
  ),
  'gradient_sum_rule': Case(
    privacy.gradient_sum_rule,
    {
      'example_l2_norm_clip': (1.0, POSITIVE),
      'adjacency': ('replace-one', _ADJACENCY),
    },
  ),
  'update_rule': Case(
    privacy.update_rule,
    {
      'update_l2_norm_clip': (1.0, POSITIVE),
      'adjacency': ('replace-one', _ADJACENCY),
    },
  ),
}
