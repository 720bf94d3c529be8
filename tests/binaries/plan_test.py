import csv
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
from absl.testing import absltest, parameterized

from tests.binaries import program_runner
from tests.privacy import ledger_cases
from tvdp_tf import privacy
from tvdp_tf.output import layout
from tvdp_tf.privacy import _chained_file


def _run(*arguments, cwd=None):
  return program_runner.run('plan.py', *arguments, cwd=cwd, timeout_s=60)


def _loaded(cwd, *arguments):
  """Runs the program in `cwd`; the last line is the TensorFlow it loaded."""
  program = program_runner.command('plan.py')[-1]
  script = f"""
import os, runpy, sys
sys.argv = ['plan.py', *{arguments!r}]
sys.path[0] = os.path.dirname({program!r})
try:
  runpy.run_path({program!r}, run_name='__main__')
except SystemExit as end:
  assert not end.code, end.code
loaded = {{name.split('.')[0] for name in sys.modules}}
print(sorted(name for name in loaded if name.startswith(('tensor', 'keras'))))
"""
  return subprocess.run(
    [sys.executable, '-c', script],
    capture_output=True,
    text=True,
    cwd=cwd,
    timeout=60,
    check=False,
  )


# What docs/EXTENDING.md shows.
_MY_DATA = """
import numpy as np
from tvdp_tf.learning import datasets, features

def load_mine(data_dir):
  del data_dir
  x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
  y[0] = {}
  return datasets.Dataset('mine', x[:30], y[:30], x[30:], y[30:], 2)

def squares(x):
  return np.concatenate([x, x**2])

datasets.LOADERS['mine'] = load_mine
features.register(squares)
"""


class PlanTestCase(parameterized.TestCase):
  def _folder(self) -> pathlib.Path:
    return pathlib.Path(self.create_tempdir().full_path)

  def _assert_one_line(self, result, code, message):
    self.assertEqual(result.returncode, code, result.stderr)
    self.assertEqual(result.stderr.count('\n'), 1)
    self.assertStartsWith(result.stderr, f'plan.py: error: {message}')


_FLAG_FILES = sorted((program_runner.ROOT / 'binaries/flags').glob('*.flags'))


