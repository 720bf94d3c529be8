"""Provokes faults of training runs, and reports their outcomes."""

import contextlib
import json
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tools import kills, run_outcome
from tvdp_tf.privacy import ledger_audit
from tvdp_tf.training import run_folder

_SMALL = (
  *('--mechanism=paper', '--users=4', '--users_per_round=2'),
  '--local_steps=2',
)
_SEEDED = '--seed=7'
_LONG = (*_SMALL, '--rounds=12')
SHORT_ROUNDS = 4
_SHORT = (*_SMALL, f'--rounds={SHORT_ROUNDS}', _SEEDED)
_WHERE = 'compiled, paper'
_PHASES = ('start', 'rounds', 'rounds', 'rounds', 'rounds', 'end', 'end')
_SETTINGS = {
  'paper': ('--mechanism=paper',),
  'gradient, refined': (
    '--mechanism=gradient',
    '--refinement=budget',
    '--learning_rate=3',
  ),
  'central, poisson': ('--mechanism=central', '--epsilon=30'),
}
_NOTHING = 'nothing'


class Row(NamedTuple):
  """The outcome of one fault.

  Attributes:
    fault: What was done to the run.
    where: The runtime and the mechanism.
    happened: What the program did, with its own words in quotes.
    lost: What differs from the uninterrupted run.
    survived: Whether everything is as it should be.
  """

  fault: str
  where: str
  happened: str
  lost: str
  survived: bool = True


class Fault(NamedTuple):
  """A fault of a run of `SHORT_ROUNDS` rounds that only lacks its end.

  Attributes:
    name: A description of the fault.
    do: Applies the fault to the run's folder.
    said: A regular expression for what the program then says.
    mend: Undoes the fault, if the program must not continue with it; None if
      the program continues.
  """

  name: str
  do: Callable[[pathlib.Path], Any]
  said: str = '^$'
  mend: Callable[[pathlib.Path], Any] | None = None


def quoted(said: str) -> str:
  """Normalizes a program's output: names of folders, no times of warnings."""
  said = re.sub(
    r"('?)/[^ ']*?/(?:run[0-9]*|\.run\.[0-9]+)\b([^ ']*)\1", r'RUN\2', said
  )
  said = re.sub(r'^W\d{4} \S+ +\d+ (\w+\.py):\d+\]', r'\1:', said, flags=re.M)
  line = ' '.join(said.split())
  return f'"{line}"' if line else 'without a word'


def _mount(*arguments: object) -> None:
  subprocess.run(
    ['mount', *map(str, arguments)], check=True, capture_output=True
  )


