"""What makes a run private: a room for every mechanism.

`contract` says what a mechanism is. One of your own is a subclass of
`contract.Mechanism`, given to `TrainingSettings` in place of a name.
"""

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from tvdp_tf.mechanisms.central import Central, CentralMechanism
from tvdp_tf.mechanisms.contract import (
  BudgetSpentError,
  GraphMechanism,
  Mechanism,
  Population,
  Round,
)
from tvdp_tf.mechanisms.distributed import (
  Distributed,
  DistributedMechanism,
  DistributedUsers,
)
from tvdp_tf.mechanisms.gradient import Gradient, GradientMechanism
from tvdp_tf.mechanisms.interfaces import GRADIENTS, MODEL
from tvdp_tf.mechanisms.laplace import Laplace, LaplaceMechanism
from tvdp_tf.mechanisms.noiseless import Algorithm1, Noiseless, NoMechanism
from tvdp_tf.mechanisms.paper import Paper, PaperMechanism

__all__ = [
  'GRADIENTS',
  'MECHANISMS',
  'MODEL',
  'Algorithm1',
  'BudgetSpentError',
  'Central',
  'CentralMechanism',
  'Distributed',
  'DistributedMechanism',
  'DistributedUsers',
  'Gradient',
  'GradientMechanism',
  'GraphMechanism',
  'Laplace',
  'LaplaceMechanism',
  'Mechanism',
  'NoMechanism',
  'Noiseless',
  'Paper',
  'PaperMechanism',
  'Population',
  'Round',
  'build',
  'named_after_a_setting',
  'register',
  'register_module',
]

_ALL: tuple[type[Mechanism], ...] = (
  *(Paper, Gradient, Distributed, DistributedUsers, Central, Laplace),
  Algorithm1,
  Noiseless,
)
MECHANISMS = {mechanism.name: mechanism for mechanism in _ALL}


def register(mechanism: type[Mechanism]) -> str:
  """Makes a mechanism known by its name; returns the name.

  Raises:
    ValueError: If it is no mechanism, or another mechanism has the name.
  """
  name = getattr(mechanism, 'name', None)
  if not (
    issubclass(mechanism, Mechanism)
    and isinstance(name, str)
    and name.isidentifier()
  ):
    raise ValueError(
      'mechanism must be a subclass of tvdp_tf.Mechanism whose name is an'
      f' identifier, got {mechanism.__qualname__} with the name {name!r}'
    )
  if missing := sorted(mechanism.__abstractmethods__):
    raise ValueError(
      f'mechanism must define {", ".join(missing)}, got'
      f' {mechanism.__qualname__} without'
    )
  known = MECHANISMS.setdefault(mechanism.name, mechanism)
  if known is not mechanism:
    raise ValueError(
      f'mechanism must have a name of its own, got {mechanism.name!r}'
    )
  return mechanism.name


def register_module(module: types.ModuleType) -> None:
  """Makes the mechanisms known that a module defines.

  A class without a name of its own, or with abstract methods, is a base class
  of others.

  Args:
    module: Any.

  Raises:
    ValueError: As of `register`.
  """
  for kind in vars(module).values():
    if (
      isinstance(kind, type)
      and issubclass(kind, Mechanism)
      and kind.__module__ == module.__name__
      and 'name' in vars(kind)
      and not kind.__abstractmethods__
    ):
      register(kind)


@contextlib.contextmanager
def named_after_a_setting(settings: Any) -> Iterator[None]:
  """Makes an error about the noise one about the setting that made it so.

  Args:
    settings: A dataclass with `epsilon`, `theta` and `rounds`.

  Raises:
    ValueError: For any ValueError; its first word is the name of a setting.
  """
  try:
    with np.errstate(over='ignore'):
      yield
  except ValueError as error:
    name = str(error).partition(' ')[0]
    if name in {field.name for field in dataclasses.fields(settings)}:
      raise
    name = 'epsilon' if settings.theta == 1 else 'theta'
    raise ValueError(
      f'{name} must leave the noise of all {settings.rounds} rounds'
      f' representable, got {getattr(settings, name)!r} ({error})'
    ) from error


def build(settings: Any, fed: Population) -> Mechanism:
  """Calibrates the mechanism of the settings.

  Args:
    settings: A `TrainingSettings`.
    fed: Who takes part.

  Raises:
    ValueError: If no noise meets the target.
  """
  return MECHANISMS[settings.mechanism](settings, fed)
