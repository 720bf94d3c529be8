"""`report.html`: a run, a plan or a comparison for decision makers.

The report repeats the privacy statement. Every number links to the file in the
same folder that it comes from.
"""

import importlib.metadata
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvdp_tf import privacy
from tvdp_tf.output import files, html_page
from tvdp_tf.privacy import sensitivity
from tvdp_tf.privacy import statement as statement_lib

REPORT = 'report.html'

_STATEMENT, _LEDGER = 'privacy.json', 'ledger.jsonl'
_CONFIG, _METRICS = 'config.json', 'metrics.csv'
_CURVES = (
  ('Test loss', 'test_loss'),
  ('Test accuracy', 'test_accuracy'),
  ('Noise, standard deviation', 'noise_stddev'),
  ('Epsilon delivered to the worst client', 'delivered_epsilon'),
)
_FILES = (
  (_STATEMENT, 'the privacy statement'),
  (_LEDGER, 'every release, on record before it happened'),
  (_METRICS, 'every round'),
  (_CONFIG, 'every setting'),
  ('curves.png', 'the curves as a picture'),
  ('model', 'the trained model'),
)
_VERSIONS = ('numpy', 'scipy', 'dp-accounting')
_MOST_ROWS = 200


class Number(NamedTuple):
  """A number of a table."""

  name: str
  value: str


_epsilon = statement_lib.format_epsilon


def _numbers(caption: str, rows: Sequence[Number], source: str) -> str:
  """A table whose numbers link to the file that they come from."""
  return html_page.table(
    f'{caption}, from {source}',
    ('What', 'Value'),
    [
      (html_page.text(row.name), html_page.link(source, row.value))
      for row in rows
    ],
  )


def _settings(caption: str, values: Mapping[str, Any], source: str) -> str:
  return _numbers(
    caption, [Number(k, str(v)) for k, v in values.items()], source
  )


def _protected(statement: privacy.PrivacyStatement) -> str:
  """What is protected and what is not, in plain words."""
  meaning = sensitivity.ADJACENCY_MEANINGS[statement.adjacency]
  if statement.holds:
    promised = html_page.items(
      map(
        html_page.text,
        (
          f'Every single {statement.unit} of the training data. '
          f'{statement.adjacency} means: {meaning}.',
          f'What that is worth: {statement.worth}.',
          f'Against whom: {statement.view}.',
        ),
      )
    )
  else:
    promised = html_page.paragraph(
      f'Nothing is promised to anybody: {statement.reason}.'
    )
  exposed = [
    'What is true of the data as a whole: a model is trained to learn it.',
    'Anything against those who run the training process: it sees all data.',
    'What other runs on the same data disclose, unless they share a ledger.',
  ]
  if statement.unit == 'example':
    exposed.insert(
      0,
      'A person with several examples as a whole: each example is protected'
      ' alone.',
    )
  return html_page.section(
    'What is protected, and what is not',
    html_page.element('h3', 'Protected'),
    promised,
    html_page.element('h3', 'Not protected'),
    html_page.items(map(html_page.text, exposed)),
    html_page.element('h3', 'This rests on'),
    html_page.items(map(html_page.text, statement.assumptions)),
  )


def _statement_numbers(statement: privacy.PrivacyStatement) -> list[Number]:
  rows = [
    Number('Target epsilon', _epsilon(statement.target_epsilon)),
    Number('Target delta', f'{statement.delta!r}'),
    Number('Claimed epsilon', _epsilon(statement.claimed_epsilon)),
  ]
  for view, by_accountant in statement.delivered.items():
    for name, value in by_accountant.items():
      sound = name in statement_lib.SOUND_ACCOUNTANTS
      note = '' if sound else '; a claim, not a bound'
      rows.append(
        Number(f'Delivered epsilon: {view}, by {name}{note}', _epsilon(value))
      )
  rule = statement.sensitivity
  if rule is not None:
    proven = 'proven' if rule.proven else 'NOT PROVEN'
    rows.append(Number(f'Sensitivity, {proven}', rule.formula))
  return rows