class Suite:
  """Provokes faults in a separate folder, which the caller removes.

  Attributes:
    original: An undisturbed run of `SHORT_ROUNDS` rounds.
  """

  def __init__(self, folder: pathlib.Path, rng: random.Random):
    """Runs the original.

    Args:
      folder: An existing folder for the runs.
      rng: Draws the times of kills.
    """
    self._folder = folder
    self._rng = rng
    self._count = 0
    self.original = self._new_folder()
    self._must_run(self.original, *_SHORT)

  def _new_folder(self) -> pathlib.Path:
    self._count += 1
    return self._folder / f'run{self._count}'

  def _must_run(self, folder: pathlib.Path, *arguments: str) -> None:
    done = kills.run(folder, *arguments)
    if done.returncode:
      raise RuntimeError(f'{folder}: {arguments}: {done.stderr}')

  def _row(
    self,
    fault: str,
    where: str,
    happened: str,
    folder: pathlib.Path,
    reference: pathlib.Path,
  ) -> Row:
    """Returns the row of a run that has been completed."""
    if not run_folder.is_finished(folder):
      return Row(fault, where, happened, 'the run', survived=False)
    differences = run_outcome.read(folder).differences(
      run_outcome.read(reference)
    )
    lost = ', '.join(differences) or _NOTHING
    return Row(fault, where, happened, lost, not differences)

  def killed(self, runtime: str) -> Iterator[Row]:
    """Sends SIGKILL at random times to a seeded run."""
    for name, settings in _SETTINGS.items():
      arguments = (*_LONG, f'--runtime={runtime}', _SEEDED, *settings)
      reference, folder = self._new_folder(), self._new_folder()
      self._must_run(reference, *arguments)
      killer = kills.Killer(
        self._rng, arguments, kills.newest_checkpoint(reference)
      )
      for kill in killer.run(folder, _PHASES)[:-1]:
        happened = (
          f'after {kill.seconds:.2f} s, with {kill.rounds_on_record} records '
          f'in the ledger and checkpoint {kill.checkpoint}; resumed'
        )
        if kill.returncode == 0:
          happened = 'it was faster than the kill'
        yield self._row(
          f'SIGKILL: {kill.phase}',
          f'{runtime}, {name}',
          happened,
          folder,
          reference,
        )

  def killed_without_seed(self) -> Iterator[Row]:
    """Sends SIGKILL to an unseeded run: recorded rounds count as released."""
    for name, settings in _SETTINGS.items():
      folder = self._new_folder()
      arguments = (*_LONG, *settings)
      killer = kills.Killer(self._rng, arguments, 12)
      for _ in range(2):
        killer.kill(folder, 'rounds')
      last = kills.run(folder, *arguments, '--resume')
      audit = ledger_audit.audit(folder / run_folder.LEDGER)
      statement = json.loads((folder / run_folder.PRIVACY).read_text())
      # At the Renyi order of the statement.
      spent = audit.runs[0].worst_epsilon
      # Of a run that did not follow its plan, the target is what is proven.
      target = statement['target_epsilon']
      counted = any(
        abs(value - spent) <= 1e-9 * spent or spent <= value == target
        for view in statement['delivered'].values()
        for value in view.values()
      )
      within = audit.within_budget or not audit.header.enforced
      yield Row(
        'SIGKILL twice in a round, no seed',
        f'compiled, {name}',
        f'{audit.records} attempts at {audit.rounds} rounds are on record; the '
        f'statement {"counts" if counted else "DOES NOT COUNT"} them all, '
        f'{"within" if within else "ABOVE"} an enforced target; exit code '
        f'{last.returncode} {quoted(last.stderr)}',
        'the releases of interrupted rounds: they count, and are made again',
        counted and within,
      )

  def unfinished(self) -> pathlib.Path:
    """Copies the original run without its end."""
    folder = self._new_folder()
    shutil.copytree(self.original, folder)
    (folder / run_folder.PRIVACY).unlink()
    shutil.rmtree(folder / run_folder.MODEL)
    return folder

  def damaged(self, fault: Fault) -> Row:
    """Damages the folder, resumes, and if needed mends it and resumes again."""
    folder = self.unfinished()
    fault.do(folder)
    first = kills.run(folder, *_SHORT, '--resume')
    said = ' '.join(first.stderr.split())
    happened = f'exit code {first.returncode} {quoted(said)}'
    if (first.returncode == 0) != (fault.mend is None) or (
      not re.search(fault.said, said) or 'Traceback' in said
    ):
      return Row(fault.name, _WHERE, happened, 'the line to say', False)
    if fault.mend is not None:
      fault.mend(folder)
      self._must_run(folder, *_SHORT, '--resume')
      happened += '; mended, it goes on'
    return self._row(fault.name, _WHERE, happened, folder, self.original)

  def refused(self, name: str, said: str, *changed: str) -> Row:
    """Resumes a run with other flags, which is refused; then with its own."""
    folder = self.unfinished()
    before = _contents(folder)
    first = kills.run(folder, *_SHORT, *changed, '--resume')
    untouched = _contents(folder) == before
    happened = f'exit code {first.returncode} {quoted(first.stderr)}'
    if (
      first.returncode != 2
      or not untouched
      or not re.search(said, first.stderr)
    ):
      return Row(name, _WHERE, happened, 'the refusal', False)
    self._must_run(folder, *_SHORT, '--resume')
    return self._row(
      name,
      _WHERE,
      f'{happened}; with its own, it goes on',
      folder,
      self.original,
    )

  def without_a_run(self) -> Row:
    """Resumes a folder that does not exist."""
    first = kills.run(self._new_folder(), *_SHORT, '--resume')
    return Row(
      'the folder is missing',
      _WHERE,
      f'exit code {first.returncode} {quoted(first.stderr)}',
      _NOTHING,
      first.returncode == 2 and len(first.stderr.splitlines()) == 1,
    )

  def finished(self) -> Row:
    """Resumes a finished run."""
    before = _contents(self.original)
    done = kills.run(self.original, *_SHORT, '--resume')
    return Row(
      'the run is finished',
      _WHERE,
      f'exit code {done.returncode} {quoted(done.stdout)}',
      _NOTHING,
      done.returncode == 0 and _contents(self.original) == before,
    )

  def in_use(self) -> Row:
    """Resumes a run while another process uses the folder."""
    folder = self._new_folder()
    arguments = (*_SMALL, '--rounds=100000', '--theta=1')
    with self._started(folder, *arguments) as process:
      second = kills.run(folder, *arguments, '--resume')
      lives = process.poll() is None
      process.kill()
    return Row(
      'another process has the folder',
      _WHERE,
      f'exit code {second.returncode} {quoted(second.stderr)}',
      _NOTHING if lives else 'the other run',
      lives and second.returncode in (1, 2),
    )

  def signalled(self, number: signal.Signals) -> Row:
    """Interrupts a run by a signal that asks it to end."""
    folder, reference = self._new_folder(), self._new_folder()
    self._must_run(reference, *_LONG, _SEEDED)
    with self._started(folder, *_LONG, _SEEDED) as process:
      process.send_signal(number)
      _, said = process.communicate()
    if process.returncode != 1:
      what = f'exit code {process.returncode}: it was not interrupted'
      return Row(f'{number.name} in a round', _WHERE, what, '?', survived=False)
    self._must_run(folder, *_LONG, _SEEDED, '--resume')
    return self._row(
      f'{number.name} in a round',
      _WHERE,
      f'exit code {process.returncode} {quoted(said)}; resumed',
      folder,
      reference,
    )

  @contextlib.contextmanager
  def _started(
    self, folder: pathlib.Path, *arguments: str
  ) -> Iterator[subprocess.Popen]:
    """Starts a run, and waits for its second checkpoint."""
    with subprocess.Popen(
      kills.command(folder, *arguments),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    ) as process:
      try:
        while process.poll() is None and kills.newest_checkpoint(folder) < 2:
          time.sleep(0.002)
        yield process
      finally:
        process.kill()

  def full_disk(self, kilobytes: int) -> Row:
    """Fills the disk at some point; later there is space again."""

    def try_it(disk: pathlib.Path) -> tuple[pathlib.Path, str, bool]:
      folder = disk / 'run'
      first = kills.run(folder, *_SHORT)
      _mount('-o', 'remount,size=8m', disk)
      happened = f'exit code {first.returncode} {quoted(first.stderr)}'
      if first.returncode:
        resume = ['--resume'] if folder.exists() else []
        self._must_run(folder, *_SHORT, *resume)
        happened += '; with space again, it goes on'
      lines = len(first.stderr.splitlines())
      return folder, happened, lines == bool(first.returncode)

    return self._on_disk(
      f'a disk of {kilobytes} kB is full', f'size={kilobytes}k', try_it
    )

  def read_only_disk(self) -> Row:
    """Makes the disk of a run read-only."""

    def try_it(disk: pathlib.Path) -> tuple[pathlib.Path, str, bool]:
      folder = disk / 'run'
      shutil.copytree(self.unfinished(), folder)
      _mount('-o', 'remount,ro', disk)
      first = kills.run(folder, *_SHORT, '--resume')
      _mount('-o', 'remount,rw', disk)
      self._must_run(folder, *_SHORT, '--resume')
      happened = (
        f'exit code {first.returncode} {quoted(first.stderr)}; writable '
        'again, it goes on'
      )
      return folder, happened, len(first.stderr.splitlines()) == 1

    return self._on_disk('the disk is read-only', 'size=8m', try_it)

  def _on_disk(
    self,
    name: str,
    options: str,
    try_it: Callable[[pathlib.Path], tuple[pathlib.Path, str, bool]],
  ) -> Row:
    """Runs on a new file system: (run's folder, what happened, one line)."""
    disk = self._folder / 'disk'
    disk.mkdir(exist_ok=True)
    try:
      _mount('-t', 'tmpfs', '-o', options, 'none', disk)
    except (OSError, subprocess.CalledProcessError):
      return Row(name, '', 'not tried: it takes the right to mount', '')
    try:
      folder, happened, one_line = try_it(disk)
      row = self._row(name, _WHERE, happened, folder, self.original)
    finally:
      subprocess.run(['umount', '--lazy', str(disk)], check=True)
    return row._replace(survived=row.survived and one_line)


def _contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {
    path: path.read_bytes() for path in folder.rglob('*') if path.is_file()
  }
