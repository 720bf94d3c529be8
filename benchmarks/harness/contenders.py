"""The programs that are compared: this library and its peers.

Each peer has its own environment in `.venv-peers/<name>`, created by `make
peers`; a peer without one is absent, and is reported as such.
"""

import dataclasses
import pathlib
import sys

from benchmarks.harness import work as work_lib

ENVIRONMENTS = '.venv-peers'


@dataclasses.dataclass(frozen=True)
class Contender:
  """A form of a program.

  Attributes:
    library: The library that is measured.
    form: The value of the program's `--form`.
    description: A description of the form.
    module: The module of the program.
    environment: Its folder in `.venv-peers`; empty for this interpreter.
    is_quiet: Whether its processes use no resources while they wait.
    kinds: Kinds of the works that it does (`Work.kind`).
    models: Models of the works that it does (`Work.model`).
    trains: Whether it has a program for a whole training.
    on_gpu: Whether it needs a GPU; if so, it is only measured when named.
  """

  library: str
  form: str
  description: str
  module: str
  environment: str = ''
  is_quiet: bool = True
  kinds: tuple[str, ...] = (work_lib.PROJECTED,)
  models: tuple[str, ...] = work_lib.MODELS
  trains: bool = False
  on_gpu: bool = False

  @property
  def name(self) -> str:
    """The name in flags and tables."""
    return f'{self.library}/{self.form}'

  def does(self, work: work_lib.Work) -> bool:
    """Whether it does a work."""
    return work.kind in self.kinds and work.model in self.models

  @property
  def training_module(self) -> str:
    """The module of a peer's program for a whole training."""
    return self.module.rpartition('.')[0] + '.training'

  def interpreter(self, root: pathlib.Path) -> pathlib.Path:
    """Returns the Python that runs it, in a checkout."""
    if not self.environment:
      return pathlib.Path(sys.executable)
    return root / ENVIRONMENTS / self.environment / 'bin' / 'python'

  def is_present(self, root: pathlib.Path) -> bool:
    """Whether a checkout has its environment and program."""
    program = root / (self.module.replace('.', '/') + '.py')
    return self.interpreter(root).exists() and (
      not self.environment or program.exists()
    )


_BOTH = (work_lib.PROJECTED, work_lib.PRIVATE)
_PRIVATE = (work_lib.PRIVATE,)


def _ours(
  form: str,
  description: str,
  kinds: tuple[str, ...] = _BOTH,
  trains: bool = False,
  on_gpu: bool = False,
) -> Contender:
  return Contender(
    'tvdp_tf',
    form,
    description,
    'benchmarks.harness.ours',
    kinds=kinds,
    trains=trains,
    on_gpu=on_gpu,
  )


def _peer(library: str, form: str, description: str, **fields) -> Contender:
  module = f'benchmarks.peers.{library}.program'
  return Contender(
    library, form, description, module, **{'environment': library, **fields}
  )


OURS = _ours(
  'compiled', 'the learning process in the compiled runtime', trains=True
)
MATRIX_PRODUCT = Contender(
  'tensorflow',
  'matmul',
  'a product of two large matrices',
  'benchmarks.harness.matrix_product',
  kinds=_BOTH,
)
ROUND_PRODUCTS = dataclasses.replace(
  MATRIX_PRODUCT,
  form='products',
  description='the products of a round, nothing else',
)
_ALL = (
  OURS,
  _ours('continuous', 'the same with continuous noise', _PRIVATE),
  _ours('tff', "the same learning process on TFF's worker"),
  _peer('pytorch', 'loop', 'eager, client after client, each on all cores'),
  _peer('pytorch', 'threads', 'eager, one Python thread a core'),
  _peer('pytorch', 'compiled', 'torch.compile, one Python thread a core'),
  _peer('jax', 'scan', 'one jitted scan over the clients'),
  _peer('jax', 'vmap', 'all clients at once'),
  _peer('jax', 'sharded', 'one CPU device a core, each scans its clients'),
  _peer('jax', 'ghost', 'sharded, ghost clipping by hand', kinds=_PRIVATE),
  _peer(
    'jax', 'examples', 'sharded, vmap of grad over examples', kinds=_PRIVATE
  ),
  _peer(
    'opacus',
    'loop',
    'ghost clipping, on all cores',
    kinds=_PRIVATE,
    trains=True,
  ),
  _peer(
    'opacus',
    'threads',
    'ghost clipping, a Python thread a core',
    kinds=_PRIVATE,
    trains=True,
  ),
  _peer(
    'tensorflow_privacy',
    'fast',
    'fast clipping in a tf.function a client; dense layers alone',
    environment='',
    kinds=_PRIVATE,
    models=('mlp',),
  ),
  _peer(
    'pfl',
    'process',
    "pfl's simulation in one process, on all cores",
    trains=True,
  ),
  _peer(
    'pfl', 'workers', "pfl's simulation in one process a core", is_quiet=False
  ),
  _peer(
    'flower',
    'simulation',
    'Ray, one actor a core, LocalDpMod',
    is_quiet=False,
    trains=True,
  ),
  _ours('gpu', 'compiled, on a GPU', (work_lib.PROJECTED,), on_gpu=True),
  _ours('gpu-continuous', 'continuous, on a GPU', _PRIVATE, on_gpu=True),
  _peer('jax', 'gpu-scan', 'scan, on a GPU', on_gpu=True),
  _peer('jax', 'gpu-vmap', 'vmap, on a GPU', on_gpu=True),
  _peer('jax', 'gpu-ghost', 'ghost, on a GPU', kinds=_PRIVATE, on_gpu=True),
  _peer(
    'jax', 'gpu-examples', 'examples, on a GPU', kinds=_PRIVATE, on_gpu=True
  ),
  _peer('pytorch', 'gpu', 'loop, on a GPU', on_gpu=True),
)
CONTENDERS = {contender.name: contender for contender in _ALL}


def references(work: work_lib.Work) -> list[Contender]:
  """Returns the references that a work's rounds are compared with."""
  if work.examples_per_user == 1:
    return [MATRIX_PRODUCT]  # There is almost nothing to multiply.
  return [MATRIX_PRODUCT, ROUND_PRODUCTS]
