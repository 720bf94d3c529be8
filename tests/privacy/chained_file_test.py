import errno
import hashlib
import json
import os
import pathlib
import subprocess
import sys
from unittest import mock

import hypothesis
from absl.testing import absltest, parameterized
from hypothesis import strategies as st

from tests.privacy import disk_model
from tvdp_tf.privacy import _chained_file
from tvdp_tf.privacy._chained_file import ChainedFile, LedgerError

_PAYLOADS = [{'n': n, 'x': 0.1 * n, 'list': [n, 1]} for n in range(5)]


class ChainedFileTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.path = os.path.join(self.folder, 'chain')
    self.head = self.path + '.head'

  def write(self, payloads=None):
    payloads = _PAYLOADS if payloads is None else payloads
    file = ChainedFile.create(self.path, payloads[0])
    for payload in payloads[1:]:
      file.append(payload)
    file.close()
    return file

  def content(self, path=None):
    return pathlib.Path(path or self.path).read_bytes()

  def replace(self, content, path=None):
    pathlib.Path(path or self.path).write_bytes(content)

  def assert_refused(self, regex=''):
    with self.assertRaisesRegex(LedgerError, regex) as caught:
      _chained_file.read(self.path)
    self.assertNotIn('\n', str(caught.exception))
    with self.assertRaisesRegex(LedgerError, regex):
      ChainedFile.open(self.path)


class FormatTest(ChainedFileTest):
  def test_round_trip(self):
    file = self.write()
    chain = _chained_file.read(self.path)
    self.assertEqual(chain.payloads, _PAYLOADS)
    self.assertEqual(chain.head_count, 5)
    self.assertEqual(chain.last_hash, file.head_hash)
    self.assertEqual(chain.size, len(self.content()))
    self.assertEqual(chain.torn, 0)

  def test_format_is_what_the_docstring_says(self):
    self.write()
    previous = '00' * 32
    for line, payload in zip(
      self.content().splitlines(), _PAYLOADS, strict=True
    ):
      entries = json.loads(line)
      self.assertEqual(list(entries)[-1], 'hash')
      digest = entries.pop('hash')
      self.assertEqual(entries, payload)
      body = json.dumps(entries, sort_keys=True, separators=(',', ':'))
      expected = hashlib.sha256(
        b'tvdp_tf chained line v1\0' + bytes.fromhex(previous) + body.encode()
      )
      self.assertEqual(digest, expected.hexdigest())
      previous = digest
    self.assertEqual(
      json.loads(self.content(self.head)), {'count': 5, 'hash': previous}
    )

  @hypothesis.given(st.floats(allow_nan=False, allow_infinity=False))
  def test_numbers_round_trip_exactly(self, x):
    line, _ = _chained_file.chained_line(None, {'x': x})
    self.assertEqual(repr(json.loads(line)['x']), repr(x))

  def test_goes_on_after_reopening(self):
    self.write(_PAYLOADS[:2])
    for payload in _PAYLOADS[2:]:
      file, chain = ChainedFile.open(self.path)
      self.assertEqual(file.head_hash, chain.last_hash)
      file.append(payload)
      file.close()
    whole = self.content()
    os.unlink(self.path)
    os.unlink(self.head)
    self.write()
    self.assertEqual(self.content(), whole)

  @parameterized.parameters(
    b'{"n": 0}',
    b'{"n":0,"n":0}',
    b'{"n":1.50}',
    b'{"n":1e999}',
    b'{"n":NaN}',
    b'{"n":-Infinity}',
    b'{"b":0,"a":0}',
    b'{"n":"\xc3\xa9"}',
    b'[0]}',
    b'{"n":' + b'[' * 100_000 + b'}',
    b'{"n":' + b'9' * 5000 + b'}',
    b'}',
  )
  def test_only_canonical_json_has_a_place(self, body):
    # The hash fits: a forger can compute it.
    digest = hashlib.sha256(
      b'tvdp_tf chained line v1\0' + bytes(32) + body
    ).hexdigest()
    self.replace(body[:-1] + f',"hash":"{digest}"}}\n'.encode())
    self.replace(f'{{"count":1,"hash":"{digest}"}}\n'.encode(), self.head)
    self.assert_refused('line 1: not a JSON object in canonical form')

  def test_payload_without_json_form_is_refused_before_writing(self):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    before = self.content()
    with self.assertRaises(ValueError):
      file.append({'x': float('nan')})
    self.assertEqual(self.content(), before)
    file.append(_PAYLOADS[1])
    file.close()
    self.assertLen(_chained_file.read(self.path).payloads, 2)


