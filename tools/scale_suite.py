"""Training on very many users on disk: memory, and the time of a round.

`run` writes made-up images of 28 x 28 pixels, 60 for each user, and starts
`binaries/train.py` on them, with mechanism `gradient`, ledger, checkpoint and
evaluation. It takes the rounds' seconds from metrics.csv, samples the memory of
the process from outside, and stops it after the given time. For comparison, it
runs the same rounds with a few users in memory, which shows what a round takes
without the disk.
"""

import csv
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

from tvdp_tf import errors

# Per user.
EXAMPLES = 60
_CLASSES = 10
_SECONDS_BETWEEN = 2.0
# Enough for more than a day.
_MOST_ROUNDS = 20_000
# Number of rounds from memory, and how many of them are not counted.
_ROUNDS_IN_MEMORY, _WARM_UP = 12, 2
# A data set for `--import`: the files' users, in memory.
_IN_MEMORY = """
import dataclasses

import numpy as np

from tvdp_tf.learning import datasets


def _load(data_dir):
  found = datasets.load(f'files:{data_dir}')
  features = np.asarray(found.train_features)
  return dataclasses.replace(found, name='memory', train_features=features)


datasets.LOADERS['memory'] = _load
"""
_TRAIN = pathlib.Path(__file__).parents[1] / 'binaries' / 'train.py'


def write_users(folder: pathlib.Path, users: int) -> None:
  """Writes files of made-up images for users (`tvdp_tf.learning.on_disk`)."""
  rng = np.random.default_rng(0)
  prototypes = rng.integers(0, 200, [_CLASSES, 28, 28, 1]).astype(np.uint8)

  def fill(name, count, at_once):
    labels = rng.integers(0, _CLASSES, count)
    features = np.lib.format.open_memmap(
      folder / f'{name}_features.npy', 'w+', np.uint8, (count, 28, 28, 1)
    )
    for start in range(0, count, at_once):
      part = labels[start : start + at_once]
      noise = rng.integers(0, 56, [len(part), 28, 28, 1], np.uint8)
      features[start : start + len(part)] = prototypes[part] + noise
    features.flush()
    np.save(folder / f'{name}_labels.npy', labels)

  fill('train', users * EXAMPLES, 60_000)
  fill('test', 1000, 1000)
  np.save(folder / 'train_users.npy', np.full(users, EXAMPLES))


def _command(
  data: list[str],
  run: pathlib.Path,
  users: int,
  users_per_round: int,
  rounds: int,
) -> list[str]:
  return [
    sys.executable,
    str(_TRAIN),
    *data,
    f'--users={users}',
    f'--users_per_round={users_per_round}',
    '--participation=uniform',
    f'--rounds={rounds}',
    '--theta=1',
    '--epsilon=8',
    '--delta=1e-5',
    '--noprogress',
    f'--output_dir={run}',
  ]


def anonymous_mib(pid: int) -> float:
  """Returns a process's anonymous memory, MiB; 0 when it has ended."""
  try:
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
  except OSError:
    return 0.0
  for line in status.splitlines():
    if line.startswith('RssAnon:'):
      return int(line.split()[1]) / 1024
  return 0.0


def rounds_of(run: pathlib.Path) -> list[float]:
  """Returns the seconds of the rounds in a run folder so far."""
  path = run / 'metrics.csv'
  if not path.exists():
    return []
  with open(path, newline='') as file:
    return [float(row['seconds']) for row in csv.DictReader(file)]


def _watch(
  command: list[str], run: pathlib.Path, seconds: float, modules: pathlib.Path
) -> list[tuple[float, int, float]]:
  """Samples (seconds, rounds, MiB) of a training, which is then stopped."""
  with tempfile.TemporaryFile('w+') as output:
    # The checkout's own modules, and those that are imported.
    root = str(_TRAIN.parents[1])
    environment = os.environ | {'PYTHONPATH': f'{root}:{modules}'}
    process = subprocess.Popen(
      command, stdout=output, stderr=output, env=environment
    )
    begun, samples = time.monotonic(), []
    try:
      while process.poll() is None:
        elapsed = time.monotonic() - begun
        if elapsed > seconds:
          process.send_signal(signal.SIGTERM)
          process.wait(120)
          break
        samples.append(
          (elapsed, len(rounds_of(run)), anonymous_mib(process.pid))
        )
        time.sleep(_SECONDS_BETWEEN)
    finally:
      process.kill()
      process.wait()
    if not rounds_of(run):
      output.seek(0)
      raise errors.TrainingFailedError(
        f'no round was trained: {" ".join(output.read().split())[-500:]}'
      )
  return samples


