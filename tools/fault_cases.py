"""All faults that `make faults` provokes."""

import json
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator

from tools import fault_suite
from tvdp_tf.training import run_folder

_NEWEST = f'checkpoints/round_{fault_suite.SHORT_ROUNDS}'
_CANNOT = r'checkpoint \S* cannot be used and is renamed'
_AGAIN = 'starts at round 1'
_NO_CONFIG = 'must be the folder of a run to resume'
_LEDGER = run_folder.LEDGER
_HEAD = run_folder.LEDGER + '.head'
_DISKS_KB = (8, 40, 80, 120, 160, 200, 240, 280, 320, 400)

_Do = Callable[[pathlib.Path], None]


def _change(name: str, change: Callable[[bytes], bytes]) -> _Do:
  def do(run: pathlib.Path) -> None:
    (run / name).write_bytes(change((run / name).read_bytes()))

  return do


def _flip(content: bytes) -> bytes:
  return content[:100] + bytes([content[100] ^ 1]) + content[101:]


def _remove(name: str) -> _Do:
  def do(run: pathlib.Path) -> None:
    if (run / name).is_dir():
      shutil.rmtree(run / name)
    else:
      (run / name).unlink()

  return do


def _empty_folder(name: str) -> _Do:
  def do(run: pathlib.Path) -> None:
    _remove(name)(run)
    (run / name).mkdir()

  return do


def _all(*steps: _Do) -> _Do:
  def do(run: pathlib.Path) -> None:
    for step in steps:
      step(run)

  return do


def _set_in_config(part: str, name: str, value: object) -> _Do:
  def do(run: pathlib.Path) -> None:
    path = run / run_folder.CONFIG
    config = json.loads(path.read_text())
    config[part][name] = value
    # As written by a run that started with this value.
    config['sha256'] = run_folder.digest(config).hex()
    path.write_text(json.dumps(config))

  return do


def _leftovers(run: pathlib.Path) -> None:
  for name in (f'{_NEWEST}1_temp1234', '.model.77'):
    (run / name).mkdir()
    (run / name / 'file').write_bytes(b'half')
  for name in (f'{run_folder.METRICS}_temp9', 'checkpoints/.round_9.7'):
    (run / name).write_bytes(b'half')


def _put_back(run: pathlib.Path) -> None:
  """Restores an earlier ledger: its first two lines, and their head."""
  lines = (run / _LEDGER).read_bytes().splitlines(keepends=True)[:2]
  last_hash = json.loads(lines[-1])['hash']
  (run / _LEDGER).write_bytes(b''.join(lines))
  (run / _HEAD).write_text(f'{{"count":2,"hash":"{last_hash}"}}\n')


def _of_folders(original: pathlib.Path) -> list[fault_suite.Fault]:
  def restore(*names: str) -> _Do:
    def mend(run: pathlib.Path) -> None:
      for name in names:
        shutil.copy(original / name, run / name)

    return mend

  fault = fault_suite.Fault
  checkpoint = 'the newest checkpoint'
  config = restore(run_folder.CONFIG)
  ledger = restore(_LEDGER, _HEAD)
  return [
    fault(
      f'{checkpoint} is cut short',
      _change(_NEWEST, lambda c: c[: len(c) // 2]),
      _CANNOT,
    ),
    fault(f'{checkpoint} has a flipped bit', _change(_NEWEST, _flip), _CANNOT),
    fault(f'{checkpoint} is empty', _change(_NEWEST, lambda c: b''), _CANNOT),
    fault(f'{checkpoint} is an empty folder', _empty_folder(_NEWEST), _CANNOT),
    fault(
      f'{checkpoint} has something after its end',
      _change(_NEWEST, lambda c: c + b'x'),
      _CANNOT,
    ),
    fault(f'{checkpoint} is missing', _remove(_NEWEST)),
    fault(
      'both checkpoints are cut short',
      _all(
        *(
          _change(f'checkpoints/round_{m}', lambda c: c[:100])
          for m in (fault_suite.SHORT_ROUNDS - 1, fault_suite.SHORT_ROUNDS)
        )
      ),
      _AGAIN,
    ),
    fault('all checkpoints are missing', _remove('checkpoints'), _AGAIN),
    fault('half-written files are left', _leftovers),
    fault('metrics.csv is missing', _remove(run_folder.METRICS)),
    fault(
      'metrics.csv is garbage', _change(run_folder.METRICS, lambda c: b'\0\n')
    ),
    fault('tensorboard/ is missing', _remove(run_folder.TENSORBOARD)),
    fault(
      'privacy.json is half written',
      lambda run: (run / 'privacy.json').write_text('{"finished": tru'),
    ),
    fault(
      'config.json is half written',
      _change(run_folder.CONFIG, lambda c: c[: len(c) // 2]),
      _NO_CONFIG,
      config,
    ),
    fault(
      'config.json is missing', _remove(run_folder.CONFIG), _NO_CONFIG, config
    ),
    fault(
      'another version of NumPy',
      _set_in_config('versions', 'numpy', '1.0'),
      'resume must find the version of numpy as when',
      config,
    ),
    fault(
      'other data',
      _set_in_config('resolved', 'examples_per_user', [1, 2, 3, 4]),
      'resume must find the examples_per_user as when',
      config,
    ),
    fault(
      'a half-written line ends the ledger',
      _change(_LEDGER, lambda c: c + b'{"attempt":1,"cli'),
    ),
    fault(
      'a line of the ledger was edited',
      _change(_LEDGER, lambda c: c.replace(b'"clients":[', b'"clients":[ ', 2)),
      'its hash is wrong',
      ledger,
    ),
    fault(
      "the ledger's end was cut off",
      _change(_LEDGER, lambda c: c[: c[:-1].rindex(b'\n') + 1]),
      'the end was cut off',
      ledger,
    ),
    fault('the ledger is missing', _remove(_LEDGER), 'No such file', ledger),
    fault("the ledger's head is missing", _remove(_HEAD), 'is missing', ledger),
    fault('the ledger was put back', _put_back, 'put back to', ledger),
  ]


def rows(suite: fault_suite.Suite) -> Iterator[fault_suite.Row]:
  """Provokes the faults one after the other."""
  for runtime in ('compiled', 'tff'):
    yield from suite.killed(runtime)
  yield from suite.killed_without_seed()
  for number in (signal.SIGTERM, signal.SIGINT):
    yield suite.signalled(number)
  for fault in _of_folders(suite.original):
    yield suite.damaged(fault)
  for name, value, then in (
    ('theta', '0.5', '0.95'),
    ('rounds', '5', '4'),
    ('mechanism', 'gradient', "'paper'"),
    ('runtime', 'tff', "'compiled'"),
    ('seed', '8', '7'),
  ):
    yield suite.refused(
      f'another --{name}', f'--{name} must be {then}', f'--{name}={value}'
    )
  yield suite.without_a_run()
  yield suite.finished()
  yield suite.in_use()
  yield suite.read_only_disk()
  for kilobytes in _DISKS_KB:
    yield suite.full_disk(kilobytes)