class PlanTest(PlanTestCase):
  def test_without_flags(self):
    folder = self._folder()
    result = _run('--noprogress', cwd=folder)
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    for expected in (
      '2 C_g / n = 2 * 1.0 / 143 = 0.013986: PROVEN',
      'Verdict: HOLDS\n',
      'epsilon = 10 at delta = 0.0001 HOLDS.',
    ):
      self.assertIn(expected, result.stdout)
    self.assertEmpty(list(folder.iterdir()))

  def test_the_paper(self):
    folder = self._folder()
    result = _run('--mechanism=paper', '--delta=1e-3', cwd=folder)
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    for expected in (
      '2 C / n = 2 * 5.0 / 143 = 0.0699301: NOT PROVEN',
      'proven for this upload: 2 C = 2 * 5.0 = 10',
      'Verdict: NO GUARANTEE',
      'printed: UNSOUND, Theorem 1; its own moment bound gives epsilon 13.6192',
    ):
      self.assertIn(expected, result.stdout)
    lines = [' '.join(line.split()) for line in result.stdout.splitlines()]
    self.assertIn(
      'printed 0.0655852 0.052067 0.937869 0.744558 13.7813 <- chosen', lines
    )
    rows = [line.split() for line in lines]
    for name in ('contraction', 'initial_gap', 'smoothness'):
      row = next(row for row in rows if row[:1] == [f'--{name}'])
      self.assertEqual(row[2], 'assumed')
    self.assertNotIn('HOLDS', result.stdout)
    self.assertEmpty(list(folder.iterdir()))

  def test_what_is_given_is_not_called_assumed(self):
    # The default's very value, but stated.
    result = _run('--contraction=0.85', '--examples_per_user=600')
    rows = [line.split() for line in result.stdout.splitlines()]
    for name, value in (('contraction', '0.85'), ('examples_per_user', '600')):
      row = next(row for row in rows if row[:1] == [f'--{name}'])
      self.assertEqual(row[:3], [f'--{name}', value, 'given'])

  def test_help_lists_the_defaults_of_training(self):
    plan, train = (
      program_runner.run(program, '--help')
      for program in ('plan.py', 'train.py')
    )
    self.assertEqual((plan.returncode, plan.stderr), (0, ''))
    texts = [
      dict(re.findall(r'--(?:\[no\])?(\w+): (.*?)(?= --| Try |$)', text))
      for text in (' '.join(r.stdout.split()) for r in (plan, train))
    ]
    shared = texts[0].keys() & texts[1].keys() - {'ledger', 'progress'}
    self.assertContainsSubset({'users', 'mechanism', 'noise', 'seed'}, shared)
    for name in shared - {'output_dir'}:
      self.assertEqual(texts[0][name], texts[1][name])

  @parameterized.parameters(*(path.name for path in _FLAG_FILES))
  def test_flag_files_of_training(self, name):
    path = program_runner.ROOT / 'binaries' / 'flags' / name
    result = _loaded(self._folder(), f'--flagfile={path}')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    # Nor is the data set loaded.
    self.assertEqual(result.stdout.splitlines()[-1], '[]')
    verdict = {
      'mnist_paper.flags': 'NO GUARANTEE',
      # delta = 1e-3 is above one over the number of examples.
      'mnist_gradient.flags': 'HOLDS, BUT PROTECTS LITTLE',
    }.get(name, 'HOLDS')
    self.assertIn(f'Verdict: {verdict}\n', result.stdout)
    dataset = re.match('(?:fashion_)?[a-z0-9]+', name)
    assert dataset is not None
    self.assertIn(f'data           {dataset[0]}, iid; model', result.stdout)

  @parameterized.parameters(
    '--mechanism=central --rounds=3',
    '--mechanism=central --participation=uniform',
    '--mechanism=central --participation=balanced --model=svm --dataset=adult',
    '--mechanism=laplace --model=cnn --dataset=cifar10',
    '--mechanism=none --split=dirichlet',
    '--mechanism=gradient --participation=uniform --seed=1 --noprogress',
    '--mechanism=gradient --split=dirichlet --dataset=generated_mnist',
  )
  def test_any_mechanism_without_tensorflow(self, arguments):
    result = _loaded(self._folder(), *arguments.split())
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(result.stdout.splitlines()[-1], '[]')
    self.assertIn('Verdict: ', result.stdout)
    widest = max(map(len, result.stdout.splitlines()))
    self.assertLessEqual(widest, 80)

  @parameterized.parameters(
    ('--users=0', '--users must be an integer >= 1, got 0'),
    ('--users_per_round=101', '--users_per_round must be an integer from 1 to'),
    (
      '--mechanism=paper --users=1438',
      '--users must be at most the number of training',
    ),
    ('--model=svm', '--model must be mlp, linear or cnn for 10 classes'),
    ('--epsilon=0', '--epsilon must be a finite number > 0, got 0.0'),
    ('--epsilon=nan', '--epsilon must be a finite number > 0, got nan'),
    ('--delta=1', '--delta must be a number strictly between 0 and 1, got 1.0'),
    ('--theta=abc', "--theta must be a number, got 'abc'"),
    ('--rounds=1.5', "--rounds must be an integer, got '1.5'"),
    ('--local_steps=0', '--local_steps must be an integer >= 1'),
    ('--l2_norm_clip=-1', '--l2_norm_clip must be a finite number > 0'),
    ('--example_l2_norm_clip=0', '--example_l2_norm_clip must be a finite'),
    ('--learning_rate=inf', '--learning_rate must be a finite number > 0'),
    ('--examples_per_user=0', '--examples_per_user must be an integer from 1'),
    ('--contraction=1', '--contraction must be a number strictly between 0'),
    ('--initial_gap=0', '--initial_gap must be a finite number > 0, got 0.0'),
    ('--smoothness=-2', '--smoothness must be a finite number > 0, got -2.0'),
    ('--dimension=0', '--dimension must be an integer from 1 to'),
    (
      '--mechanism=magic',
      '--mechanism must be one of paper, gradient, distributed, distributed_us',
    ),
    (
      '--participation=once',
      '--participation must be one of uniform, balanced',
    ),
    (
      '--calibration=guess',
      '--calibration must be one of printed, tight, exact',
    ),
    (
      '--mechanism=gradient --calibration=printed',
      '--calibration must be one of exact, rdp, pld with mechanism gradient',
    ),
    (
      '--mechanism=gradient --users=7 --users_per_round=3',
      '--users_per_round must divide users with balanced participation, got 3',
    ),
    ('--theta=1e-30 --rounds=1000', '--theta must leave the noise of round'),
    (
      '--output_dir=.',
      "--output_dir must be a new or an empty folder, got '.'",
    ),
    ('--estimate_contraction=no', '--estimate_contraction must be the folder'),
    ('--ledger=no', "--ledger must be a run's ledger file, got 'no'"),
    ('--ledger=.', "--ledger must be a run's ledger file, got '.'"),
    (
      '--ledger=no --epsilon=10',
      '--ledger must be given without --epsilon, got both',
    ),
    (
      '--ledger=no --estimate_contraction=no',
      '--ledger must be given without --estimate_contraction, got both',
    ),
    ('rounds', "expected only flags, got 'rounds'"),
    ('--claim=gaussian', '--claim must be FORMULA:NAME=VALUE,..., got'),
    (
      '--claim=gaussian:delta=0.1 --epsilon=1',
      '--claim must be given without --epsilon, got both',
    ),
    (
      '--claim=opacus:delta=1e-5,rounds=3',
      '--claim must be FORMULA:NAME=VALUE,..., got',
    ),
  )
  def test_bad_flags(self, arguments, message):
    result = _run(*arguments.split())
    self.assertEqual(result.stdout, '')
    self._assert_one_line(result, 2, message)

  def test_a_mechanism_of_ones_own(self):
    arguments = [
      *('plan.py', '--import=own_mechanism', '--mechanism=local_users'),
      *('--rounds=3', '--contraction=0.3'),
    ]
    result = program_runner.run(
      *arguments, cwd=program_runner.ROOT / 'examples'
    )
    self.assertEqual(result.returncode, 0, result.stderr)
    self.assertIn('as own_mechanism claims', result.stdout)
    self.assertIn('HOLDS', result.stdout)
    unknown = program_runner.run('plan.py', *arguments[2:])
    self.assertEqual(unknown.returncode, 2)
    self.assertRegex(
      unknown.stderr, "--mechanism must be one of paper, .* got 'local_users'\n"
    )

  @parameterized.parameters((0, 0, 'HOLDS'), (5, 1, 'class numbers in [0, 2)'))
  def test_data_and_features_of_ones_own(self, first_label, code, text):
    folder = self.create_tempdir()
    folder.create_file('my_data.py', _MY_DATA.format(first_label))
    result = program_runner.run(
      *('plan.py', '--import=my_data', '--dataset=mine', '--features=squares'),
      *('--model=linear', '--rounds=3', '--contraction=0.3'),
      cwd=folder.full_path,
    )
    self.assertEqual(result.returncode, code, result.stderr)
    self.assertIn(text, result.stderr if code else result.stdout)
    self.assertLen(result.stderr.splitlines(), code)

  def test_claims_of_other_tools(self):
    words = 'epsilon=0.9,delta=1e-5,clip=1,sensitivity=2,rounds='
    result = _run(f'--claim=flower-local-dp:{words}1')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertIn('epsilon = 0.9 HOLDS.', result.stdout)
    result = _run(f'--claim=flower-local-dp:{words}9')
    self.assertEqual(result.returncode, 1)
    self.assertIn('DOES NOT HOLD', result.stdout)
    self.assertIn('the claim does not hold', result.stderr)

  def test_output_folder_is_refused_and_left_alone(self):
    folder = self._folder()
    (folder / 'there').mkdir()
    (folder / 'there' / 'mine').write_text('text')
    for output_dir in ('there', 'there/mine', 'there/mine/below'):
      result = _run(f'--output_dir={output_dir}', cwd=folder)
      self.assertEqual(result.stdout, '')
      self._assert_one_line(result, 2, '--output_dir must')
    self.assertEqual(os.listdir(folder), ['there'])
    self.assertEqual((folder / 'there' / 'mine').read_text(), 'text')

  def test_files_agree_and_tensorflow_stays_out(self):
    folder = self._folder()
    result = _loaded(
      folder,
      *('--mechanism=paper', '--delta=1e-3', '--calibration=exact'),
      *('--epsilon=50', '--output_dir=new/plan'),
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(result.stdout.splitlines()[-1], '[]')
    self.assertEqual(os.listdir(folder / 'new'), ['plan'])
    self.assertCountEqual(
      os.listdir(folder / 'new' / 'plan'),
      ['plan.json', 'plan.csv', 'plan.png', 'report.html'],
    )
    self._check_files(folder / 'new' / 'plan', result.stdout)

  def _check_files(self, folder, printed):
    plan = json.loads((folder / 'plan.json').read_text())
    with open(folder / 'plan.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    columns = [
      *('theta', 'rounds', 'bound', 'decay', 'noise', 'sigma', 'last_sigma')
    ]
    self.assertEqual(list(rows[0]), columns)
    self.assertEqual(
      [{name: float(value) for name, value in row.items()} for row in rows],
      plan['curve'],
    )
    self.assertEqual(
      (folder / 'plan.png').read_bytes()[:8], b'\x89PNG\r\n\x1a\n'
    )
    # The curve holds the plans that the table compares.
    points = {(row['theta'], row['rounds']): row for row in plan['curve']}
    for theta in plan['plan']['thetas']:
      for point in (theta['asked'], theta['best']):
        self.assertEqual(points[point['theta'], point['rounds']], point)
    lowest = min(plan['curve'], key=lambda row: row['bound'])
    optimal = plan['plan']['optimal']
    self.assertEqual(lowest, optimal)
    self.assertAlmostEqual(lowest['theta'], math.sqrt(0.85), delta=2e-3)
    # What is printed is what is written.
    stddevs = plan['noise']['noise_stddevs']
    self.assertLen(stddevs, 10)
    ends = [layout.noise(stddev) for stddev in (stddevs[0], stddevs[-1])]
    self.assertIn('  '.join(ends), printed)
    for shown, stddev in zip(ends, (stddevs[0], stddevs[-1]), strict=True):
      self.assertGreaterEqual(float(shown), stddev)
    self.assertIn(
      f'theta = {optimal["theta"]:.6g}, M = {optimal["rounds"]}', printed
    )
    self.assertFalse(plan['statement']['holds'])
    self.assertIn('smoothness', plan['assumed'])


class PilotTest(PlanTestCase):
  """Plans from runs whose contraction is known."""

  def _pilot(self, contraction=0.85, points=30, stddev=0.002):
    rounds = np.arange(1, points + 1)
    losses = 0.4 + 2.3 * contraction**rounds
    losses += stddev * np.random.default_rng(0).normal(size=points)
    folder = self._folder()
    with open(folder / 'metrics.csv', 'w', newline='') as file:
      writer = csv.writer(file)
      writer.writerow(['round', 'noise_stddev', 'test_loss', 'test_accuracy'])
      writer.writerows([m, 0.0, x, 0.5] for m, x in enumerate(losses, 1))
    return folder

  def test_the_plan_is_that_of_the_true_contraction(self):
    pilot = self._pilot()
    out = self._folder() / 'plan'
    result = _loaded(
      pilot,
      *('--estimate_contraction=metrics.csv', '--calibration=exact'),
      '--epsilon=100',
      f'--output_dir={out}',
    )
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(result.stdout.splitlines()[-1], '[]')
    self.assertIn('  measured from metrics.csv\n', result.stdout)
    self.assertCountEqual(
      os.listdir(out),
      [
        *('plan.json', 'plan.csv', 'plan.png', 'contraction.png'),
        'report.html',
      ],
    )
    plan = json.loads((out / 'plan.json').read_text())
    low, high = plan['measured']['contraction_interval']
    self.assertBetween(0.85, low, high)
    self.assertLess(high - low, 0.005)
    self.assertNotIn('contraction', plan['assumed'])
    # The best plan in closed form, for the true A and Theta.
    stddevs = np.array(plan['noise']['mean_noise_stddevs'])
    weight = plan['plan']['noise_weight']
    best = privacy.optimal_plan(0.85, 2.3, np.sum(stddevs**-2.0), weight)
    optimal = plan['plan']['optimal']
    self.assertGreater(best.rounds, 5)
    self.assertAlmostEqual(optimal['theta'], best.theta, delta=3e-3)
    self.assertAlmostEqual(optimal['rounds'], best.rounds, delta=1)
    self.assertAlmostEqual(optimal['bound'] / best.bound, 1, delta=0.03)
    self.assertIn(
      f'  --theta={optimal["theta"]:.6g} --rounds={optimal["rounds"]}\n',
      result.stdout,
    )

  def test_what_cannot_be_used(self):
    pilot = self._pilot()
    text = (pilot / 'metrics.csv').read_text()
    (pilot / 'noisy.csv').write_text(text.replace('7,0.0', '7,0.1', 1))
    (pilot / 'short.csv').write_text('\n'.join(text.splitlines()[:5]))
    for flags, message in (
      ('=noisy.csv', 'noise_stddev must be 0 in a pilot, got 0.1 in round 7'),
      ('=short.csv', 'rounds must have at least 5 entries, got 4'),
    ):
      result = _run(f'--estimate_contraction{flags}', cwd=pilot)
      self.assertEqual(result.stdout, '')
      self._assert_one_line(result, 2, '--estimate_contraction must be the')
      self.assertIn(message, result.stderr)
    result = _run('--estimate_contraction=.', '--contraction=0.9', cwd=pilot)
    self._assert_one_line(
      result,
      2,
      '--contraction must not be given if a pilot measures it, got 0.9',
    )
    self.assertLen(os.listdir(pilot), 3)


class LedgerTest(PlanTestCase):
  """Audits ledgers that were written by the library."""

  def _ledger(self, clients=25, noise_multiplier=30.0, **changes):
    """Client i takes part in rounds 1 to i + 1; the folder and the head."""
    folder = self._folder()
    header = ledger_cases.header(clients=clients, **changes)
    path = folder / 'ledger.jsonl'
    with ledger_cases.create(path, header) as ledger_:
      for m in range(1, clients + 1):
        taking = range(m - 1, clients)
        ids = ledger_cases.fresh(len(taking))
        ledger_.record(m, taking, ids, noise_multiplier)
      return folder, ledger_.epsilons(), ledger_.head_hash

  def test_within_the_target(self):
    folder, epsilons, head_hash = self._ledger()
    result = _loaded(folder, '--ledger=ledger.jsonl', '--output_dir=audit')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertEqual(result.stdout.splitlines()[-1], '[]')
    self.assertIn('epsilon = 1 at delta = 1e-05 HOLDS.\n', result.stdout)
    self.assertIn('all are within it', result.stdout)
    self.assertIn('Head of the chain: verified', result.stdout)
    self.assertIn(f'\n  ledger_head {head_hash}\n', result.stdout)
    self.assertIn('and 5 more, epsilon = ', result.stdout)
    self.assertIn('written to audit', result.stdout)
    with open(folder / 'audit' / 'ledger_audit.csv', newline='') as file:
      rows = list(csv.DictReader(file))
    # Worst first, and those are who took part most.
    self.assertEqual([int(r['client']) for r in rows], list(range(24, -1, -1)))
    self.assertEqual([float(r['epsilon']) for r in rows], [*epsilons[::-1]])

  def test_above_the_target(self):
    limits = {'noise_multiplier': 3.0, 'clients': 4}
    folder, _, _ = self._ledger(enforced=False, **limits)
    path = str(folder / 'ledger.jsonl')
    result = _run(f'--ledger={path}')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertIn(
      '(recorded, not enforced): 4 of them are ABOVE', result.stdout
    )
    payloads = _chained_file.read(path).payloads
    payloads[0]['enforced'] = True
    ledger_cases.forge(path, payloads)
    result = _run(f'--ledger={path}', f'--output_dir={folder}/audit')
    self._assert_one_line(result, 1, f'{path}: 4 of 4 clients are above the')
    # What was found is told all the same.
    self.assertEqual(result.stdout.count('ABOVE the target'), 4)
    self.assertTrue((folder / 'audit' / 'ledger_audit.csv').is_file())
    report = (folder / 'audit' / 'report.html').read_text()
    self.assertIn('<strong>DOES NOT HOLD</strong>', report)

  def test_seeded_run_is_not_endorsed(self):
    folder = self._folder()
    path = folder / 'ledger.jsonl'
    with ledger_cases.create(path, seeded=True) as ledger_:
      ledger_.record(1, [0], ledger_cases.fresh(), 30.0)
    result = _run(f'--ledger={path}')
    self.assertEqual((result.returncode, result.stderr), (0, ''))
    self.assertIn('DOES NOT HOLD', result.stdout)
    self.assertIn('the noise is reproducible from a seed', result.stdout)

  def test_tampering(self):
    folder, _, _ = self._ledger(clients=4)
    path = folder / 'ledger.jsonl'
    content, lines = path.read_bytes(), path.read_bytes().splitlines(True)
    for damaged, message in (
      (content.replace(b'30.0', b'90.0', 1), 'line 3: its hash is wrong'),
      (b''.join(lines[:-1]), 'cut off'),
      (b''.join([lines[0], *lines[2:]]), 'line 2: its hash is wrong'),
      (content[:-40], 'cut off'),
      (b'', ''),
      (b'{}\n', 'line 1: '),
    ):
      path.write_bytes(damaged)
      result = _run(f'--ledger={path}', f'--output_dir={folder}/audit')
      self.assertEqual(result.stdout, '')
      self._assert_one_line(result, 1, f'{path}')
      self.assertIn(message, result.stderr)
    path.write_bytes(content)
    (folder / 'ledger.jsonl.head').unlink()
    result = _run(f'--ledger={path}')
    self._assert_one_line(result, 1, f'{path}: its head is missing')
    self.assertIn('NOT verified', result.stdout)
    self.assertEqual(os.listdir(folder), ['ledger.jsonl'])


if __name__ == '__main__':
  absltest.main()
