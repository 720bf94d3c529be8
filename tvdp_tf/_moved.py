"""Keeps the old names of moved code importable for one release."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any

# Old module, or package of modules -> its new name. The modules of the
# benchmark and the reproduction are only in the repository.
MODULES = {
  'tvdp_tf.experiments.best_run': 'tvdp_tf.training.best_run',
  'tvdp_tf.experiments.federation': 'tvdp_tf.training.federation',
  'tvdp_tf.experiments.planning': 'tvdp_tf.planner',
  'tvdp_tf.experiments.plans': 'tvdp_tf.mechanisms',
  'tvdp_tf.experiments.rounds': 'tvdp_tf.training.rounds',
  'tvdp_tf.experiments.settings': 'tvdp_tf.training.settings',
  'tvdp_tf.experiments.shared_ledger': 'tvdp_tf.training.shared_ledger',
  'tvdp_tf.experiments.training': 'tvdp_tf.training.train',
  'tvdp_tf.privacy.mechanisms': 'tvdp_tf.mechanisms',
  'tvdp_tf.privacy.poisson_composition': 'tvdp_tf.privacy.spending',
  'tvdp_tf.simulation': 'tvdp_tf.runtimes',
}


def _warn(old: str, new: str, stacklevel: int) -> None:
  warnings.warn(
    f'{old} was renamed to {new}; the next release removes the old name',
    DeprecationWarning,
    stacklevel=stacklevel,
  )


def attribute(old: str, module: str, name: str) -> Any:
  """The value of an old name, with a warning.

  Args:
    old: The full old name.
    module: The module that has it now.
    name: Its name there.
  """
  _warn(old, f'{module}.{name}', stacklevel=4)
  return getattr(importlib.import_module(module), name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
  """Finds old modules, which are the new ones under another name."""

  def __init__(self):
    self._own_specs: dict[ModuleType, Any] = {}

  def _new(self, name: str) -> str | None:
    for old, new in MODULES.items():
      if name == old or name.startswith(old + '.'):
        return new + name[len(old) :]
    return None

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    del path, target
    if self._new(fullname) is None:
      return None
    return importlib.machinery.ModuleSpec(fullname, self)

  def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
    new = self._new(spec.name)
    assert new is not None
    _warn(spec.name, new, stacklevel=3)
    module = importlib.import_module(new)
    self._own_specs[module] = module.__spec__
    return module

  def exec_module(self, module: ModuleType) -> None:
    # The module has already run, and only borrows the old name.
    module.__spec__ = self._own_specs.pop(module)


def install() -> None:
  """Makes the old modules importable."""
  # First, or a module of a moved package would be loaded a second time.
  sys.meta_path.insert(0, _Finder())
