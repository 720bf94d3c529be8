"""The training program, run as a user runs it."""

import csv
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl.testing import absltest

from tests.binaries import program_runner
from tvdp_tf import privacy
from tvdp_tf.learning import datasets
from tvdp_tf.privacy import ledger_audit

_COLUMNS = (
  'round,noise_stddev,test_loss,test_accuracy,delivered_epsilon,seconds'
)
# Each of a tenth of a second or more to import, and of no use until a run is
# over, or to another run.
_NOT_YET = {
  *('IPython', 'kymatio', 'matplotlib', 'statsmodels'),
  *('tensorflow_datasets', 'torch'),
}
_LOAD_WITHOUT_US = """
import sys
import numpy as np
import tensorflow as tf
sys.modules['tvdp_tf'] = None  # An import of it fails.
model = tf.keras.models.load_model(sys.argv[1])
data = np.load(sys.argv[2])
print((model(data['x']).numpy().argmax(1) == data['y']).mean())
served = tf.saved_model.load(sys.argv[1]).signatures['serving_default']
outputs = served(features=tf.constant(data['x']))['class_scores']
np.testing.assert_allclose(outputs, model(data['x']), rtol=1e-5, atol=1e-5)
"""


def _workers(environment_mark: str) -> list[int]:
  """Processes whose environment holds the mark: a run and its worker."""
  found = []
  for entry in pathlib.Path('/proc').iterdir():
    if entry.name.isdigit():
      try:
        environment = (entry / 'environ').read_bytes()
      except OSError:
        continue
      if environment_mark.encode() in environment:
        found.append(int(entry.name))
  return found


def _wait_for(condition, timeout_s=60):
  deadline = time.monotonic() + timeout_s
  while not condition():
    if time.monotonic() > deadline:
      raise TimeoutError('the condition did not come true')
    time.sleep(0.05)


