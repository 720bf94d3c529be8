"""Trainings by one worker and by two, each on a host with its own core.

A host is a network namespace, connected to the trainer by a virtual cable
(`veth`), whose processes are restricted to one core. It runs TFF's worker,
without TLS, because nobody else is on that network. The trainer is
`binaries/train.py` with `--runtime=remote`, on any free core. The seconds of
the rounds are those of metrics.csv. All trainings use the same seed. Their
losses must be equal to four digits; sums are rounded in another order.
"""

import contextlib
import csv
import importlib.util
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence

from tools import scale_suite
from tvdp_tf import errors

_PORT = 8000
_USERS, _USERS_PER_ROUND, _LOCAL_STEPS = 20, 10, 40
# Compilation, and the first pages.
_WARM_UP = 2
_START_S = 30.0
_TIMEOUT_S = 900.0
_ROOT = pathlib.Path(__file__).parents[1]


def missing() -> str:
  """Returns why it cannot be measured here; empty if it can."""
  if len(os.sched_getaffinity(0)) < 2:
    return 'there are fewer than two cores'
  try:
    done = subprocess.run(
      ['unshare', '--net', 'ip', 'link', 'add', 'type', 'veth'],
      capture_output=True,
      check=False,
    )
  except OSError as error:
    return f'there is no {error.filename}'
  return '' if done.returncode == 0 else 'network namespaces are not allowed'


def _run(*command: str) -> None:
  subprocess.run(command, check=True)


def _worker() -> str:
  spec = importlib.util.find_spec('tensorflow_federated')
  if spec is None or spec.origin is None:
    raise errors.TrainingFailedError('TensorFlow Federated is not installed')
  return str(pathlib.Path(spec.origin).parent / 'data' / 'worker_binary')


@contextlib.contextmanager
def _host(number: int, core: int) -> Iterator[str]:
  """Creates a host with one core and a worker; yields the worker's address."""
  network = f'10.78.{number}'
  cable = f'tvdp{os.getpid() % 10**6}_{number}'
  holder = subprocess.Popen(
    ['unshare', '--net', 'sh', '-c', 'echo; exec sleep 100000'],
    stdout=subprocess.PIPE,
  )
  with contextlib.ExitStack() as stack:
    stack.callback(holder.wait)
    stack.callback(holder.kill)
    assert holder.stdout is not None
    holder.stdout.readline()
    inside = ['nsenter', f'--target={holder.pid}', '--net']
    _run(*f'ip link add {cable} type veth peer name {cable}p'.split())
    _run(*f'ip link set {cable}p netns {holder.pid}'.split())
    _run(*f'ip address add {network}.1/24 dev {cable}'.split())
    _run(*f'ip link set {cable} up'.split())
    _run(*inside, *f'ip address add {network}.2/24 dev {cable}p'.split())
    _run(*inside, 'ip', 'link', 'set', f'{cable}p', 'up')
    log = stack.enter_context(tempfile.TemporaryFile())
    worker = subprocess.Popen(
      [*inside, 'taskset', '-c', str(core), _worker(), f'--port={_PORT}'],
      stdout=log,
      stderr=log,
    )
    stack.callback(worker.wait)
    stack.callback(worker.kill)
    deadline = time.monotonic() + _START_S
    while True:
      try:
        socket.create_connection((f'{network}.2', _PORT), 1).close()
        break
      except OSError as error:
        if worker.poll() is not None or time.monotonic() > deadline:
          raise errors.TrainingFailedError(
            f'the worker of host {number} does not answer: {error}'
          ) from error
        time.sleep(0.1)
    yield f'{network}.2:{_PORT}'


