"""Runs a soak test, and writes its report."""

import pathlib
import tempfile

from tools import soak_run
from tvdp_tf.output import files, layout, machine, plots
from tvdp_tf.training import settings
from tvdp_tf.training import train as training

CSV = 'soak.csv'
PICTURE = 'soak.png'
# Fractions of the rounds.
INTERRUPTIONS = (0.04, 0.08, 0.12, 0.16)
WARM_UP = 0.4


def _draw(
  samples: list[soak_run.Sample], warm_up: int, path: pathlib.Path
) -> None:
  panels = {
    'resident_kib': 'resident memory, MiB',
    'descriptors': 'file descriptors',
    'threads': "threads without asyncio's",
    'children': 'child processes',
  }
  figure, axes = plots.plt.subplots(4, 1, figsize=(8, 9), sharex=True)
  for axis, (name, label) in zip(axes, panels.items(), strict=True):
    unit = 1024 if name == 'resident_kib' else 1
    values = [getattr(sample, name) / unit for sample in samples]
    axis.plot([sample.round for sample in samples], values, linewidth=0.8)
    axis.set(ylabel=label, ylim=(0, 1.2 * max(*values, 1)))
    axis.axvspan(0, warm_up, color='0.93')
    axis.grid(alpha=0.3)
  axes[0].set_title('One process, faulty clients; gray: start and resumes')
  axes[-1].set_xlabel('round')
  figure.tight_layout()
  plots.save_figure(figure, path)


def write(
  soak: soak_run.Soak,
  verdict: soak_run.Verdict,
  result: training.TrainingResult,
  warm_up: int,
  folder: pathlib.Path,
) -> None:
  """Writes `soak.csv`, `soak.png` and `README.md`."""
  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / CSV,
    soak_run.Sample._fields,
    (s._replace(seconds=round(s.seconds, 2)) for s in soak.samples),
  )
  _draw(soak.samples, warm_up, folder / PICTURE)
  last = soak.samples[-1]
  low, high = verdict.kib_a_round_interval
  host = machine.describe()
  faults = ', '.join(f'{soak.faults[name]} {name}' for name in soak_run.FAULTS)
  lines = [
    '# A long run with faults',
    '',
    f'By `make soak ARGS=--rounds={last.round}`, in {last.seconds:.0f} s on '
    f'{machine.in_words(host)}, at a load of {host["load_average"]:.1f}.',
    '',
    f'{last.round} rounds of `gradient` on the compiled runtime, four of eight '
    f'clients in each. Faults of clients: {faults}. Interrupted, and resumed '
    f'in the same process, after rounds '
    f'{", ".join(map(str, sorted(soak.interrupt_after)))}. At the end: test '
    f'accuracy {result.accuracy:.4f}, delivered epsilon '
    f'{result.statement.epsilon:.6g}.',
    '',
    f'From round {warm_up} on:',
    '',
    layout.markdown_table(
      ('', 'first half', 'second half', 'must be'),
      [
        *(
          (f'{name}, most', *map(str, halves), 'no more')
          for name, halves in (
            ('file descriptors', verdict.descriptors),
            ("threads without asyncio's pool", verdict.threads),
          )
        ),
        ('child processes, most', *[str(verdict.children)] * 2, '0'),
      ],
    ),
    '',
    f'Resident memory, every {soak.collect_every} rounds after a collection of '
    f'garbage: {verdict.kib_a_round:+.1f} KiB a round (median of the slopes of '
    f'all pairs; 95 % interval {low:+.1f} to {high:+.1f})'
    f', at most {soak_run.MOST_KIB_A_ROUND:g} allowed; '
    f'{last.resident_kib // 1024} MiB at the end.',
    '',
    f'![what was sampled]({PICTURE})',
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')


def soak(rounds: int, output_dir: pathlib.Path) -> soak_run.Verdict:
  """Trains for a number of rounds, and writes the results."""
  watched = soak_run.Soak(
    {round(share * rounds) for share in INTERRUPTIONS}, max(1, rounds // 40)
  )
  with tempfile.TemporaryDirectory() as folder:
    result = watched.run(
      settings.TrainingSettings(
        mechanism='gradient',
        users=8,
        users_per_round=4,
        local_steps=2,
        rounds=rounds,
        theta=1.0,
        seed=0,
      ),
      pathlib.Path(folder, 'run'),
    )
  warm_up = round(WARM_UP * rounds)
  verdict = soak_run.verdict(
    [sample for sample in watched.samples if sample.round > warm_up],
    watched.collect_every,
  )
  write(watched, verdict, result, warm_up, output_dir)
  return verdict