class TamperingTest(ChainedFileTest):
  def test_every_changed_byte_is_detected(self):
    self.write(_PAYLOADS[:2])
    for path in (self.path, self.head):
      whole = self.content(path)
      for i in range(len(whole)):
        for bit in range(8):
          changed = bytearray(whole)
          changed[i] ^= 1 << bit
          self.replace(changed, path)
          with self.assertRaises(LedgerError):
            _chained_file.read(self.path)
      self.replace(whole, path)
    _chained_file.read(self.path)

  def test_every_cut_is_detected(self):
    self.write(_PAYLOADS[:3])
    whole = self.content()
    for length in range(len(whole)):
      self.replace(whole[:length])
      self.assert_refused('missing: .*the end was cut off')

  def test_every_inserted_or_removed_byte_is_detected(self):
    self.write(_PAYLOADS[:2])
    whole = self.content()
    for i in range(len(whole)):
      for changed in (
        whole[:i] + b'\n' + whole[i:],
        whole[:i] + b' ' + whole[i:],
        whole[:i] + whole[i + 1 :],
      ):
        self.replace(changed)
        with self.assertRaises(LedgerError):
          _chained_file.read(self.path)

  def test_every_moved_removed_or_repeated_line_is_detected(self):
    self.write()
    lines = self.content().splitlines(keepends=True)
    for i in range(5):
      self.replace(b''.join(lines[:i] + lines[i + 1 :]))
      self.assert_refused(rf'line {i + 1}: ')
      self.replace(b''.join(lines[: i + 1] + lines[i:]))
      self.assert_refused(rf'line {i + 2}: its hash is wrong')
      for j in range(i):
        moved = list(lines)
        moved[i], moved[j] = moved[j], moved[i]
        self.replace(b''.join(moved))
        self.assert_refused(rf'line {j + 1}: its hash is wrong')

  def test_rewritten_history_contradicts_the_head(self):
    self.write()
    head = self.content(self.head)
    os.unlink(self.path)
    os.unlink(self.head)
    self.write([*_PAYLOADS[:4], {'n': 'another'}])
    self.replace(head, self.head)
    self.assert_refused('line 5: its hash is not the one in ')

  def test_without_a_head_it_is_read_but_not_appended_to(self):
    self.write()
    os.unlink(self.head)
    self.assertIsNone(_chained_file.read(self.path).head_count)
    with self.assertRaisesRegex(LedgerError, 'head is missing'):
      ChainedFile.open(self.path)

  def test_a_ledger_that_is_gone_is_not_started_anew(self):
    self.write()
    os.unlink(self.path)
    with self.assertRaisesRegex(LedgerError, 'missing although .* counts 5'):
      ChainedFile.create(self.path, {})
    self.assert_refused('No such file or directory')

  @hypothesis.settings(max_examples=300, deadline=None)
  @hypothesis.given(content=st.binary(), head=st.none() | st.binary())
  def test_any_bytes_give_one_clear_error(self, content, head):
    self.replace(content)
    pathlib.Path(self.head).unlink(missing_ok=True)
    if head is not None:
      self.replace(head, self.head)
    self.assert_refused()


