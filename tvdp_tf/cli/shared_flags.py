"""Flags that several programs share, each defined once.

Names and defaults are those of the fields of `TrainingSettings`.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

from absl import flags

from tvdp_tf import mechanisms
from tvdp_tf.learning import datasets, views
from tvdp_tf.training import settings

_DEFAULTS = {
  field.name: field.default
  for field in dataclasses.fields(settings.TrainingSettings)
}

_CHOOSE_NOISE = tuple(
  name
  for name, mechanism in mechanisms.MECHANISMS.items()
  if len(mechanism.noises) > 1
)

# Field -> (kind of flag, help); an enum's kind is its choices.
_FLAGS: dict[str, tuple[str | tuple[str, ...], str]] = {
  'dataset': (
    'string',
    f'Data set: {", ".join(datasets.LOADERS)}; tfds:NAME for any images with'
    ' labels that TFDS has; files:FOLDER for arrays that need not fit into'
    ' memory; digits is included.',
  ),
  'data_dir': ('string', "TFDS's folder; downloads on first use."),
  'features': (
    'string',
    'Features computed from each example once, before training: none, or'
    ' scattering for images with --model=linear. They cost no privacy.',
  ),
  'views': (
    tuple(views.VIEWS),
    'mirror: the gradient of an image is the mean over it and its mirror image,'
    ' clipped once. It costs no privacy. Not with --features.',
  ),
  'model': (
    'string',
    f'Model: {", ".join(settings.MODELS)}, or keras:PATH for a .keras file.',
  ),
  'users': ('integer', 'U, the number of users.'),
  'users_per_round': ('integer', 'K, users that take part in a round.'),
  'split': (settings.SPLITS, 'How examples are dealt out to users.'),
  'dirichlet_concentration': (
    'float',
    'Label skew of --split=dirichlet: small is skewed.',
  ),
  'mechanism': (
    'string',  # The settings know those of --import, too.
    '; '.join(
      f'{name}: {mechanism.summary}'
      for name, mechanism in mechanisms.MECHANISMS.items()
    )
    + '; or the name of your own mechanism in a module of --import.',
  ),
  'participation': (
    settings.PARTICIPATIONS,
    'uniform: K of U at random; balanced: everyone once in U/K rounds; '
    'poisson: everyone with probability K/U. By default what suits the '
    'mechanism.',
  ),
  'epsilon': ('float', 'Target epsilon.'),
  'delta': ('float', 'Target delta, well below 1 / number of examples.'),
  'adjacency': (
    settings.ADJACENCIES,
    'What epsilon protects. replace-one: an example exchanged for any other;'
    ' zero-out: an example whose gradient is set to zero, half the noise and'
    ' half the promise. By default what suits the mechanism.',
  ),
  'theta': ('float', 'Ratio of the noise variances of successive rounds.'),
  'schedule': (
    'list',
    'Your own schedule, instead of --theta: a standard deviation for each'
    ' round, comma-separated, in any unit; calibration sets the scale.',
  ),
  'rounds': ('integer', 'M, the number of rounds.'),
  'local_steps': (
    'integer',
    'tau, full-batch steps of a client per round. By default 10, and 1 with'
    ' --mechanism=distributed.',
  ),
  'l2_norm_clip': (
    'float',
    'C, the norm that parameters are projected to, or that updates are clipped'
    ' to if the noise is on their sum.',
  ),
  'example_l2_norm_clip': (
    'float',
    'C_g, the norm that per-example gradients are clipped to.',
  ),
  'learning_rate': (
    'float',
    'eta, of the local steps. By default 1, and 0.5 with --mechanism=none.',
  ),
  'dropouts': (
    'integer',
    'For mechanisms whose clients share the noise: how many clients of a round'
    ' may drop out.',
  ),
  'colluders': (
    'integer',
    'For mechanisms whose clients share the noise: how many clients of a round'
    ' may tell the server their data and noise.',
  ),
  'server_momentum': (
    'float',
    "Nesterov's momentum of the server, in [0, 1). It costs no privacy.",
  ),
  'server_average': (
    'float',
    'Weight of the past in the exponential average of the models that is'
    ' evaluated and exported, in [0, 1). It costs no privacy.',
  ),
  'server_final_step': (
    'float',
    (
      "Ratio of the server's last step to its first, in (0, 1]; the step decays"
      ' linearly.'
    ),
  ),
  'calibration': (
    settings.CALIBRATIONS,
    "How the noise is set: printed and tight use the paper's unsound moment"
    ' bound; the others use an accountant. By default what suits the'
    ' mechanism.',
  ),
  'noise': (
    settings.NOISES,
    'How the noise is drawn: discrete noise is exact, on a grid of integers,'
    ' from a cryptographic generator; continuous noise is in floating point.'
    f' With --mechanism={" or ".join(_CHOOSE_NOISE)} you can choose; the'
    ' default is discrete on the compiled runtime without a seed.',
  ),
  'refinement': (
    settings.REFINEMENTS,
    'When the test loss stops falling, shorten the training to alpha_d times '
    'its rounds: budget spends exactly what is left, theorem2 is as printed.',
  ),
  'alpha_d': ('float', 'Factor of a refinement, in (0, 1].'),
  'runtime': (settings.RUNTIMES, 'What executes the TFF computation.'),
  'device': (
    settings.DEVICES,
    'Where it is executed; auto: a GPU, if there is one and the noise is'
    ' continuous. A small model may be faster on the CPU.',
  ),
  'seed': (
    'integer',
    'Makes the run reproducible, its noise too: for simulations only. '
    "Without it the noise comes from the system's entropy.",
  ),
}


NAMES = tuple(_FLAGS)


def define(
  names: Collection[str] = NAMES,
) -> dict[str, flags.FlagHolder]:
  """Defines the flags of the given fields.

  Args:
    names: Fields of `TrainingSettings`; by default all.

  Returns:
    The flag holders, by name.
  """
  holders = {}
  for name in names:
    kind, text = _FLAGS[name]
    if isinstance(kind, tuple):
      # Without a default, the settings choose.
      holders[name] = flags.DEFINE_enum(
        name, _DEFAULTS[name] or None, kind, text
      )
    else:
      holders[name] = getattr(flags, f'DEFINE_{kind}')(
        name, _DEFAULTS[name], text
      )
  return holders


def define_auto() -> flags.FlagHolder[bool]:
  """Defines the flag --auto."""
  return flags.DEFINE_bool(
    'auto',
    False,
    'Choose all settings that are not given, for a useful linear model, from'
    ' what is public: shape and number of the examples, users, mechanism'
    ' (gradient, if none is given), epsilon and delta. Prints each choice and'
    ' the reason.',
  )


def resolved(
  holders: dict[str, flags.FlagHolder], auto: bool
) -> dict[str, Any]:
  """The settings that the flags describe.

  Args:
    holders: The result of `define`.
    auto: Whether to choose settings that are not given, and to print the
      choices and their reasons.

  Raises:
    ValueError: If a flag is out of its range.
    DatasetUnavailableError: If the data set is needed and cannot be loaded.
  """
  found = values(holders)
  if not auto:
    return found
  # SciPy takes half a second to import.
  from tvdp_tf.planner import automatic  # noqa: PLC0415

  given = {
    name: value
    for name, value in found.items()
    if name in NAMES and flags.FLAGS[name].present
  }
  choice = automatic.choose(given)
  print('\n'.join(['chosen, from public facts alone:', *choice.reasons, '']))
  return {**found, **vars(choice.settings)}


def values(holders: dict[str, flags.FlagHolder]) -> dict:
  """The values of parsed flags by name, without flags that have none."""
  return {
    name: _numbers(name, holder.value)
    if isinstance(holder.value, list)
    else holder.value
    for name, holder in holders.items()
    if holder.value is not None
  }


def _numbers(name: str, words: Sequence[str]) -> tuple[float, ...]:
  try:
    return tuple(map(float, words))
  except ValueError as error:
    raise ValueError(
      f'{name} must be numbers, comma-separated, got {",".join(words)!r}'
    ) from error