def slope_kib(samples: list[tuple[float, int, float]]) -> float:
  """Returns KiB per round in the second half: the median slope of all pairs."""
  half = [s for s in samples if s[1] >= max(s[1] for s in samples) / 2]
  slopes = [
    1024 * (later[2] - sooner[2]) / (later[1] - sooner[1])
    for i, sooner in enumerate(half)
    for later in half[i + 1 :]
    if later[1] > sooner[1]
  ]
  return statistics.median(slopes) if slopes else float('nan')


def _write(
  folder: pathlib.Path,
  users: int,
  users_per_round: int,
  samples: list[tuple[float, int, float]],
  from_disk: list[float],
  in_memory: list[float],
) -> None:
  from tvdp_tf.output import files, machine, plots  # noqa: PLC0415

  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'scale.csv',
    ('seconds', 'rounds', 'anonymous_mib'),
    [(f'{s:.1f}', r, f'{m:.1f}') for s, r, m in samples],
    end='\r\n',
  )
  figure, axes = plots.plt.subplots(figsize=(7, 3.5))
  axes.plot([s / 60 for s, _, _ in samples], [m for _, _, m in samples])
  axes.set(xlabel='minutes', ylabel='memory, MiB', ylim=(0, None))
  axes.grid(alpha=0.3)
  figure.tight_layout()
  plots.save_figure(figure, folder / 'scale.png')
  host = machine.describe()
  disk, memory = map(statistics.median, (from_disk, in_memory))
  minutes = samples[-1][0] / 60
  lines = [
    '# Many users on the disk',
    '',
    f'By `python -m tools.scale --minutes={minutes:.0f}`, on '
    f'{machine.in_words(host)}, at a load of {host["load_average"]:.1f}.',
    '',
    f'U = {users:,} users of {EXAMPLES} examples on the disk, K = '
    f'{users_per_round:,}: {len(from_disk) + _WARM_UP} rounds.',
    '',
    f'- A round takes {disk:.2f} s, the median; with a few users, who are in'
    f' memory, {memory:.2f} s: {disk / memory:.2f} times.',
    f'- Memory that no file backs: at most {max(m for _, _, m in samples):,.0f}'
    f' MiB; in the second half {slope_kib(samples):+.1f} KiB a round.',
    '',
    '![memory](scale.png)',
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')


def run(
  folder: pathlib.Path, users: int, users_per_round: int, seconds: float
) -> None:
  """Writes the users, trains, and writes the results.

  Args:
    folder: The folder for scale.csv, scale.png and README.md.
    users: U.
    users_per_round: K.
    seconds: How long to train from disk.

  Raises:
    TrainingFailedError: If the training fails.
  """
  with tempfile.TemporaryDirectory(prefix='scale') as name:
    place = pathlib.Path(name)
    small, large = place / 'small', place / 'large'
    few = 2 * users_per_round
    for data, count in ((small, few), (large, users)):
      data.mkdir()
      write_users(data, count)
    (place / 'scale_users_in_memory.py').write_text(_IN_MEMORY)

    def train(name, data, count, rounds, most_seconds):
      print(f'trains {name}', flush=True)
      output = place / name
      command = _command(data, output, count, users_per_round, rounds)
      samples = _watch(command, output, most_seconds, place)
      return samples, rounds_of(output)[_WARM_UP:]

    _, in_memory = train(
      'from_memory',
      [
        '--import=scale_users_in_memory',
        '--dataset=memory',
        f'--data_dir={small}',
      ],
      few,
      _ROUNDS_IN_MEMORY,
      1800.0,
    )
    samples, from_disk = train(
      'from_disk',
      [f'--dataset=files:{large}', '--split=natural'],
      users,
      _MOST_ROUNDS,
      seconds,
    )
    if not in_memory or not from_disk:
      raise errors.TrainingFailedError(
        f'{seconds:g} seconds are too few for {_WARM_UP + 1} rounds'
      )
    _write(folder, users, users_per_round, samples, from_disk, in_memory)
