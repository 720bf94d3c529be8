"""What was released, as Python's own dictionaries would hold it."""

import collections
import dataclasses
import tracemalloc
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from tvdp_tf.privacy import _released, ledger


def _record(number, clients, digests, multipliers=(1.5,), **changes):
  return ledger.LedgerRecord(
    **{
      'round': number,
      'attempt': 1,
      'clients': tuple(clients),
      'noise_multipliers': tuple(multipliers),
      'laplace_epsilon': None,
      'releases_per_client': 5,
      'noise_digests': tuple(digests),
      'input_digests': ('ab' * 32,),
    }
    | changes
  )


def _digests(rng, count):
  return [rng.bytes(32).hex() for _ in range(count)]


class ClientReleasesTest(parameterized.TestCase):
  def test_as_a_dictionary(self):
    rng = np.random.default_rng(0)
    found = _released.ClientReleases(30)
    expected: dict[int, collections.Counter] = collections.defaultdict(
      collections.Counter
    )
    for _ in range(200):
      clients = rng.permutation(30)[: rng.integers(0, 12)]
      amounts = rng.choice([0.0, -0.0, 0.5, 2.0, np.inf], len(clients))
      count = int(rng.integers(1, 2**31))
      found.add(clients, amounts, count)
      for client, amount in zip(
        clients.tolist(), amounts.tolist(), strict=True
      ):
        expected[int(client)][amount] += count
    for client in range(30):
      self.assertEqual(found.of(client), expected[client])
    self.assertEqual(found.clients(), sorted(expected))

  def test_nobody_is_forgotten_who_comes_twice(self):
    found = _released.ClientReleases(3)
    found.add(np.array([1, 1, 2, 1]), np.array([2.0, 3.0, 2.0, 3.0]), 7)
    self.assertEqual(found.of(1), {2.0: 7, 3.0: 14})
    self.assertEqual(found.of(2), {2.0: 7})
    self.assertEqual(found.clients(), [1, 2])

  def test_counts_do_not_overflow(self):
    found = _released.ClientReleases(1)
    for _ in range(5):
      found.add(np.array([0]), np.array([2.0]), 2**62)
    self.assertEqual(found.of(0), {2.0: 5 * 2**62})

  def test_the_same_noise_takes_no_more_memory(self):
    found = _released.ClientReleases(100)
    clients, amounts = np.arange(100), np.full(100, 2.0)
    found.add(clients, amounts, 1)
    size = len(found._amounts)
    for _ in range(50):
      found.add(clients, amounts, 1)
    self.assertLen(found._amounts, size)


class RecordsTest(parameterized.TestCase):
  @parameterized.parameters(1, 4, 1000)
  def test_as_a_dictionary(self, recent):
    self.enter_context(mock.patch.object(_released, '_RECENT_KEYS', recent))
    rng = np.random.default_rng(1)
    found, added = _released.Records(), []
    expected: dict[str, ledger.LedgerRecord] = {}
    for number in range(1, 120):
      fresh = _digests(rng, int(rng.integers(1, 8)))
      used = list(expected)
      again = [used[i] for i in rng.permutation(len(used))[:3]]
      digests = rng.permutation([*fresh, *again]).tolist()
      clients = rng.permutation(1000)[: len(digests)].tolist()
      multipliers = rng.random(len(digests)) if number % 2 else (1.5,)
      record = _record(number, clients, digests, multipliers)
      positions = [i for i, d in enumerate(digests) if d in set(fresh)]
      found.add(record, positions)
      added.append((record, positions))
      expected.update(dict.fromkeys(fresh, record))
      unused = _digests(rng, 5)
      asked = [*rng.permutation([*expected])[:20], *unused]
      self.assertEqual(
        found.first_uses(asked),
        {i: expected[d] for i, d in enumerate(asked) if d in expected},
      )
    self.assertLen(found, len(added))
    for (record, fresh), (kept, kept_fresh) in zip(added, found, strict=True):
      self.assertEqual(kept, record)
      self.assertIsInstance(kept.clients[0], int)
      self.assertEqual([*kept_fresh], fresh)
    for digest, record in expected.items():
      self.assertEqual(found.first_use(digest), record)

  def test_keys_that_begin_alike(self):
    # An eighth of a digest is sorted; the rest is what tells.
    self.enter_context(mock.patch.object(_released, '_RECENT_KEYS', 2))
    found, records = _released.Records(), []
    digests = ['00' * 8 + f'{i:048x}' for i in range(9)]
    for i, digest in enumerate(digests[:8]):
      records.append(_record(i + 1, [i], [digest]))
      found.add(records[-1], [0])
    for digest, record in zip(digests, [*records, None], strict=True):
      self.assertEqual(found.first_use(digest), record)

  def test_a_key_inside_of_two_others_is_none(self):
    self.enter_context(mock.patch.object(_released, '_RECENT_KEYS', 1))
    start, end = 'ab' * 16, 'cd' * 16
    record = _record(1, [0, 1], ['ab' * 8 + '00' * 8 + start, end + '11' * 16])
    found = _released.Records()
    found.add(record, [0, 1])
    self.assertIsNone(found.first_use(start + end))
    self.assertIsNone(found.first_use('ab' * 8 + 'ff' * 24))
    self.assertEqual(found.first_use(end + '11' * 16), record)

  @parameterized.parameters(
    {'laplace_epsilon': 0.25, 'noise_multipliers': ()},
    {'clients': (), 'noise_digests': ('0f' * 32,)},
    {'run': 7, 'attempt': 2**53, 'releases_per_client': 2**31 - 1},
  )
  def test_every_record_as_it_was(self, **changes):
    record = _record(3, [5], ['1e' * 32])
    record = dataclasses.replace(record, **changes)
    found = _released.Records()
    found.add(record, [0])
    ((kept, _),) = found
    self.assertEqual(kept, record)
    self.assertEqual(vars(kept), vars(record))

  def test_memory(self):
    rng = np.random.default_rng(2)
    rounds = [
      _record(number, range(500), _digests(rng, 500)) for number in range(1, 61)
    ]
    found, spent = _released.Records(), _released.ClientReleases(500)
    tracemalloc.start()
    self.addCleanup(tracemalloc.stop)
    before = tracemalloc.get_traced_memory()[0]
    for record in rounds:
      found.add(record, range(500))
      spent.add(np.array(record.clients), np.full(500, float(record.round)), 1)
    used = tracemalloc.get_traced_memory()[0] - before
    # And some of the last 4096 keys still in Python's own.
    self.assertLess(used, 100 * 500 * 60 + 200 * _released._RECENT_KEYS)


if __name__ == '__main__':
  absltest.main()
