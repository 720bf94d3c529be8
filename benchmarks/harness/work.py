"""The work that every program of the benchmark does: data, model, cohorts.

This module only uses NumPy, because programs of other libraries import it in
their own environments. Numbers are made from random bits by exactly rounded
operations, so they are the same everywhere; `digest` verifies it.

In a round, K of U users are drawn; each starts from the global model and takes
tau full-batch gradient steps; the server averages.

In a projected work, all parameters together are projected to norm C after each
step, and N(0, sigma^2) is added to every parameter of an upload. In a private
one, the gradient of every example is clipped to norm C_g, all parameters
together, and N(0, sigma^2) is added to every value of their mean, in each step;
nothing is projected.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence

import numpy as np

from tvdp_tf import _validate
from tvdp_tf.learning import aligned

MODELS = ('mlp', 'cnn')
PROJECTED, PRIVATE = 'projected', 'private'
NUM_CLASSES = 10
# Size of the square matrices whose product measures the machine's peak.
MATRIX_SIZE = 2048
MATRIX_FLOPS = 2 * MATRIX_SIZE**3
_INPUT_SHAPES = {'mlp': (784,), 'cnn': (32, 32, 3)}


@dataclasses.dataclass(frozen=True)
class Layer:
  """A dense or convolutional layer; convolutions are followed by 2x2 pooling.

  Attributes:
    kernel: Shape of the kernel, [in, out] or [height, width, in, out].
    positions: How often the kernel is applied to an example.
  """

  kernel: tuple[int, ...]
  positions: int = 1

  @property
  def flops(self) -> int:
    """Operations of one product of the kernel with one example's input."""
    return 2 * math.prod(self.kernel) * self.positions

  @property
  def input_shape(self) -> tuple[int, ...]:
    """Shape of one example's input."""
    *window, channels, _ = self.kernel
    return (
      *(math.isqrt(self.positions) + size - 1 for size in window),
      channels,
    )


