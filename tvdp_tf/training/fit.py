"""`fit` trains a Keras model on data in memory, by calling `train`."""

import base64
import dataclasses
import functools
import html
import numbers
import pathlib
import sys
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from tvdp_tf import _validate, errors, mechanisms
from tvdp_tf.learning import datasets, features, own_data, own_model
from tvdp_tf.output import files
from tvdp_tf.training import federation, population, run_folder
from tvdp_tf.training import settings as settings_lib
from tvdp_tf.training import train as training

# For an unknown model, chosen on the digits: all users in every round, one step
# per round, and a server that averages. See `fit` and `_learning_rate`.
_DEFAULTS: dict[str, Any] = {
  'mechanism': 'distributed',
  'epsilon': 3.0,
  'delta': 1e-5,
  'theta': 1.0,
  'rounds': 50,
  'local_steps': 1,
  'example_l2_norm_clip': 1.0,
  'server_momentum': 0.9,
  'server_average': 0.8,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateRun(training.TrainingResult):
  """What `fit` returns; a notebook shows its statement and its curves.

  Attributes:
    model: The trained Keras model, a copy of the caller's including its last
      softmax or sigmoid. The files in `output_dir`/model output scores, because
      training computes this step in the loss.
  """

  model: tf.keras.Model

  @functools.cached_property
  def metrics(self) -> dict[str, np.ndarray]:
    """Per-round numbers by name, float64 [rounds] (`training.metrics`)."""
    rows = files.read_csv(self.output_dir / run_folder.METRICS)
    return {
      name: np.array([float(row[name]) for row in rows]) for name in rows[0]
    }

  @property
  def history(self) -> Any:
    """`metrics` as a pandas DataFrame, with one row per round.

    Raises:
      ImportError: If pandas is not installed.
    """
    try:
      import pandas  # noqa: PLC0415
    except ImportError as error:
      raise ImportError(
        'history needs pandas, which is not installed: run pip install pandas,'
        ' or use metrics, the same values as arrays'
      ) from error
    frame = pandas.DataFrame(self.metrics).astype({'round': int})
    return frame.set_index('round')

  def _repr_html_(self) -> str:
    """HTML for a notebook."""
    curves = (self.output_dir / run_folder.CURVES).read_bytes()
    return (
      f'<p><b>{html.escape(self.statement.verdict)}</b></p>'
      f'<pre style="white-space: pre-wrap">{html.escape(str(self))}</pre>'
      '<img alt="loss, accuracy, noise and epsilon by round" src='
      f'"data:image/png;base64,{base64.b64encode(curves).decode()}">'
    )


def fit(
  model: tf.keras.Model | Callable[[], tf.keras.Model],
  x: Any,
  y: Any = None,
  *,
  test: Any,
  users: int | Any = None,
  loss: str | tf.keras.losses.Loss | None = None,
  output_dir: pathlib.Path | str | None = None,
  resume: bool = False,
  progress: bool = True,
  **settings: Any,
) -> PrivateRun:
  """Trains a Keras classifier on the caller's data, with differential privacy.

  It calls `train` and writes the same folder. The defaults are mechanism
  `distributed`, epsilon = 3, delta = 1e-5, and all users in each of 50 rounds.
  The learning rate is from 0.1 to 1: the less noise there is in a step, the
  higher it is. It depends only on public numbers, such as those of examples and
  weights, and config.json has it. No default depends on the content of the
  data. `distributed` protects an example from an observer of the sum of all
  users' clipped gradients; the statement says that the secure sum is simulated.
  With mechanism='gradient', the server may see every upload, but you need many
  more examples per user.

  Args:
    model: A Keras classifier, or a function that builds one. Its outputs are
      [n, classes], scores or their softmax, or [n, 1], the score of the second
      of two classes or its sigmoid. The model is not changed. Training starts
      from its weights, which are assumed to be public.
    x: Examples [n, ...], as an array, a pandas frame or anything that NumPy
      accepts. Or a list with one entry per user: a pair of examples and labels,
      or a `tf.data.Dataset` of (example, label), batched or not.
    y: Labels [n], class numbers or one-hot; None if `x` is a list of users.
    test: Public test data, (examples, labels) or a `tf.data.Dataset`. Their
      loss and accuracy are reported without noise. The test data are refused if
      they come from `x`, or consist mostly of copies of examples of `x`.
    users: The number of users, to whom the examples are distributed at random;
      or, with `y`, a column [n] of integers or strings that names the user of
      each example (the run numbers the users in the order of their sorted ids).
      If `x` is a list, its length.
    loss: `cross_entropy`, `logistic`, `hinge` or a Keras loss of (labels [n],
      scores), averaged over n; the default depends on the model's outputs.
    output_dir: The folder to create, or the folder of the run to resume; by
      default runs/fit-<time>.
    resume: Whether to continue the run in `output_dir`, with the same model,
      settings and data, in the same order. Every example must still belong to
      the same user; nothing on the disk could reveal a change.
    progress: Whether to draw a progress bar.
    **settings: Fields of `TrainingSettings`: epsilon, delta, mechanism, ...
      None stands for the default.

  Returns:
    The trained model, the statement and the history.

  Raises:
    UsageError: If data, model or settings do not fit, or `output_dir` exists.
      The message shows no values of the data.
    TrainingFailedError, NotWrittenError, LedgerError: As for `train`.
  """
  training.check_process()
  try:
    if output_dir is not None:
      output_dir = _validate.path('output_dir', output_dir)
    elif resume:
      raise ValueError('output_dir must be given with resume')
    known = {field.name for field in dataclasses.fields(_Settings)}
    for name in settings:
      if name not in known or name in ('dataset', 'data_dir', 'model', 'split'):
        raise ValueError(
          f'{name} is not a setting of fit, which takes the fields of'
          ' TrainingSettings, such as rounds, local_steps, learning_rate and'
          ' example_l2_norm_clip'
        )
    if not tf.executing_eagerly():
      raise ValueError(
        'fit must be called eagerly, got a call in a tf.Graph, or after'
        ' disable_v2_behavior or disable_eager_execution'
      )
    if tf.distribute.has_strategy():
      raise ValueError(
        'fit must be called outside of the scope of a tf.distribute.Strategy'
      )
    # As a wrapper passes on what it was not given.
    settings = {
      name: value for name, value in settings.items() if value is not None
    }
    is_column = hasattr(users, '__len__') and not isinstance(users, str)
    count, user_ids = (None, users) if is_column else (users, None)
    asked = settings.get('features', features.NONE)
    own = _own(model, x, y, test, loss, asked, user_ids)
    run_settings = _settings(own, count, settings)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  if isinstance(model, tf.keras.Model) and model in _trained:
    logging.warning(
      'model was trained by the run in %r: on the same data, what the two runs'
      ' disclose adds up, and the statement of each counts only its own',
      str(_trained[model]),
    )
  # Absolute, because the process may change its working directory.
  output_dir = pathlib.Path.cwd() / (output_dir or run_folder.new_name('fit-'))
  if progress and sys.stderr:  # No bar before the first round.
    print('checks and compiles the model', file=sys.stderr)
  result = training.train(
    run_settings, output_dir, progress, resume, own=own.data
  )
  trained = own.model.with_weights(result.weights)
  _trained[trained] = result.output_dir
  return PrivateRun(**result.__dict__, model=trained)


# The models that `fit` returned, and the folders of their runs.
_trained: MutableMapping[Any, pathlib.Path] = weakref.WeakKeyDictionary()

_Settings = settings_lib.TrainingSettings


@dataclasses.dataclass(frozen=True)
class _Own:
  model: own_model.OwnModel
  data: federation.Own


def _own(model, x, y, test, loss, asked: Any, user_ids=None) -> _Own:
  """Checks model and data; `asked` are the features of the settings.

  Raises:
    ValueError: If they do not fit together.
  """
  shape = own_data.shape_of(x, y)
  name = features.register(asked) if callable(asked) else asked
  has_features = name != features.NONE
  found = own_model.OwnModel(model, features.output_shape(name, shape), loss)
  # Features are computed from floats.
  dtype = np.dtype(np.float32) if has_features else found.input_dtype
  data, clients = own_data.dataset(
    x, y, test, found.num_classes, dtype, user_ids
  )
  if not has_features:
    if shape != found.input_shape:
      raise ValueError(
        f'x must have examples of the shape {found.input_shape}, as the input'
        f' of the model, got {shape}'
      )
    found.check_indices(data.test_features)
  return _Own(found, federation.Own(data, found.spec, clients))


def _settings(
  own: _Own, users: int | None, given: dict[str, Any]
) -> settings_lib.TrainingSettings:
  """Returns the run's settings.

  Raises:
    ValueError: If a setting is out of its range.
  """
  clients = own.data.clients
  if clients is not None:
    if users not in (None, len(clients)):
      raise ValueError(
        f'users must be {len(clients)}, the length of x, got {users!r}'
      )
    users = len(clients)
  elif users is None:
    raise ValueError(
      'users must be given: the number of users that the examples are dealt'
      ' out to'
    )
  elif not isinstance(users, numbers.Integral):
    raise ValueError(
      'users must be the number of users, or a column with the id of the user'
      f' of each example, got {_validate.quoted(users)}'
    )
  values = {
    **_DEFAULTS,
    'learning_rate': _LOWEST_RATE,
    'users_per_round': users,
    **given,
    'users': users,
    'dataset': datasets.OWN,
    'model': datasets.OWN,
    'split': 'iid' if clients is None else datasets.OWN,
  }
  settings = _Settings(**values)
  if 'learning_rate' in given:
    return settings
  return dataclasses.replace(
    settings, learning_rate=_learning_rate(own, settings)
  )


# Length of the noise in a step, in clips. `tools.learning_rates` compares it
# and the limits with other rates: results/learning_rates.
_NOISE_OF_A_STEP = 0.3
_LOWEST_RATE, _HIGHEST_RATE = 0.1, 1.0
# Of models with normalization layers, after which longer steps diverge.
_HIGHEST_RATE_NORMALIZED = 0.3
_FALLBACK_RATE = 0.2


def _learning_rate(own: _Own, settings: settings_lib.TrainingSettings) -> float:
  """Chooses the learning rate from public facts.

  With sigma the noise in each parameter of a round's mean gradient, and d the
  number of parameters that matter to an example (`OwnModel.used_parameters`),

    eta = 0.3 C_g / (sigma sqrt(d)), from 0.1 to 1,

  or to 0.3 if the model has normalization layers.

  Args:
    own: Model and data, of which only the numbers of examples are used.
    settings: All other settings.

  Returns:
    eta; 0.2 if the mechanism does not clip gradients, or has no noise to show.
  """
  if not mechanisms.MECHANISMS[settings.mechanism].clips_examples:
    return _FALLBACK_RATE
  settings = dataclasses.replace(settings, learning_rate=1.0)
  parts = own.data.clients or population.deal(
    settings, own.data.dataset.train_labels, 0
  )
  plan = mechanisms.build(
    settings,
    population.Population(
      population.draw(settings, 0),
      np.array([len(part) for part in parts], np.int64),
      own.model.num_parameters,
    ),
  )
  schedule = plan.schedule
  cohort = plan.fed.participation.cohort(1)
  # A mechanism of the caller's may have no schedule, or an empty cohort.
  if schedule is None or not len(cohort):
    return _FALLBACK_RATE
  first = plan.mean_noise_stddev(plan.round(1, cohort, schedule.stddev(1)))
  # Of rounds that are alike.
  even = (settings.rounds / schedule.precision()) ** 0.5
  noise = first / schedule.stddev(1) * even * own.model.used_parameters**0.5
  rate = _NOISE_OF_A_STEP * settings.example_l2_norm_clip / noise
  # More than two digits would be meaningless.
  highest = _HIGHEST_RATE_NORMALIZED if own.model.normalizes else _HIGHEST_RATE
  return float(f'{min(max(rate, _LOWEST_RATE), highest):.2g}')
