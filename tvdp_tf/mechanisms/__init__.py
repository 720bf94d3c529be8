"""The privacy mechanisms, and the registry of their names.

`contract` says what a mechanism is. A custom mechanism is a subclass of
`contract.Mechanism`; pass it to `TrainingSettings` instead of a name.
"""

import contextlib
import dataclasses
import inspect
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from tvdp_tf import _validate, privacy
from tvdp_tf.learning import participation, views
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
from tvdp_tf.privacy import noise_distance, sensitivity

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
  'check_name',
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
# Name of each unfinished class of a registered module -> methods it lacks.
_UNFINISHED: dict[str, list[str]] = {}
# The words that attributes of a class may hold.
_CLASS_METHODS = ('calibrations', 'check', 'refinements', 'releases_in_a_round')
_ALLOWED = {
  'participations': tuple(participation.PARTICIPATIONS),
  'adjacencies': sensitivity.ADJACENCIES,
  'noises': noise_distance.NOISES,
  'example_views': tuple(views.VIEWS),
}


def register(mechanism: type[Mechanism]) -> str:
  """Registers a mechanism by its name, and returns the name.

  A class that is defined again, for example by running a notebook cell again,
  replaces the earlier one.

  Raises:
    ValueError: If it is not a mechanism, has something that cannot be used, or
      another mechanism has its name.
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
      f' {mechanism.__qualname__}, which does not'
    )
  _check_words(mechanism)
  known = MECHANISMS.get(mechanism.name, mechanism)
  if known is not mechanism and (
    known in _ALL or _place(known) != _place(mechanism)
  ):
    raise ValueError(
      'mechanism must have its own name, not that of'
      f' {known.__module__}.{known.__qualname__}, got {mechanism.name!r}'
    )
  MECHANISMS[mechanism.name] = mechanism
  return mechanism.name


def _check_words(mechanism: type[Mechanism]) -> None:
  """Checks the words that attributes of a class hold."""
  _validate.one_of('unit of mechanism', mechanism.unit, sensitivity.UNITS)
  for name in _CLASS_METHODS:
    found = inspect.getattr_static(mechanism, name)
    if not isinstance(found, (classmethod, staticmethod)):
      raise ValueError(
        f'{name} of mechanism must be a class method, got'
        f' {type(found).__name__}'
      )
  for name, allowed in _ALLOWED.items():
    words = getattr(mechanism, name)
    is_known = isinstance(words, tuple) and {*words} <= {*allowed}
    if not is_known or not (words or name == 'noises'):
      raise ValueError(
        f'{name} of mechanism must be a tuple of {", ".join(allowed)}, got'
        f' {_validate.quoted(words)}'
      )


def check_name(name: Any) -> None:
  """Checks that there is a mechanism with that name.

  Raises:
    ValueError: If there is none, or it lacks methods.
  """
  if missing := _UNFINISHED.get(name) if isinstance(name, str) else None:
    raise ValueError(
      f'mechanism must define {", ".join(missing)}, got {name!r}, which does'
      ' not'
    )
  _validate.one_of('mechanism', name, MECHANISMS)


def _place(kind: type) -> tuple[str, str]:
  """The module and qualified name of a class."""
  return kind.__module__, kind.__qualname__


def register_module(module: types.ModuleType) -> None:
  """Registers the mechanisms that a module defines.

  A class without its own name, or with abstract methods, is taken as a base
  class of others.

  Args:
    module: Any module.

  Raises:
    ValueError: As `register`.
  """
  for kind in vars(module).values():
    if (
      isinstance(kind, type)
      and issubclass(kind, Mechanism)
      and kind.__module__ == module.__name__
      and 'name' in vars(kind)
    ):
      if kind.__abstractmethods__:
        _UNFINISHED[kind.name] = sorted(kind.__abstractmethods__)
      else:
        register(kind)


@contextlib.contextmanager
def named_after_a_setting(settings: Any) -> Iterator[None]:
  """Turns an error about the noise into one about the setting that caused it.

  Args:
    settings: A dataclass with `epsilon`, `theta` and `rounds`.

  Raises:
    ValueError: Instead of any ValueError. Its first word is the name of a
      setting.
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
    fed: The users who take part.

  Raises:
    ValueError: If no noise meets the target, or a custom mechanism has parts
      that cannot be used.
  """
  plan = MECHANISMS[settings.mechanism](settings, fed)
  if type(plan) not in _ALL:
    _check_own(plan)
  return plan


def _is_of_fields(graph: object) -> bool:
  """Whether the fields of a `GraphMechanism` distinguish it from any other."""
  params = getattr(type(graph), '__dataclass_params__', None)
  return (
    isinstance(graph, GraphMechanism)
    and params is not None
    and params.frozen
    and {*vars(graph)} <= {field.name for field in dataclasses.fields(graph)}
  )


def _check_own(plan: Mechanism) -> None:
  """Checks the parts of a custom mechanism.

  Raises:
    ValueError: If a part cannot be used.
  """
  if 'history' not in vars(plan):
    raise ValueError(
      'mechanism must call super().__init__(settings, fed) in its __init__, got'
      f' {type(plan).__qualname__}, which does not'
    )
  graph = getattr(plan, 'mechanism', plan)
  if graph is not None and not _is_of_fields(graph):
    raise ValueError(
      'mechanism must have an attribute mechanism, a GraphMechanism that is a'
      ' frozen dataclass with all its values in fields, got'
      f' {"none" if graph is plan else type(graph).__qualname__}'
    )
  record = plan.sensitivity_on_record
  if not isinstance(record, tuple) or [*map(type, record)] != [str, bool]:
    raise ValueError(
      'mechanism must return from sensitivity_on_record a formula and whether'
      f' it is proven, (str, bool), got {record!r}'
    )
  releases = plan.releases_in_a_round(plan.settings)
  if not isinstance(releases, int) or releases < 1:
    raise ValueError(
      'mechanism must return an integer >= 1 from releases_in_a_round, got'
      f' {releases!r}'
    )
  try:
    stated: object = plan.statement()
  except Exception:  # Without releases it may have nothing to state.
    pass
  else:
    if not isinstance(stated, privacy.PrivacyStatement):
      raise ValueError(
        'mechanism must return a tvdp_tf.privacy.PrivacyStatement from'
        f' statement, got {_validate.quoted(stated)}'
      )
  try:
    sensitivities = plan.sensitivities()
  except NotImplementedError:
    return
  users = plan.settings.users
  if not (
    isinstance(sensitivities, np.ndarray)
    and sensitivities.shape == (users,)
    and sensitivities.dtype.kind in 'iuf'
    and (sensitivities > 0).all()
  ):
    raise ValueError(
      f'mechanism must return from sensitivities an array of {users} numbers >'
      f' 0, one per user, got {type(sensitivities).__name__} of the shape'
      f' {np.shape(sensitivities)}'
    )
