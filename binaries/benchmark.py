"""Measures speed and memory, compared with other libraries on the same work.

`benchmarks/README.md` says what is measured and how; `make peers` makes the
environments of the other libraries. Libraries without an environment are listed
as absent.
"""

import pathlib

import _start  # noqa: F401
from absl import flags

from benchmarks.harness import contenders, work
from tvdp_tf import _validate, errors
from tvdp_tf.cli import program
from tvdp_tf.training import run_folder

_ROOT = pathlib.Path(__file__).resolve().parents[1]
# The last one needs MNIST.
_DEFAULT_MEASURES = ('peers', 'startup', 'scaling')
_MEASURES = (*_DEFAULT_MEASURES, 'program')

_MEASURE = flags.DEFINE_list(
  'measure',
  list(_DEFAULT_MEASURES),
  f'What to measure, of {", ".join(_MEASURES)}: rounds in turns with the '
  'peers; cold starts of all; growth of our own rounds; whole trainings of '
  'MNIST from the command line.',
)
_WORKS = flags.DEFINE_list(
  'works',
  ['mlp-round', 'cnn-round'],
  f'Which works to measure, of {", ".join(work.WORKS)}.',
)
_CONTENDERS = flags.DEFINE_list(
  'contenders',
  [name for name, one in contenders.CONTENDERS.items() if not one.on_gpu],
  f'Which programs to measure; {contenders.OURS.name} always takes part. Forms'
  ' that begin with gpu need a GPU, and are measured only when they are named.',
)
_TURNS = flags.DEFINE_integer('turns', 8, 'Turns of each program.')
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Rounds in a turn.')
_STARTS = flags.DEFINE_integer(
  'starts', 3, 'Cold starts, or whole trainings, of each program.'
)
_DATA_DIR = flags.DEFINE_string(
  'data_dir', None, "TFDS's folder, of program; downloads on first use."
)
_SCALE = flags.DEFINE_enum(
  'scale',
  'full',
  ['smoke', 'full'],
  'smoke: the same on so little work that it takes a minute.',
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'runs/benchmark', 'Folder for the results.'
)
_PROGRESS = flags.DEFINE_bool('progress', True, 'Draw a progress bar.')


def _check_works(chosen: dict[str, work.Work]) -> None:
  """Checks that nobody is asked for by name in vain."""
  if 'program' in _MEASURE.value and not any(
    one.model == 'mlp' for one in chosen.values()
  ):
    raise errors.UsageError('--measure=program needs a work of the mlp')
  for name in _CONTENDERS.value if _CONTENDERS.present else ():
    if not any(map(contenders.CONTENDERS[name].does, chosen.values())):
      raise errors.UsageError(
        f'--contenders: {name} supports none of {", ".join(chosen)}'
      )


def main() -> None:
  """Measures what the flags say."""
  try:
    for name, values, allowed in (
      ('measure', _MEASURE.value, _MEASURES),
      ('works', _WORKS.value, tuple(work.WORKS)),
      ('contenders', _CONTENDERS.value, tuple(contenders.CONTENDERS)),
    ):
      for value in values:
        _validate.one_of(name, value, allowed)
    for name, flag in (
      ('turns', _TURNS),
      ('rounds', _ROUNDS),
      ('starts', _STARTS),
    ):
      _validate.integer(name, flag.value)
  except ValueError as error:
    raise errors.UsageError(str(error)) from error
  works = work.WORKS if _SCALE.value == 'full' else work.SMOKE_WORKS
  chosen = {name: works[name] for name in _WORKS.value}
  _check_works(chosen)
  output_dir = pathlib.Path(_OUTPUT_DIR.value)
  run_folder.check_absent(output_dir)
  with program.importing():
    from benchmarks.harness import report  # noqa: PLC0415

  results = report.run(
    report.Settings(
      measures=tuple(_MEASURE.value),
      works=chosen,
      contenders=tuple(_CONTENDERS.value),
      turns=_TURNS.value,
      rounds=_ROUNDS.value,
      starts=_STARTS.value,
      smoke=_SCALE.value == 'smoke',
      data_dir=_DATA_DIR.value,
    ),
    _ROOT,
    output_dir,
    _PROGRESS.value,
  )
  print(results.markdown())
  print(f'written to {output_dir}')


if __name__ == '__main__':
  program.run(main)
