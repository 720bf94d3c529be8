r"""Chooses all settings of a useful model from a few: `train.py --auto`.

The choice depends only on values that are public before training: the shape of
an example, the number of examples per user, the mechanism, epsilon and delta.
It does not use the content of any example, so it costs no privacy.

  features   scattering of images, otherwise examples of norm 1
  model      linear: few steps are enough, and its gradients are bounded
  cohort     all users in every round, one step each, constant noise
  C_g        0.05: nearly every gradient is clipped, so all count alike
  rate       chosen so that the noise of all rounds together has a standard
             deviation of 1.5 in each weight of the released model:
                 eta = 1.5 / (|a| sigma)
             sigma is the noise in the mean of a round at eta = 1, |a| the norm
             of the optimizer's impulse response if nothing is forgotten
             (`best_schedule`)
  rounds     as few as possible, from 50 to 100, with steps of at most 150
             clipped gradients
  server     momentum .9, and the mean of about the last tenth of the models

This is one rule for all data sets. Its numbers come from runs on the public
fifths of MNIST, Fashion-MNIST, CIFAR-10 and Adult (docs/REPRODUCTION.md).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tvdp_tf import mechanisms
from tvdp_tf.learning import datasets
from tvdp_tf.planner import best_schedule, simulation
from tvdp_tf.planner import settings as planning_settings
from tvdp_tf.training import population as population_lib
from tvdp_tf.training import settings as settings_lib

# Standard deviation of the noise in each weight of the released model, for
# features of norm 1.
_WEIGHT_NOISE_STDDEV = 1.5
_CLIP = 0.05
# How far a step may move the weights, in clipped gradients.
_LONGEST_STEP = 150.0
_ROUNDS = (50, 100)
_MOMENTUM = 0.9
# The released model is the mean of about the last tenth of all models.
_AVERAGED = 0.1
# Contraction of an optimizer that forgets almost nothing.
_NO_CONTRACTION = 1 - 1e-12


@dataclasses.dataclass(frozen=True)
class Choice:
  """Settings, and the reasons for them.

  Attributes:
    settings: The settings of the run.
    reasons: What was chosen and why, one line for each setting.
  """

  settings: settings_lib.TrainingSettings
  reasons: tuple[str, ...]


def choose(given: Mapping[str, Any]) -> Choice:
  """Chooses the settings that are not given.

  Args:
    given: Fields of `TrainingSettings` that are fixed. Without a mechanism, it
      is `gradient`.

  Returns:
    The choice.

  Raises:
    ValueError: If a setting is out of its range, or there is no rule for the
      mechanism or the model.
    DatasetUnavailableError: If the data set is needed and cannot be loaded.
  """
  name = given.get('mechanism', 'gradient')
  kind = mechanisms.MECHANISMS.get(name)
  if kind is not None and not kind.clips_examples:
    able = [n for n, k in mechanisms.MECHANISMS.items() if k.clips_examples]
    raise ValueError(
      f'auto must be given with mechanism {" or ".join(able)}, got {name!r}'
    )
  if given.get('model', 'linear') != 'linear':
    raise ValueError(
      f'auto must be given with model linear, got {given["model"]!r}'
    )
  defaults = settings_lib.TrainingSettings()
  dataset = given.get('dataset', defaults.dataset)
  facts = datasets.facts(dataset, given.get('data_dir'))
  users = given.get('users', defaults.users)
  is_image = len(facts.input_shape) == 3 and min(facts.input_shape[:2]) >= 8
  values: dict[str, Any] = {
    'mechanism': name,
    'features': 'scattering' if is_image else 'unit_norm',
    'model': 'linear',
    'users_per_round': users,
    'local_steps': 1,
    'theta': 1.0,
    'example_l2_norm_clip': _CLIP,
    'server_momentum': _MOMENTUM,
    **given,
  }
  if 'rounds' not in given:
    values['rounds'] = _rounds(values)
  values.setdefault('server_average', _average(values['rounds']))
  if 'learning_rate' not in given:
    values['learning_rate'] = _learning_rate(values)
  settings = settings_lib.TrainingSettings(**values)
  return Choice(settings, tuple(_reasons(settings, given)))


def _average(rounds: int) -> float:
  """The weight of the past, for the mean of the last tenth of the models."""
  return round(max(0.0, 1 - 1 / (_AVERAGED * rounds)), 2)


def _noise_stddev(values: Mapping[str, Any]) -> float:
  """Noise in each parameter of the last round's mean, for eta = 1."""
  settings = planning_settings.PlanSettings(**{**values, 'learning_rate': 1.0})
  population = population_lib.expected(settings)
  return float(simulation.run(settings, population).mean_noise_stddevs[-1])


def _rounds(values: Mapping[str, Any]) -> int:
  """The smallest number of rounds whose steps are not too long."""
  noise = _noise_stddev({**values, 'rounds': 1})
  # Length of all steps together that the noise allows, in clipped gradients.
  length = _WEIGHT_NOISE_STDDEV * values['example_l2_norm_clip'] / noise
  fewest, most = _ROUNDS
  return min(max(math.ceil(length / _LONGEST_STEP), fewest), most)


def _learning_rate(values: Mapping[str, Any]) -> float:
  """The learning rate with which the weights end with the intended noise."""
  settings = settings_lib.TrainingSettings(**{**values, 'learning_rate': 1.0})
  response = best_schedule.impulse_response(
    settings.server_optimizer, _NO_CONTRACTION, settings.rounds
  )
  noise = _noise_stddev(values) * float(np.linalg.norm(response))
  # More than two digits would be meaningless.
  return float(f'{_WEIGHT_NOISE_STDDEV / noise:.2g}')


def _reasons(settings: settings_lib.TrainingSettings, given: Mapping[str, Any]):
  why = {
    'mechanism': 'its guarantee is against a server that sees every upload',
    'features': 'a fixed function of one example costs no privacy',
    'model': 'few steps are enough for it',
    'users_per_round': 'everybody in every round: the noise averages out',
    'local_steps': 'one gradient per round has the least noise for its clip',
    'theta': 'no step is forgotten, so no round is worth more than another',
    'example_l2_norm_clip': 'nearly every gradient is clipped to it, so all'
    ' count equally, and the choice uses no value of'
    ' the data',
    'rounds': f'the fewest with steps of at most {_LONGEST_STEP:g} clipped'
    ' gradients',
    'server_momentum': 'longer steps for the same rounds, at no privacy cost',
    'server_average': 'the mean of the last models, at no privacy cost',
    'learning_rate': 'the noise of all rounds together has a standard deviation'
    f' of {_WEIGHT_NOISE_STDDEV} in each weight',
  }
  for name, reason in why.items():
    if name not in given and (value := getattr(settings, name)):
      shown = f'{value:g}' if isinstance(value, float) else value
      yield f'{name} = {shown}: {reason}'
