"""Programs in turns; one that does other work is found out."""

import dataclasses
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from benchmarks.harness import comparison, contenders, session
from tests.benchmarks import fakes


def check_of(weights, loss=2.0, norm=5.0):
  return session.Check(loss, norm, weights)


class VerifyTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    initial = fakes.WORK.initial_weights()
    rng = np.random.default_rng(0)
    self.way = [rng.normal(0, 1e-3, w.shape) for w in initial]
    norm = np.sqrt(sum(np.sum(w**2) for w in initial))
    self.start = [w * (fakes.WORK.l2_norm_clip / norm) for w in initial]

  def went(self, share):
    """A model that has gone a share of the way."""
    return [s + share * w for s, w in zip(self.start, self.way, strict=True)]

  def test_distance_is_in_units_of_the_way(self):
    for share in (0.0, 0.8, 1.0, 1.5):
      distance = comparison.distance(
        fakes.WORK, self.went(share), self.went(1.0)
      )
      self.assertAlmostEqual(distance, abs(1 - share), places=4)

  def test_agrees(self):
    found = comparison.verify(
      fakes.WORK,
      'jax/scan',
      check_of(self.went(0.999), 2.0001, 5.0001),
      check_of(self.went(1.0)),
    )
    self.assertAlmostEqual(found, 0.001, places=4)

  def test_the_way_of_a_private_work_starts_unprojected(self):
    start = fakes.PRIVATE_WORK.initial_weights()
    model, half = (
      [s + share * w for s, w in zip(start, self.way, strict=True)]
      for share in (1.0, 0.5)
    )
    distance = comparison.distance(fakes.PRIVATE_WORK, half, model)
    self.assertAlmostEqual(distance, 0.5, places=3)

  @parameterized.parameters(
    (0.98, 2.0, 5.0, 'its model is 0.02 of the way of ours away'),
    (1.0, 2.01, 5.0, 'its loss is 2.01, ours is 2'),
    (1.0, 2.0, 4.99, 'its parameter_norm is 4.99, ours is 5'),
    (np.nan, 2.0, 5.0, 'its model is nan'),
  )
  def test_disagrees(self, share, loss, norm, message):
    with self.assertRaisesRegex(session.ProgramError, message):
      comparison.verify(
        fakes.WORK,
        'jax/scan',
        check_of(self.went(share), loss, norm),
        check_of(self.went(1.0)),
      )

  def test_other_shapes(self):
    with self.assertRaisesRegex(session.ProgramError, 'model must have shapes'):
      comparison.verify(
        fakes.WORK, 'a', check_of([np.ones(3)]), check_of(self.went(1.0))
      )


class CompareTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    for name, library in (
      ('MATRIX_PRODUCT', 'matrix'),
      ('ROUND_PRODUCTS', 'products'),
    ):
      self.enter_context(
        mock.patch.object(contenders, name, fakes.contender('same', library))
      )

  def compare(self, *members):
    return comparison.compare(fakes.WORK, members, fakes.ROOT, 3, 2)

  def test_turns(self):
    restless = dataclasses.replace(
      fakes.contender('same', 'restless'), is_quiet=False
    )
    blocks, programs = self.compare(fakes.contender('same'), restless)
    order = [block.contender for block in blocks]
    names = ['numpy/same', 'restless/same', 'matrix/same', 'products/same']
    for number in range(3):
      turn = order[4 * number : 4 * number + 4]
      self.assertCountEqual(turn, names)
      self.assertEqual(turn[-1], names[1])
    turns = {tuple(order[start : start + 4]) for start in (0, 4, 8)}
    self.assertLen(turns, 2)
    for block in blocks:
      self.assertLen(block.seconds, 2)
    self.assertEqual(
      [block.number for block in blocks], [1] * 4 + [2] * 4 + [3] * 4
    )
    self.assertEqual([p.contender.name for p in programs], names)
    self.assertEqual(programs[1].distance, 0)
    self.assertIsNone(programs[2].check)
    self.assertGreater(programs[1].peak_bytes, 10 * 2**20)

  @parameterized.parameters(
    ('short', 'numpy/short does other work'),
    ('data', 'numpy/data has made other data than ours'),
    ('dead', 'numpy/dead ended with exit status 1'),
  )
  def test_other_work(self, form, message):
    with self.assertRaisesRegex(session.ProgramError, message):
      self.compare(fakes.contender('same'), fakes.contender(form))

  @parameterized.parameters('mean', 'layers', 'loose', 'projected', 'short')
  def test_other_clipping(self, form):
    with self.assertRaisesRegex(
      session.ProgramError, f'numpy/{form} does other work'
    ):
      comparison.compare(
        fakes.PRIVATE_WORK,
        [fakes.contender('same'), fakes.contender(form)],
        fakes.ROOT,
        1,
        1,
      )

  @parameterized.parameters(
    ('tvdp_tf/compiled', fakes.WORK),
    ('tvdp_tf/compiled', fakes.PRIVATE_WORK),
    ('tvdp_tf/continuous', fakes.PRIVATE_WORK),
    ('tensorflow_privacy/fast', fakes.PRIVATE_WORK),
  )
  def test_the_work_of_a_plain_numpy_loop(self, name, work):
    contender = contenders.CONTENDERS[name]
    with session.Session(contender, work, fakes.ROOT) as measured:
      measured.run(2)
      expected = measured.check(3)
    with session.Session(fakes.contender('same'), work, fakes.ROOT) as plain:
      self.assertEqual(plain.start.digest, measured.start.digest)
      found = comparison.verify(work, 'numpy/same', plain.check(3), expected)
    self.assertLess(found, 1e-4)


if __name__ == '__main__':
  absltest.main()