class OneRunTest(absltest.TestCase):
  """What a run without flags leaves behind."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory()), 'run'
    )
    cls.result = program_runner.run(
      'train.py', f'--output_dir={cls.folder}', timeout_s=120
    )
    with open(cls.folder / 'metrics.csv', newline='') as file:
      cls.rows = list(csv.DictReader(file))
    cls.privacy = json.loads((cls.folder / 'privacy.json').read_text())
    cls.config = json.loads((cls.folder / 'config.json').read_text())

  def test_ends_well(self):
    self.assertEqual(self.result.returncode, 0, self.result.stderr)
    # The progress bar, and nothing of TensorFlow's.
    self.assertIn('10/10', self.result.stderr)
    for word in ('WARNING', 'INFO', 'Traceback', 'rebuild TensorFlow'):
      self.assertNotIn(word, self.result.stderr)

  def test_says_what_came_out(self):
    last = self.rows[-1]
    self.assertIn(
      f'test loss {float(last["test_loss"]):.4f}, '
      f'test accuracy {float(last["test_accuracy"]):.4f}',
      self.result.stdout,
    )
    self.assertIn('epsilon = 10 at delta = 0.0001 HOLDS.', self.result.stdout)

  def test_metrics(self):
    header = (self.folder / 'metrics.csv').read_text().splitlines()[0]
    self.assertStartsWith(header, _COLUMNS)
    self.assertEqual([int(row['round']) for row in self.rows], [*range(1, 11)])
    self.assertGreater(float(self.rows[-1]['test_accuracy']), 0.8)

  def test_privacy(self):
    self.assertIs(self.privacy['holds'], True)
    self.assertEqual(self.privacy['target_epsilon'], 10)
    self.assertEqual(self.privacy['claimed_epsilon'], 10)
    self.assertEqual(self.privacy['unit'], 'example')
    self.assertEqual(self.privacy['adjacency'], 'replace-one')
    self.assertIs(self.privacy['sensitivity']['proven'], True)
    worst = self.privacy['delivered']['server, worst client']
    self.assertBetween(worst['exact'], 9.999, 10)
    self.assertEqual(worst['exact'], float(self.rows[-1]['delivered_epsilon']))
    self.assertLessEqual(worst['exact'], worst['pld'] + 1e-9)
    self.assertLessEqual(worst['pld'], worst['rdp'])

  def test_report(self):
    text = (self.folder / 'report.html').read_text()
    self.assertIn('<strong>HOLDS</strong>', text)
    self.assertIn('The run is finished, after 10 rounds.', text)
    for name in re.findall('href="(.*?)"', text):
      self.assertTrue((self.folder / name).exists(), name)

  def test_further_metrics(self):
    for row in self.rows:
      self.assertEqual((row['participants'], row['dropped']), ('5', '0'))
      # It is an estimate, cut off at 0, where late updates are mostly noise.
      self.assertGreaterEqual(float(row['signal_to_noise']), 0)
      self.assertEqual(
        float(row['remaining_budget']), 10 - float(row['delivered_epsilon'])
      )

    self.assertGreater(float(self.rows[0]['signal_to_noise']), 0)

  def test_finished_run_is_not_resumed(self):
    before = {
      path: path.read_bytes()
      for path in self.folder.rglob('*')
      if path.is_file()
    }
    result = program_runner.run(
      'train.py', f'--output_dir={self.folder}', '--resume'
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertLen(result.stdout.splitlines(), 1)
    self.assertIn('is finished: nothing to do', result.stdout)
    after = {path: path.read_bytes() for path in before}
    self.assertEqual(after, before)

  def test_run_of_other_flags_is_not_resumed(self):
    result = program_runner.run(
      'train.py', f'--output_dir={self.folder}', '--resume', '--theta=0.9'
    )
    self.assertEqual(result.returncode, 2)
    self.assertEqual(
      result.stderr,
      'train.py: error: --theta must be 0.95, as when the run in '
      f"'{self.folder}' began, got 0.9\n",
    )

  def test_picture(self):
    content = (self.folder / 'curves.png').read_bytes()
    self.assertStartsWith(content, b'\x89PNG')

  def test_folder_is_complete_and_nothing_else(self):
    self.assertCountEqual(
      os.listdir(self.folder),
      [
        'checkpoints',
        'config.json',
        'curves.png',
        'ledger.jsonl',
        'ledger.jsonl.head',
        'metrics.csv',
        'model',
        'privacy.json',
        'report.html',
        'tensorboard',
      ],
    )
    self.assertNotEmpty(list(self.folder.glob('tensorboard/*tfevents*')))

  def test_config_holds_every_flag(self):
    settings = self.config['settings']
    self.assertEqual(settings['dataset'], 'digits')
    self.assertIsNone(settings['seed'])
    self.assertIsInstance(self.config['resolved']['public_seed'], int)

  def test_model_needs_nothing_of_ours(self):
    digits = datasets.load('digits')
    data = self.create_tempfile('test.npz').full_path
    np.savez(data, x=digits.test_features, y=digits.test_labels)
    result = subprocess.run(
      [sys.executable, '-c', _LOAD_WITHOUT_US, self.folder / 'model', data],
      capture_output=True,
      text=True,
      check=False,
      cwd='/',
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertAlmostEqual(
      float(result.stdout), float(self.rows[-1]['test_accuracy']), places=6
    )


class PaperRunTest(absltest.TestCase):
  """A run of the paper's Algorithm 1."""

  def test_claims_and_does_not_hold(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    result = program_runner.run(
      'train.py',
      f'--output_dir={folder}',
      *('--mechanism=paper', '--delta=1e-3', '--noprogress'),
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('DOES NOT HOLD', result.stdout)
    self.assertIn('does not hold: several gradient steps', result.stdout)
    with open(folder / 'metrics.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    config = json.loads((folder / 'config.json').read_text())
    # theta = .95, and Theorem 1's noise for the smallest of the users.
    sensitivity = 2 * 5 / min(config['resolved']['examples_per_user'])
    first = privacy.theorem1_stddev(0.95, 10, 10.0, 1e-3, 0.5, sensitivity)
    np.testing.assert_allclose(
      [float(row['noise_stddev']) for row in rows],
      first * 0.95 ** (np.arange(10) / 2),
      rtol=1e-12,
    )
    statement = json.loads((folder / 'privacy.json').read_text())
    self.assertIs(statement['holds'], False)
    self.assertIs(statement['sensitivity']['proven'], False)
    worst = statement['delivered']['server, worst client']
    self.assertGreater(worst['exact'], 10)
    report = (folder / 'report.html').read_text()
    self.assertIn('<strong>DOES NOT HOLD</strong>', report)
    self.assertIn('Nothing is promised to anybody', report)


class SoundRunTest(absltest.TestCase):
  """A run whose guarantee holds, that says what it imports and when."""

  def test_statement_ledger_and_imports(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    program, *arguments = program_runner.command(
      'train.py',
      f'--output_dir={folder}',
      '--mechanism=gradient',
      '--epsilon=3',
      '--rounds=4',
      '--local_steps=2',
      '--refinement=budget',
      '--noprogress',
      '--verbosity=0',
    )
    result = subprocess.run(
      [program, '-X', 'importtime', *arguments],
      capture_output=True,
      stdin=subprocess.DEVNULL,
      text=True,
      timeout=240,
      check=False,
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self._check_imports(result.stderr)
    # A line a round, and none of any library.
    rows = (folder / 'metrics.csv').read_text().splitlines()[1:]
    self.assertTrue((folder / 'curves.png').is_file())
    lines = [
      line
      for line in result.stderr.splitlines()
      if not line.startswith('import time:')
    ]
    self.assertLen(lines, len(rows))
    for number, line in enumerate(lines, start=1):
      self.assertRegex(line, rf'^I.*\] round={number} noise_stddev=\S+ test_')
    self.assertIn('epsilon = 3 at delta = 0.0001 HOLDS', result.stdout)
    statement = json.loads((folder / 'privacy.json').read_text())
    self.assertIs(statement['holds'], True)
    audit = ledger_audit.audit(folder / 'ledger.jsonl')
    self.assertTrue(audit.head_verified)
    self.assertTrue(audit.within_budget)
    self.assertEqual(audit.head_hash, statement['ledger_head'])
    # What the ledger reads, a refined run proves no better than its target.
    self.assertBetween(audit.worst_epsilon, 2.9999, 3)
    self.assertEqual(statement['delivered']['server, worst client']['exact'], 3)
    self.assertEqual(audit.rounds, statement['rounds'])

  def _check_imports(self, error):
    """Only what a round needs is there before it: seconds of a short run."""
    before, released, after = error.partition('round=1 ')
    self.assertTrue(released)

    def imported(text):
      lines = re.findall(r'^import time: +\d+ \| +\d+ \| +(\w+)', text, re.M)
      return set(lines)

    self.assertIn('tensorflow_federated', imported(before))
    self.assertEmpty(imported(before) & _NOT_YET)
    # Another process draws the picture.
    self.assertNotIn('matplotlib', imported(after))


class SharedLedgerTest(absltest.TestCase):
  def test_two_runs_at_once(self):
    folder = pathlib.Path(self.create_tempdir().full_path)
    ledger = folder / 'ledger.jsonl'
    processes = [
      subprocess.Popen(
        program_runner.command(
          'train.py',
          f'--output_dir={folder}/{name}',
          f'--ledger={ledger}',
          '--ledger_epsilon=5',
          '--delta=1e-4',
          '--mechanism=gradient',
          f'--epsilon={epsilon}',
          '--rounds=4',
          '--local_steps=2',
          '--noprogress',
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
      for name, epsilon in (('a', 3), ('b', 2))
    ]
    for process in processes:
      output, error = process.communicate(timeout=240)
      self.assertEqual((process.returncode, error), (0, ''))
      self.assertIn(' HOLDS.\n', output)
      self.assertIn('together is bounded by epsilon = 5; so far', output)
    audit = ledger_audit.audit(ledger)
    self.assertTrue(audit.holds, audit.reason)
    self.assertEqual([share.records for share in audit.runs], [4, 4])
    shares = sorted(share.worst_epsilon for share in audit.runs)
    self.assertBetween(shares[0], 1.99, 2)
    self.assertBetween(shares[1], 2.99, 3)
    self.assertBetween(audit.worst_epsilon, 3.2, 5)
    result = program_runner.run('plan.py', f'--ledger={ledger}')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertIn('epsilon = 5 at delta = 0.0001 HOLDS.\n', result.stdout)
    self.assertIn('Run 2: gradient', result.stdout)


class AutoTest(absltest.TestCase):
  def test_chooses_what_is_not_given(self):
    folder = pathlib.Path(self.create_tempdir().full_path) / 'run'
    result = program_runner.run(
      'train.py',
      '--auto',
      '--dataset=generated_adult',
      '--epsilon=3',
      '--delta=1e-4',
      '--rounds=3',
      f'--output_dir={folder}',
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    lines = result.stdout.splitlines()
    self.assertEqual(lines[0], 'chosen, from public facts alone:')
    self.assertStartsWith(lines[1], 'mechanism = gradient: ')
    self.assertFalse(any(line.startswith('rounds = ') for line in lines))
    settings = json.loads((folder / 'config.json').read_text())['settings']
    self.assertEqual(
      (settings['rounds'], settings['features'], settings['model']),
      (3, 'unit_norm', 'linear'),
    )
    self.assertIn('epsilon = 3 at delta = 0.0001 HOLDS', result.stdout)

  def test_only_where_there_is_a_rule(self):
    result = program_runner.run('train.py', '--auto', '--mechanism=paper')
    self.assertEqual(
      (result.returncode, result.stderr),
      (
        2,
        'train.py: error: --auto must be given with mechanism gradient or'
        " distributed, got 'paper'\n",
      ),
    )


class FailureTest(absltest.TestCase):
  def test_loss_that_is_not_finite(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    result = program_runner.run(
      'train.py',
      f'--output_dir={folder}',
      '--mechanism=paper',
      '--l2_norm_clip=1e30',
      '--noprogress',
    )
    self.assertEqual(result.returncode, 1)
    self.assertLen(result.stderr.splitlines(), 1)
    self.assertIn('test loss of round 1 is', result.stderr)
    # What was released is on record; what was not made is not there.
    statement = json.loads((folder / 'privacy.json').read_text())
    # The next round may have begun while this one was evaluated.
    audit = ledger_audit.audit(folder / 'ledger.jsonl')
    self.assertEqual(statement['rounds'], audit.rounds)
    self.assertBetween(audit.rounds, 1, 2)
    worst = statement['delivered']['server, worst client']
    self.assertGreater(worst['exact'], 0)
    # Without seconds: who takes part is drawn in secret.
    self.assertEqual(
      (folder / 'metrics.csv').read_text().splitlines(),
      [_COLUMNS.removesuffix(',seconds')],
    )
    self.assertFalse((folder / 'model').exists())

  def test_no_process_survives_sigkill(self):
    folder = pathlib.Path(self.create_tempdir().full_path, 'run')
    mark = f'TVDP_TF_TEST_MARK={os.getpid()}-{time.monotonic_ns()}'
    process = subprocess.Popen(
      program_runner.command(
        'train.py',
        f'--output_dir={folder}',
        '--rounds=100000',
        '--theta=1',
        '--runtime=tff',
      ),
      env=dict(os.environ, **dict([mark.split('=')])),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    try:
      _wait_for(lambda: [*folder.glob('checkpoints/round_*')])
      # Itself, the worker, the relay to its network, and who draws the curves.
      self.assertLen(_workers(mark), 4)
    finally:
      process.send_signal(signal.SIGKILL)
      process.wait()
    _wait_for(lambda: not _workers(mark))


if __name__ == '__main__':
  absltest.main()
