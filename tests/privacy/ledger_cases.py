"""What the tests of the ledger share."""

import os
import pathlib
from typing import Any
from unittest import mock

import numpy as np
from absl.testing import parameterized

from tvdp_tf.privacy import _chained_file, ledger


def header(**changes) -> ledger.LedgerHeader:
  """A header of three clients with epsilon 1 at 1e-5, but for `changes`."""
  settings: dict[str, Any] = {
    'unit': 'example',
    'adjacency': 'replace-one',
    'target_epsilon': 1.0,
    'delta': 1e-5,
    'clients': 3,
  }
  return ledger.LedgerHeader(**settings | changes)


def poisson_header(**changes) -> ledger.LedgerHeader:
  """A header with secret sampling, but for `changes`."""
  settings = {
    'unit': 'user',
    'adjacency': 'add-or-remove-one',
    'sampling': 'poisson',
  }
  return header(**settings | changes)


def laplace_header(**changes) -> ledger.LedgerHeader:
  """A header with pure epsilons, but for `changes`."""
  return header(**{'delta': 0.0, 'accounting': 'laplace'} | changes)


def shared_header(**changes) -> ledger.LedgerHeader:
  """A header that several runs can share, but for `changes`."""
  return header(**{'data': 'digits', 'partition_seed': 7} | changes)


def run(of: ledger.LedgerHeader, **changes) -> ledger.LedgerRun:
  """A run with the whole budget of a header, but for `changes`.

  Secret sampling is at rate 0.1.
  """
  settings: dict[str, Any] = {
    'mechanism': 'gradient',
    'sensitivity': '2 C_g / n = 2 * 1.0 / 600',
    'sensitivity_proven': True,
    'target_epsilon': of.target_epsilon,
    'seeded': False,
    'noise': 'continuous',
    'settings_digest': 'a' * 64,
    'sampling_rate': 0.1 if of.sampling == 'poisson' else 1.0,
  }
  return ledger.LedgerRun(**settings | changes)


def create(path: Any, of: ledger.LedgerHeader | None = None, **changes):
  """A ledger with one run, `run(of, **changes)`."""
  of = of or header()
  return ledger.PrivacyLedger.create(path, of, run(of, **changes))


def identity(key: int, model: bytes = b'm', settings: bytes = b's') -> str:
  """The release id of a numbered noise key."""
  return ledger.release_id(key.to_bytes(16, 'big'), model, settings)


def fresh(count: int = 1) -> list[str]:
  """Ids of releases with keys never used before."""
  return [ledger.release_id(os.urandom(16), b'm', b's') for _ in range(count)]


def forge(path: str, payloads: list):
  """Writes lines and a head as someone would who can write both files."""
  lines, digest = b'', None
  for payload in payloads:
    line, digest = _chained_file.chained_line(digest, payload)
    lines += line
  pathlib.Path(path).write_bytes(lines)
  head = f'{{"count":{len(payloads)},"hash":"{digest}"}}\n'
  pathlib.Path(path + '.head').write_text(head)


class LedgerTestCase(parameterized.TestCase):
  """A folder for ledgers, on a disk that need not last."""

  def setUp(self):
    super().setUp()
    self.folder = self.create_tempdir().full_path
    self.enter_context(mock.patch.object(os, 'fsync'))

  def path(self, name='ledger.jsonl'):
    return os.path.join(self.folder, name)

  def create(self, settings=None, name='ledger.jsonl', **changes):
    result = create(self.path(name), settings, **changes)
    self.addCleanup(result.close)
    return result

  def content(self):
    return pathlib.Path(self.path()).read_bytes()

  def assert_refused(self, error, regex, ledger_, *args, **kwargs):
    """The record is refused, and leaves no trace."""
    before, epsilons = self.content(), ledger_.epsilons()
    with self.assertRaisesRegex(error, regex) as caught:
      ledger_.record(*args, **kwargs)
    self.assertNotIn('\n', str(caught.exception))
    self.assertEqual(self.content(), before)
    np.testing.assert_array_equal(ledger_.epsilons(), epsilons)
    return caught.exception