def _train(
  data: pathlib.Path, run: pathlib.Path, workers: Sequence[str], rounds: int
) -> tuple[list[float], float]:
  """Returns the seconds of the rounds that count, and the last one's loss.

  Raises:
    TrainingFailedError: If the training fails.
  """
  done = subprocess.run(
    [
      sys.executable,
      str(_ROOT / 'binaries' / 'train.py'),
      f'--dataset=files:{data}',
      '--split=natural',
      '--model=cnn',
      f'--users={_USERS}',
      f'--users_per_round={_USERS_PER_ROUND}',
      f'--local_steps={_LOCAL_STEPS}',
      # With so few examples, the noise would make the model diverge.
      '--learning_rate=0.001',
      '--participation=uniform',
      f'--rounds={rounds}',
      '--theta=1',
      '--epsilon=8',
      '--delta=1e-4',
      '--seed=1',
      '--noprogress',
      '--runtime=remote',
      '--insecure_workers',
      f'--workers={",".join(workers)}',
      f'--output_dir={run}',
    ],
    capture_output=True,
    check=False,
    text=True,
    timeout=_TIMEOUT_S,
  )
  if done.returncode:
    last = (done.stderr.strip().splitlines() or ['(it wrote no error)'])[-1]
    raise errors.TrainingFailedError(f'the training failed: {last}')
  with open(run / 'metrics.csv', newline='', encoding='utf-8') as file:
    loss = float(list(csv.DictReader(file))[-1]['test_loss'])
  return scale_suite.rounds_of(run)[_WARM_UP:], loss


def run(folder: pathlib.Path, rounds: int, turns: int) -> None:
  """Measures, and writes rounds.csv and README.md.

  Args:
    folder: The folder for the files.
    rounds: Number of rounds of each training.
    turns: Number of trainings with one worker, and also with two.

  Raises:
    TrainingFailedError: If hosts cannot be created, a training fails, or the
      trainings do not agree.
  """
  if reason := missing():
    raise errors.TrainingFailedError(reason)
  cores = sorted(os.sched_getaffinity(0))[:2]
  seconds: dict[int, list[float]] = {1: [], 2: []}
  losses: list[float] = []
  with (
    tempfile.TemporaryDirectory(prefix='two_hosts') as name,
    _host(0, cores[0]) as one,
    _host(1, cores[1]) as two,
  ):
    place = pathlib.Path(name)
    data = place / 'data'
    data.mkdir()
    scale_suite.write_users(data, _USERS)
    for turn in range(turns):
      for workers in ([one], [one, two]):
        count = len(workers)
        print(f'trains with {count} of 2 workers', flush=True)
        output = place / f'run_{turn}_{count}'
        found, loss = _train(data, output, workers, rounds)
        seconds[count] += found
        losses.append(loss)
  if max(losses) - min(losses) > 1e-4 * max(losses):
    raise errors.TrainingFailedError(f'the trainings disagree: losses {losses}')
  _write(folder, seconds)


def _write(folder: pathlib.Path, seconds: dict[int, list[float]]) -> None:
  from tvdp_tf.output import files, layout, machine  # noqa: PLC0415

  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'rounds.csv',
    ('workers', 'seconds'),
    [(count, f'{s:.4f}') for count, all_ in seconds.items() for s in all_],
    end='\r\n',
  )
  medians = {count: statistics.median(all_) for count, all_ in seconds.items()}
  rows = [
    (
      str(count),
      f'{median:.2f}',
      f'{1000 * median / _USERS_PER_ROUND:.0f}',
      f'{medians[1] / median:.2f}',
    )
    for count, median in medians.items()
  ]
  host = machine.describe()
  lines = [
    '# Two workers on two hosts',
    '',
    f'By `python -m tools.two_hosts`, on {machine.in_words(host)}, at a load '
    f'of {host["load_average"]:.1f}. A host is a network namespace with a '
    'core.',
    '',
    f'The CNN, mechanism `gradient`: {_USERS_PER_ROUND} users a round, '
    f'{scale_suite.EXAMPLES} examples and {_LOCAL_STEPS} local steps each. '
    f'Medians of {len(seconds[1])} rounds of `train.py`.',
    '',
    layout.markdown_table(
      ('workers', 'seconds a round', 'ms a client', 'times as fast'), rows
    ),
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')