class CrashTest(ChainedFileTest):
  def survivors(self, model):
    """(lines promised, lines found) of all that a crash may leave."""
    survived = set()
    for image, promised in model.promises.items():
      disk_model.restore(image, self.folder)
      if not os.path.exists(self.path):
        self.assertEqual(promised, 0)
        file = ChainedFile.create(self.path, _PAYLOADS[0])
        count = 1
      else:
        count = len(_chained_file.read(self.path).payloads)
        file, chain = ChainedFile.open(self.path)
        self.assertEqual(chain.payloads, _PAYLOADS[:count])
        self.assertGreaterEqual(chain.head_count, promised)
      self.assertBetween(count, promised, promised + 1)
      survived.add((promised, count))
      file.append({'after': 'the crash'})
      file.close()
      chain = _chained_file.read(self.path)
      self.assertEqual(chain.payloads[:-1], _PAYLOADS[:count])
      self.assertEqual((chain.head_count, chain.torn), (count + 1, 0))
    return survived

  def test_any_crash_keeps_what_was_promised(self):
    model = disk_model.DiskModel(self.folder)
    model.crash()
    with model.watching():
      file = ChainedFile.create(self.path, _PAYLOADS[0])
      model.promised = 1
      for n, payload in enumerate(_PAYLOADS[1:4], start=2):
        file.append(payload)
        model.promised = n
        model.crash()
    file.close()
    # Every byte of every line, and of every head.
    self.assertGreater(len(model.promises), len(self.content()))
    # What these openings sync is not looked at.
    with mock.patch.object(os, 'fsync'):
      survived = self.survivors(model)
    # The lines whose `append` did not return are there, or not.
    for n in (1, 2, 3):
      self.assertContainsSubset({(n, n), (n, n + 1)}, survived)

  def test_any_crash_while_opening_keeps_what_was_promised(self):
    self.write(_PAYLOADS[:2])
    head, size = self.content(self.head), len(self.content())
    file, _ = ChainedFile.open(self.path)
    file.append(_PAYLOADS[2])
    file.close()
    # Killed before the third line was synced, and in the middle of a fourth.
    self.replace(head, self.head)
    self.replace(self.content() + b'{"n":3,"x"')
    model = disk_model.DiskModel(self.folder)
    model.forget('chain', size)
    model.promised = 2
    model.crash()
    with model.watching():
      file, chain = ChainedFile.open(self.path)
      model.promised = len(chain.payloads)
      model.crash()
    file.close()
    with mock.patch.object(os, 'fsync'):
      survived = self.survivors(model)
    self.assertEqual(survived, {(2, 2), (2, 3), (3, 3)})

  def test_the_model_finds_a_forgotten_fsync(self):
    model = disk_model.DiskModel(self.folder)
    with model.watching(), mock.patch.object(os, 'fsync'):
      file = ChainedFile.create(self.path, _PAYLOADS[0])
      model.promised = 1
      model.crash()
    file.close()
    lost = [image for image, n in model.promises.items() if n and not image]
    self.assertNotEmpty(lost)

  @parameterized.parameters('write', 'fsync', 'replace', 'open')
  def test_failing_disk(self, name):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    failure = OSError(errno.ENOSPC, 'No space left on device')
    with (
      mock.patch.object(os, name, side_effect=failure),
      self.assertRaisesRegex(LedgerError, 'No space left on device'),
    ):
      file.append(_PAYLOADS[1])
    with self.assertRaisesRegex(LedgerError, 'open it again'):
      file.append(_PAYLOADS[1])
    file.close()
    file, chain = ChainedFile.open(self.path)
    self.assertLen(chain.payloads, 1 if name == 'write' else 2)
    file.append({'more': 1})
    file.close()

  def test_short_writes_are_completed(self):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    write = os.write
    with mock.patch.object(os, 'write', lambda fd, data: write(fd, data[:7])):
      file.append(_PAYLOADS[1])
    file.close()
    self.assertEqual(_chained_file.read(self.path).payloads, _PAYLOADS[:2])

  def test_interrupt_leaves_it_unusable_not_wrong(self):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    with (
      mock.patch.object(os, 'replace', side_effect=KeyboardInterrupt),
      self.assertRaises(KeyboardInterrupt),
    ):
      file.append(_PAYLOADS[1])
    with self.assertRaisesRegex(LedgerError, 'open it again'):
      file.append(_PAYLOADS[2])
    file.close()


class SharingTest(ChainedFileTest):
  def test_one_writer(self):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    with self.assertRaisesRegex(LedgerError, 'already open for writing'):
      ChainedFile.open(self.path)
    file.append(_PAYLOADS[1])
    self.assertLen(_chained_file.read(self.path).payloads, 2)
    file.close()
    file.close()
    with self.assertRaisesRegex(LedgerError, 'is closed'):
      file.append(_PAYLOADS[2])
    file, _ = ChainedFile.open(self.path)
    with self.assertRaisesRegex(LedgerError, 'already open for writing'):
      ChainedFile.open(self.path)
    file.close()

  def test_one_writer_among_processes(self):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    root = pathlib.Path(_chained_file.__file__).parents[2]
    script = (
      'import sys; from tvdp_tf.privacy import _chained_file\n'
      'try: _chained_file.ChainedFile.open(sys.argv[1])\n'
      'except _chained_file.LedgerError as error: print(error)\n'
    )

    def child():
      return subprocess.run(
        [sys.executable, '-c', script, self.path],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
      ).stdout

    self.assertIn('already open for writing', child())
    file.close()
    self.assertEqual(child(), '')

  def test_existing_file_is_not_overwritten(self):
    self.write()
    before = self.content()
    with self.assertRaisesRegex(LedgerError, 'already exists'):
      ChainedFile.create(self.path, {})
    self.assertEqual(self.content(), before)

  @parameterized.parameters('unlink', 'replace', 'truncate', 'append')
  def test_file_changed_under_way_takes_no_line(self, change):
    file = ChainedFile.create(self.path, _PAYLOADS[0])
    if change == 'append':
      self.replace(self.content() + b'x')
    elif change == 'truncate':
      self.replace(b'')
    else:
      os.rename(self.path, self.path + '.old')
    if change == 'replace':
      self.replace(self.content(self.path + '.old'))
    with self.assertRaisesRegex(LedgerError, 'changed by|No such file'):
      file.append(_PAYLOADS[1])
    file.close()

  def test_no_folder_and_no_file(self):
    with self.assertRaisesRegex(LedgerError, 'No such file or directory'):
      ChainedFile.create(os.path.join(self.folder, 'none', 'chain'), {})
    with self.assertRaisesRegex(LedgerError, 'Is a directory'):
      _chained_file.read(self.folder)


if __name__ == '__main__':
  absltest.main()
