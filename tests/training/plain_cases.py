"""Numbers that must be the same under any TensorFlow, from one key and data.

  python -m tests.training.plain_cases

writes `plain_vectors.json`, under the TensorFlow of requirements.lock.
"""

import base64
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.learning import chacha20_stream
from tvdp_tf import mechanisms
from tvdp_tf.federated import schedule_state
from tvdp_tf.learning import (
  clipping,
  discrete_gaussian,
  functional,
  models,
  noise,
)
from tvdp_tf.training import federation, rounds
from tvdp_tf.training import settings as settings_lib

VECTORS = pathlib.Path(__file__).with_name('plain_vectors.json')
KEY = np.array([0x0123456789ABCDEF, -0x7EDCBA9876543210], np.int64)
NOISES = ('continuous', 'discrete')
_SIZE = 5000


def settings(noise_name: str, **changes: Any) -> settings_lib.TrainingSettings:
  """Two rounds of two of four users, on the embedded digits."""
  values = {
    'mechanism': 'gradient',
    'noise': noise_name,
    'users': 4,
    'users_per_round': 2,
    'rounds': 2,
    'local_steps': 2,
    'epsilon': 8.0,
    'seed': 5,
    **changes,
  }
  return settings_lib.TrainingSettings(**values)


def built(
  values: settings_lib.TrainingSettings,
) -> tuple[mechanisms.Mechanism, federation.Federation]:
  fed = federation.assemble(values)
  return mechanisms.build(values, fed), fed


def weights(shapes: Sequence[Sequence[int]]) -> tuple[np.ndarray, ...]:
  """The same whatever draws Keras's initial weights."""
  rng = np.random.default_rng(7)
  return tuple(
    (0.2 * rng.random(shape) - 0.1).astype(np.float32) for shape in shapes
  )


def started(process: rounds.Process) -> rounds.State:
  """The state before round 1, from `weights`."""
  state = process.initialize()
  model = state.global_model_weights
  shapes = [np.shape(weight) for weight in model.trainable]
  return state._replace(
    global_model_weights=model._replace(trainable=weights(shapes))
  )


def trained(
  plan: mechanisms.Mechanism,
  fed: federation.Federation,
  process: rounds.Process,
) -> list[rounds.State]:
  """The states before and after each round."""
  run = rounds.Rounds(plan, fed, process)
  states = [started(process)]
  for number in range(1, plan.settings.rounds + 1):
    releases = run.releases(states[-1], number, run.cohort(number))
    states.append(run.run(states[-1], releases, run.noise_keys(releases)))
  return states


def flat(state: rounds.State) -> np.ndarray:
  """All weights of the model, float32."""
  model = state.global_model_weights.trainable
  return np.concatenate([np.ravel(weight) for weight in model])


def schedule(state: rounds.State) -> schedule_state.State:
  """The part of a state that says how much noise is next."""
  found = schedule_state.of(state)
  assert found is not None
  return found


def integers() -> dict[str, str]:
  """Digests of all that is drawn in integers: the same to the bit."""
  key = tf.constant(KEY)
  drawn = {
    'chacha20': chacha20_stream.keystream(key, _SIZE, 3),
    'philox': noise._bits(key, _SIZE, 2),
    'discrete_gaussian': discrete_gaussian.discrete_gaussian(key, _SIZE, 1),
    'discrete_steps': noise.discrete_steps(
      [tf.range(_SIZE, dtype=tf.int64)], key, 4
    )[0],
  }
  return {
    name: hashlib.sha256(words.numpy().tobytes()).hexdigest()
    for name, words in drawn.items()
  }


def floats() -> dict[str, np.ndarray]:
  """What is computed in floating point: the same but for its last bits."""
  key = tf.constant(KEY)
  spec = models.MODELS['mlp']
  model = functional.FunctionalModel(spec.build((8, 8, 1), 10, 0))
  start = weights([w.shape for w in model.initial_weights])
  rng = np.random.default_rng(1)
  sums = clipping.clipped_mean_gradient(
    clipping.vectorized_clipped_sum(
      lambda w, x, y: spec.loss(y, model(w, x, True))
    ),
    [tf.constant(w) for w in start],
    tf.constant(rng.random([40, 8, 8, 1]), tf.float32),
    tf.constant(rng.integers(0, 10, 40), tf.int32),
    example_l2_norm_clip=0.7,
  )
  return {
    'normal': noise.standard_normal(key, 100, 2).numpy(),
    'clipped_mean': np.concatenate([np.ravel(s) for s in sums]),
  }


def to_text(array: np.ndarray) -> Mapping[str, str]:
  return {
    'dtype': str(array.dtype),
    'base64': base64.b64encode(array.tobytes()).decode(),
  }


def from_text(text: Mapping[str, str]) -> np.ndarray:
  return np.frombuffer(base64.b64decode(text['base64']), text['dtype'])


def main() -> None:
  from tvdp_tf import runtimes  # noqa: PLC0415 TFF is not where tests read it.

  vectors: dict[str, Any] = {'integers': integers()}
  values = floats()
  for name in NOISES:
    plan, fed = built(settings(name, model='linear'))
    with runtimes.compiled_runtime('cpu'):
      states = trained(plan, fed, rounds.build_process(plan, fed))
    values[f'{name}_model'] = flat(states[-1])
    variance = float(schedule(states[-1])['variance'])
    values[f'{name}_variance'] = np.array([variance])
  vectors['floats'] = {name: to_text(value) for name, value in values.items()}
  VECTORS.write_text(json.dumps(vectors, indent=2) + '\n')


if __name__ == '__main__':
  main()