def _doubt(statement: privacy.PrivacyStatement) -> str:
  """The remark that a delivered epsilon relies on an unproven sensitivity."""
  rule = statement.sensitivity
  if rule is None or rule.proven:
    return ''
  return ', assuming a sensitivity that is not proven'


def _budget(
  epsilons: Sequence[float], target: float, source: str | None
) -> str:
  """What each client has spent; `source` is None for a shared ledger."""
  title = 'Budget by client'
  where = html_page.paragraph(
    'In all runs that share the ledger, which is not in this folder.'
    if source is None
    else 'According to the ledger, which rounds up.'
  )
  if not len(epsilons):
    return html_page.section(
      title,
      html_page.paragraph('plan.py --ledger=FILE lists all of the clients.'),
      where,
    )
  finite = sorted(value for value in epsilons if math.isfinite(value))
  if len(finite) == len(epsilons) and not math.isfinite(target):
    most = _epsilon(finite[-1])
    return html_page.section(
      title,
      html_page.paragraph(f'There is no limit; the most spent is {most}.'),
      where,
    )
  if len(finite) < len(epsilons):
    return html_page.section(
      title,
      html_page.paragraph(
        f'For {len(epsilons) - len(finite)} of {len(epsilons)} clients,'
        ' something was released without noise: there is no limit to what it'
        ' discloses.'
      ),
      where,
    )

  def sourced(words: str) -> str:
    if source is None:
      return html_page.text(words)
    return html_page.link(source, words)

  return html_page.section(
    title,
    where,
    html_page.bar_chart(
      'Epsilon spent, client by client',
      finite,
      target,
      ('clients', 'the limit'),
      '' if source is None else html_page.link(source),
    ),
    html_page.table(
      'Epsilon spent',
      ('Client', 'Epsilon'),
      [
        (html_page.text(name), sourced(_epsilon(value)))
        for name, value in (
          ('The client that has spent most', finite[-1]),
          ('The client in the middle', finite[len(finite) // 2]),
          ('The client that has spent least', finite[0]),
          ('The limit', target),
        )
      ],
    ),
  )


def _cell(column: str, value: float) -> str:
  if column == 'delivered_epsilon' and value >= 0:
    return statement_lib.format_epsilon(value)
  return f'{value:.6g}'


def _curves(path: pathlib.Path) -> str:
  rows = files.read_csv(path)
  if not rows:
    return html_page.section(
      'Curves', html_page.paragraph('No round has been evaluated yet.')
    )
  source = html_page.link(_METRICS)
  charts = [
    html_page.line_chart(
      title,
      'round',
      [(int(row['round']), float(row[column])) for row in rows],
      source,
    )
    for title, column in _CURVES
  ]
  shown = rows[-_MOST_ROWS:]
  last = (
    f'the last {_MOST_ROWS} of {len(rows)} rounds'
    if (len(rows) > len(shown))
    else 'every round'
  )
  columns = ['round', *(column for _, column in _CURVES)]
  numbers = html_page.table(
    f'{last}, from {_METRICS}',
    columns,
    [
      [
        html_page.link(_METRICS, _cell(column, float(row[column])))
        for column in columns
      ]
      for row in shown
    ],
  )
  return html_page.section(
    'Curves',
    html_page.element('div', ''.join(charts), **{'class': 'charts'}),
    html_page.element(
      'details', html_page.element('summary', 'The numbers') + numbers
    ),
  )


def write_run(
  folder: pathlib.Path,
  statement: privacy.PrivacyStatement,
  *,
  rounds: int,
  finished: bool,
  epsilons: Sequence[float],
  target: float,
) -> None:
  """Writes the report of a run, beside its files.

  Args:
    folder: The folder of the run, with its configuration and metrics.
    statement: The statement on all releases.
    rounds: The number of rounds that the statement covers.
    finished: Whether the run has ended.
    epsilons: What each client has spent, by the ledger; empty if there are too
      many to show.
    target: What each may spend, by the ledger; inf for no limit.

  Raises:
    OSError: If it cannot be written.
  """
  config = files.read_json(folder / _CONFIG)
  settings = config.get('settings', {})
  resolved = config.get('resolved', {})
  spent = (
    f'Epsilon {_epsilon(statement.epsilon)} at delta {statement.delta!r} is '
    f'delivered{"" if finished else " so far"} ({statement.view})'
    f'{_doubt(statement)}; the target is '
    f'{_epsilon(statement.target_epsilon)}.'
  )
  state = (
    f'The run is finished, after {rounds} rounds.'
    if finished
    else f'The run is NOT FINISHED: {rounds} rounds have been released so far,'
    ' and further rounds would spend more.'
  )
  present = [
    html_page.link(name) + html_page.text(f': {words}')
    for name, words in _FILES
    if (folder / name).exists() or (name == _STATEMENT)
  ]
  shared = resolved.get('shared_ledger') is True
  content = html_page.page(
    f'Privacy report: {settings.get("dataset")}, {settings.get("model")}, '
    f'mechanism {settings.get("mechanism")}',
    html_page.verdict(
      statement.verdict, f'Why: {statement.reason}.', spent, state
    ),
    _protected(statement),
    html_page.section(
      'The guarantee in numbers',
      _numbers(
        'The privacy statement',
        [
          *_statement_numbers(statement),
          Number('Rounds released', str(rounds)),
        ],
        _STATEMENT,
      ),
    ),
    _budget(epsilons, target, None if shared else _LEDGER),
    _curves(folder / _METRICS),
    html_page.section(
      'Settings', _settings('At the start of the run', settings, _CONFIG)
    ),
    html_page.section(
      'Versions',
      _settings(
        'Of the software that computed it', config.get('versions', {}), _CONFIG
      ),
    ),
    html_page.section('Sources', html_page.items(present)),
  )
  files.write_text(folder / REPORT, content)


def write_plan(
  folder: pathlib.Path,
  statement: privacy.PrivacyStatement,
  settings: Mapping[str, Any],
  numbers: Sequence[Number],
  pictures: Mapping[str, str],
) -> None:
  """Writes the report of a plan, beside its files.

  Args:
    folder: The folder of the plan.
    statement: What training will state if every round happens as planned.
    settings: All settings.
    numbers: The numbers that the plan predicts.
    pictures: Name of a PNG in the folder -> its description.

  Raises:
    OSError: If it cannot be written.
  """
  source = 'plan.json'
  versions = {name: importlib.metadata.version(name) for name in _VERSIONS}
  content = html_page.page(
    f'Privacy plan: {settings.get("dataset")}, {settings.get("model")}, '
    f'mechanism {settings.get("mechanism")}',
    html_page.verdict(
      statement.verdict,
      f'Why: {statement.reason}.',
      'Nothing has been trained: this is what training will state if every '
      'round happens as planned.',
    ),
    _protected(statement),
    html_page.section(
      'The guarantee in numbers',
      _numbers('As planned', _statement_numbers(statement), source),
    ),
    html_page.section(
      'What it predicts',
      _numbers('The convergence bound', numbers, source),
      *(
        html_page.picture(folder / name, words, html_page.link(name))
        for name, words in pictures.items()
      ),
    ),
    html_page.section('Settings', _settings('Every setting', settings, source)),
    html_page.section(
      'Versions',
      html_page.table(
        'Of the software that computed it',
        ('What', 'Version'),
        [(html_page.text(k), html_page.text(v)) for k, v in versions.items()],
      ),
    ),
    html_page.section(
      'Sources',
      html_page.items(map(html_page.link, (source, 'plan.csv', *pictures))),
    ),
  )
  files.write_text(folder / REPORT, content)


def together(statements: Sequence[privacy.PrivacyStatement]) -> str:
  """What several runs on the same examples guarantee together, in a sentence.

  Epsilons and deltas add up if the unit is an example and the adjacency is the
  same. Users differ from run to run, because the examples are dealt out anew.
  """
  start = (
    'Each verdict is about one run alone, and all runs are on the same examples'
  )
  if not all(said.holds for said in statements):
    return f'{start}: nothing is promised against someone who sees all of them.'
  if len({(said.unit, said.adjacency) for said in statements}) > 1:
    return (
      f'{start}. They protect different things, so nothing is promised here'
      ' against someone who sees all of them.'
    )
  if statements[0].unit == 'user':
    return (
      f'{start}, dealt out to other users in each run: nothing is promised'
      ' here against someone who sees all of them.'
    )
  epsilon = math.fsum(said.target_epsilon for said in statements)
  delta = math.fsum(said.delta for said in statements)
  return (
    f'{start}. Against someone who sees all of them, epsilon ='
    f' {_epsilon(epsilon)} at delta = {_epsilon(delta)} holds: they add up.'
  )


def write_comparison(
  folder: pathlib.Path,
  runs: Mapping[str, tuple[privacy.PrivacyStatement, float, float]],
  table: str,
  picture: str,
) -> None:
  """Writes the report of a comparison, beside the folders of its runs.

  Args:
    folder: The folder of the comparison.
    runs: Name of a run and its folder -> its statement, loss and accuracy.
    table: Name of the CSV in the folder.
    picture: Name of the PNG in the folder.

  Raises:
    OSError: If it cannot be written.
  """
  holding = [name for name, (said, *_) in runs.items() if said.holds]
  rows = []
  for name, (said, loss, accuracy) in runs.items():
    rows.append(
      (
        html_page.link(f'{name}/{REPORT}', name),
        html_page.link(f'{name}/{_STATEMENT}', said.verdict),
        html_page.link(table, _epsilon(said.claimed_epsilon)),
        html_page.link(table, _epsilon(said.epsilon))
        + html_page.text(_doubt(said)),
        html_page.link(table, f'{loss:.4f}'),
        html_page.link(table, f'{accuracy:.4f}'),
      )
    )
  others = [name for name in runs if name not in holding]
  content = html_page.page(
    f'Comparison of {len(runs)} trainings',
    html_page.verdict(
      f'{len(holding)} OF {len(runs)} HOLD' if holding else 'NONE HOLDS',
      f'The guarantee holds for: {", ".join(holding) or "none of them"}.',
      f'It does not hold for: {", ".join(others) or "none of them"}.',
    ),
    html_page.section(
      'What is claimed and what is delivered',
      *(
        [html_page.paragraph(together([said for said, *_ in runs.values()]))]
        if len(runs) > 1
        else []
      ),
      html_page.table(
        'Each run, after its last round',
        (
          *('Run', 'Verdict', 'Claimed epsilon', 'Delivered epsilon'),
          *('Test loss', 'Test accuracy'),
        ),
        rows,
      ),
      html_page.picture(
        folder / picture,
        'Test loss, test accuracy and delivered epsilon of each run against '
        'the rounds; those after the last round are in the table above.',
        html_page.link(picture),
      ),
    ),
    html_page.section(
      'What is protected, and what is not',
      html_page.paragraph('See the report of each run, with its settings:'),
      html_page.items(html_page.link(f'{n}/{REPORT}', n) for n in runs),
    ),
    html_page.section(
      'Sources', html_page.items(map(html_page.link, (table, picture)))
    ),
  )
  files.write_text(folder / REPORT, content)


def write_audit(
  folder: pathlib.Path,
  verdict: str,
  reason: str,
  numbers: Sequence[Number],
  epsilons: Sequence[float],
  target: float,
  sources: tuple[str, str],
) -> None:
  """Writes the report of a ledger's audit, beside its files.

  Args:
    folder: The folder of the audit.
    verdict: HOLDS or DOES NOT HOLD, in the words of `statement.verdict`.
    reason: Why, in a sentence.
    numbers: Numbers on all clients together.
    epsilons: What each client has spent.
    target: What each may spend; inf for no limit.
    sources: Names of the tables of the clients and of the runs, in the folder.

  Raises:
    OSError: If it cannot be written.
  """
  clients, _ = sources
  content = html_page.page(
    'Audit of a privacy ledger',
    html_page.verdict(verdict, f'Why: {reason}.'),
    html_page.section(
      'What the ledger proves', _numbers('All runs', numbers, clients)
    ),
    _budget(epsilons, target, clients),
    html_page.section(
      'Sources', html_page.items(html_page.link(name) for name in sources)
    ),
  )
  files.write_text(folder / REPORT, content)