@dataclasses.dataclass(frozen=True)
class Work:
  """One work, as described above.

  Attributes:
    model: 'mlp' (dense, 784 - hidden - 10, linear) or 'cnn' (LeNet-5's: conv
      5x5x6, pool, conv 5x5x16, pool, dense 120, 84, 10, ReLU, 32 x 32 x 3).
    users: U.
    users_per_round: K.
    examples_per_user: n.
    local_steps: tau.
    learning_rate: eta.
    l2_norm_clip: C; None in a private work.
    example_l2_norm_clip: C_g; None in a projected work.
    noise_stddev: sigma.
    hidden_units: Width of the mlp.
    seed: Seed of data, initial weights and cohorts.
  """

  model: str = 'mlp'
  users: int = 100
  users_per_round: int = 10
  examples_per_user: int = 600
  local_steps: int = 5
  learning_rate: float = 0.1
  l2_norm_clip: float | None = 5.0
  example_l2_norm_clip: float | None = None
  noise_stddev: float = 0.01
  hidden_units: int = 32
  seed: int = 1

  def __post_init__(self):
    _validate.one_of('model', self.model, MODELS)
    _validate.integer('users', self.users)
    _validate.integer('users_per_round', self.users_per_round, 1, self.users)
    _validate.integer('examples_per_user', self.examples_per_user)
    _validate.integer('local_steps', self.local_steps)
    _validate.positive('learning_rate', self.learning_rate)
    if (self.l2_norm_clip is None) == (self.example_l2_norm_clip is None):
      raise ValueError(
        'one of l2_norm_clip and example_l2_norm_clip must be given'
      )
    for name in ('l2_norm_clip', 'example_l2_norm_clip'):
      if getattr(self, name) is not None:
        _validate.positive(name, getattr(self, name))
    _validate.positive('noise_stddev', self.noise_stddev)
    _validate.integer('hidden_units', self.hidden_units)
    _validate.integer('seed', self.seed, 0, 2**63 - 1)

  @property
  def kind(self) -> str:
    """`PROJECTED` or `PRIVATE`."""
    return PROJECTED if self.example_l2_norm_clip is None else PRIVATE

  @property
  def input_shape(self) -> tuple[int, ...]:
    """Shape of one example."""
    return _INPUT_SHAPES[self.model]

  @property
  def layers(self) -> tuple[Layer, ...]:
    """The layers from the input to the logits."""
    if self.model == 'mlp':
      return (
        Layer((784, self.hidden_units)),
        Layer((self.hidden_units, NUM_CLASSES)),
      )
    return (
      Layer((5, 5, 3, 6), 28 * 28),
      Layer((5, 5, 6, 16), 10 * 10),
      Layer((400, 120)),
      Layer((120, 84)),
      Layer((84, NUM_CLASSES)),
    )

  @property
  def flops_per_round(self) -> int:
    """Operations of the products of a round, each counted once.

    A layer takes three products per example and step: forward, the gradient of
    its kernel, and that of its input; the first layer does not need the last.
    Clipping every example takes no further product: norms do not need one.
    """
    forward = [layer.flops for layer in self.layers]
    an_example = 3 * sum(forward) - forward[0]
    examples = self.users_per_round * self.examples_per_user
    return examples * self.local_steps * an_example

  @property
  def data_bytes(self) -> int:
    """Bytes of all users' features."""
    examples = self.users * self.examples_per_user
    return 4 * examples * math.prod(self.input_shape)

  def _uniform(self, *shape: int, stream: int) -> np.ndarray:
    """Draws float32 numbers in [-1, 1)."""
    rng = np.random.Generator(np.random.PCG64([self.seed, stream]))
    values = aligned.empty(shape, np.float32)
    rng.random(dtype=np.float32, out=values)
    values *= 2
    values -= 1
    return values

  def features(self) -> np.ndarray:
    """Returns the features, float32 [users, examples_per_user, ...]."""
    return self._uniform(
      self.users, self.examples_per_user, *self.input_shape, stream=1
    )

  def labels(self) -> np.ndarray:
    """Returns labels in [0, NUM_CLASSES), int32 [users, examples_per_user]."""
    uniform = self._uniform(self.users, self.examples_per_user, stream=2)
    return ((uniform + 1) * (NUM_CLASSES / 2)).astype(np.int32)

  def initial_weights(self) -> list[np.ndarray]:
    """Returns kernels (Glorot's limits) and biases (zero), float32."""
    weights = []
    for index, layer in enumerate(self.layers):
      receptive = math.prod(layer.kernel[:-2])
      limit = math.sqrt(6 / (receptive * sum(layer.kernel[-2:])))
      weights += [
        self._uniform(*layer.kernel, stream=3 + index) * np.float32(limit),
        np.zeros(layer.kernel[-1], np.float32),
      ]
    return weights

  def cohort(self, round_number: int) -> np.ndarray:
    """Returns a round's sorted users, as `UniformParticipation`; from 1."""
    rng = np.random.default_rng([self.seed, round_number])
    drawn = rng.choice(self.users, self.users_per_round, replace=False)
    return np.sort(drawn)

  def digest(self, features: np.ndarray, labels: np.ndarray) -> str:
    """Returns the digest of a program's data, which must be equal for all."""
    digest = hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode())
    arrays = [features[0], features[-1], labels, *self.initial_weights()]
    for array in [*arrays, self.cohort(1), self.cohort(2)]:
      digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def norm(weights: Sequence[np.ndarray]) -> float:
  """Returns the L2 norm of all parameters."""
  squares = [np.sum(np.square(w, dtype=np.float64)) for w in weights]
  return math.sqrt(sum(squares))


def from_json(text: str) -> Work:
  """The inverse of `json.dumps(dataclasses.asdict(work))`."""
  return Work(**json.loads(text))


def _private(work: Work) -> Work:
  return dataclasses.replace(work, l2_norm_clip=None, example_l2_norm_clip=1.0)


_MLP, _CNN = Work(), Work('cnn', examples_per_user=500)
WORKS = {
  'mlp-round': _MLP,
  'cnn-round': _CNN,
  'private-mlp-round': _private(_MLP),
  'private-cnn-round': _private(_CNN),
  # Almost nothing to train, to measure the overhead of a client.
  'small-clients': Work(
    users=1000, users_per_round=1000, examples_per_user=1, local_steps=1
  ),
}
# The same shapes, but quick. With seed 1, one of cnn's 20 examples hits a tie
# of a maximum, where rounding alone changes its gradient.
SMOKE_WORKS = {
  name: dataclasses.replace(
    work,
    users=4,
    users_per_round=2,
    examples_per_user=20,
    local_steps=2,
    seed=2,
  )
  for name, work in WORKS.items()
}
