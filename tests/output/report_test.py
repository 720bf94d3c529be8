"""Reports for people: what they say, how they are built, and how they look."""

import contextlib
import html.parser
import itertools
import math
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ET
from collections.abc import Callable

from absl.testing import absltest, parameterized

from tests.privacy import statement_test
from tvdp_tf.output import files, html_page, plots, report

_BROWSER = shutil.which('chromium') or shutil.which('google-chrome') or ''
_HOSTILE = '<script>alert("1 & 2")</script>'
_VOID = ('meta', 'img')


class Page(html.parser.HTMLParser):
  """What is in a page, and that every element is closed in its turn."""

  def __init__(self, text: str):
    super().__init__()
    self.open: list[str] = []
    self.elements: list[tuple[str, dict[str, str | None]]] = []
    self.words = ''
    self.feed(text)
    self.close()
    assert not self.open, self.open

  def handle_starttag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))
    if tag not in _VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.elements.append((tag, dict(attrs)))

  def handle_endtag(self, tag):
    assert self.open.pop() == tag, tag

  def handle_data(self, data):
    if self.open and self.open[-1] not in ('style', 'title'):
      self.words += data

  def all(self, tag):
    return [attributes for name, attributes in self.elements if name == tag]


def statement(**changes):
  return statement_test.state(**changes)


def run(folder: pathlib.Path, said=None, epsilons=(1.0, 0.5), **changes):
  """Writes the report of a run; returns its text."""
  files.write_json(
    folder / 'config.json',
    {
      'settings': {
        'dataset': _HOSTILE,
        'model': 'mlp',
        'mechanism': 'gradient',
      },
      'versions': {'numpy': '1'},
      'resolved': {'shared_ledger': changes.pop('shared', False)},
    },
  )
  columns = (
    *('round', 'noise_stddev', 'test_loss', 'test_accuracy'),
    'delivered_epsilon',
  )
  files.write_csv(
    folder / 'metrics.csv',
    columns,
    [[m, 0.1 / m, 2 / m, 1 - 1 / m, m / 3] for m in range(1, 4)],
  )
  for name in ('ledger.jsonl', 'curves.png', 'model'):
    (folder / name).touch()
  report.write_run(
    folder,
    said or statement(),
    **{
      'rounds': 3,
      'finished': True,
      'epsilons': epsilons,
      'target': 1.0,
      **changes,
    },
  )
  # Written after it.
  (folder / 'privacy.json').touch()
  return (folder / 'report.html').read_text()


def png(path: pathlib.Path) -> None:
  figure, axis = plots.plt.subplots()
  axis.plot([1, 2])
  plots.save_figure(figure, path)


def plan(folder: pathlib.Path) -> str:
  for name in ('plan.json', 'plan.csv'):
    (folder / name).touch()
  png(folder / 'plan.png')
  report.write_plan(
    folder,
    statement(),
    {'dataset': _HOSTILE, 'model': 'mlp', 'mechanism': 'gradient'},
    [report.Number('Best: theta', '0.9')],
    {'plan.png': 'The bound'},
  )
  return (folder / 'report.html').read_text()


def comparison(folder: pathlib.Path) -> str:
  refuted = statement(holds=False, reason='of this')
  (folder / 'comparison.csv').touch()
  for name in ('a', 'b'):
    (folder / name).mkdir()
    for file in ('report.html', 'privacy.json'):
      (folder / name / file).touch()
  png(folder / 'comparison.png')
  report.write_comparison(
    folder,
    {'a': (statement(), 0.5, 0.9), 'b': (refuted, 0.4, 0.95)},
    'comparison.csv',
    'comparison.png',
  )
  return (folder / 'report.html').read_text()


def audit(folder: pathlib.Path) -> str:
  sources = ('ledger_audit.csv', 'ledger_runs.csv')
  for name in sources:
    (folder / name).touch()
  report.write_audit(
    *(folder, 'HOLDS', _HOSTILE, [report.Number('Target epsilon', '1')]),
    *([1.0, 0.5], 1.0, sources),
  )
  return (folder / 'report.html').read_text()


class ReportTestCase(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)


class StructureTest(ReportTestCase):
  @parameterized.parameters(run, plan, comparison, audit)
  def test_of_every_page(self, write):
    text = write(self.folder)
    page = Page(text)
    self.assertStartsWith(text, '<!DOCTYPE html>')
    self.assertEqual(page.all('html'), [{'lang': 'en'}])
    self.assertIn(
      {
        'name': 'viewport',
        'content': 'width=device-width, initial-scale=1',
      },
      page.all('meta'),
    )
    # Headings go down a step at a time, from one of the first order.
    headings = ('h1', 'h2', 'h3')
    levels = [int(tag[1]) for tag, _ in page.elements if tag in headings]
    self.assertEqual(levels.count(1), 1)
    for one, other in itertools.pairwise(levels):
      self.assertLessEqual(other, one + 1)
    # Nothing is run, and nothing is from elsewhere.
    self.assertEmpty(page.all('script') + page.all('link') + page.all('iframe'))
    self.assertNotIn('http', text.replace('http-equiv', ''))
    self.assertNotIn('url(', text)
    for attributes in page.all('img'):
      self.assertStartsWith(attributes['src'], 'data:image/png;base64,')
      self.assertNotEmpty(attributes['alt'])
    for _, attributes in page.elements:
      self.assertFalse(any(name.startswith('on') for name in attributes))
    # Every link leads to a file that is there.
    self.assertNotEmpty(page.all('a'))
    for attributes in page.all('a'):
      self.assertTrue((self.folder / attributes['href']).exists(), attributes)
    self.assertLen(page.all('caption'), len(page.all('table')))
    for attributes in page.all('th'):
      self.assertIn(attributes['scope'], ('row', 'col'))
    for attributes in page.all('svg'):
      self.assertEqual(attributes['role'], 'img')
      named = attributes['aria-labelledby'].split()
      ids = [a['id'] for _, a in page.elements if 'id' in a]
      self.assertLen(set(ids), len(ids))
      self.assertContainsSubset(named, ids)

  def test_charts_are_well_formed(self):
    text = run(self.folder)
    charts = [
      f'<svg{part.split("</svg>")[0]}</svg>' for part in text.split('<svg')[1:]
    ]
    self.assertLen(charts, 5)
    for chart in charts:
      ET.fromstring(chart)
    bars = ET.fromstring(charts[0]).findall('rect')
    heights = [float(bar.attrib['height']) for bar in bars]
    self.assertLen(heights, 2)
    self.assertAlmostEqual(heights[0], 2 * heights[1], delta=0.1)
    self.assertIn('stroke-dasharray', charts[0])

  def test_text_is_escaped(self):
    writers: list[Callable[..., str]] = [run, plan, audit]
    for write in writers:
      folder = self.folder / write.__name__
      folder.mkdir()
      text = write(folder)
      self.assertNotIn('<script', text)
      self.assertIn(_HOSTILE, Page(text).words)

  def test_contrast(self):
    def luminance(color):
      parts = [int(c * 2, 16) / 255 for c in color]
      if len(color) == 6:
        parts = [int(color[i : i + 2], 16) / 255 for i in (0, 2, 4)]
      linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in parts
      ]
      return sum(
        w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
      )

    text = run(self.folder)
    for color in ('111', '00479e'):
      self.assertIn(f'#{color}', text)
      # WCAG's AAA, of text on white.
      self.assertGreater(1.05 / (luminance(color) + 0.05), 7.0)


class WordsTest(ReportTestCase):
  def _verdict(self, text):
    """What the first element after the heading says, and its markup."""
    after = text.split('</h1>')[1].lstrip()
    self.assertStartsWith(after, '<div class="verdict" role="note"><strong>')
    return after.split('<strong>')[1].split('</strong>')[0], after

  def test_verdicts_are_first_and_of_one_size(self):
    said = {
      holds: self._verdict(
        run(self.folder, statement(holds=holds, reason='of this'))
      )[0]
      for holds in (True, False)
    }
    self.assertEqual(said[True], statement().verdict)
    self.assertEqual(said[False], 'DOES NOT HOLD')
    self.assertEqual(self._verdict(plan(self.folder))[0], statement().verdict)
    self.assertEqual(self._verdict(comparison(self.folder))[0], '1 OF 2 HOLD')

  def test_what_several_runs_tell_together(self):
    one, other = statement(), statement(holds=False, reason='of this')
    target = report.statement_lib.format_epsilon(2 * one.target_epsilon)
    self.assertIn(f'epsilon = {target} at delta', report.together([one, one]))
    self.assertIn('nothing is promised', report.together([one, other]))
    self.assertIn('nothing is promised against', comparison(self.folder))
    # To remove a user and to exchange an example are not the same.
    for changes in ({'unit': 'user'}, {'adjacency': 'zero-out'}):
      others = statement()
      for name, value in changes.items():
        object.__setattr__(others, name, value)
      words = report.together([one, others])
      self.assertIn('protect different things', words)
      self.assertNotIn('epsilon =', words)
    object.__setattr__(one, 'unit', 'user')
    words = report.together([one, one])
    self.assertIn('dealt out to other users in each run: nothing is', words)

  def test_what_does_not_hold_promises_nothing(self):
    words = Page(
      run(self.folder, statement(holds=False, reason='of this'))
    ).words
    self.assertIn('Nothing is promised to anybody: of this.', words)
    self.assertNotIn('What that is worth', words)

  def test_numbers_are_those_of_the_statement(self):
    said = statement()
    words = Page(run(self.folder, said)).words
    for by_accountant in said.delivered.values():
      for value in by_accountant.values():
        self.assertIn(report.statement_lib.format_epsilon(value), words)
    for assumption in said.assumptions:
      self.assertIn(assumption, words)
    self.assertIn('The run is finished, after 3 rounds.', words)

  def test_unfinished(self):
    text = run(self.folder, finished=False)
    words = Page(text).words
    self.assertIn('NOT FINISHED: 3 rounds have been released so far', words)
    self.assertIn('delivered so far', words)
    # Beside the verdict, not below all the rest.
    self.assertLess(text.index('NOT FINISHED'), text.index('<section>'))

  def test_clients_without_a_limit(self):
    text = run(self.folder, epsilons=(math.inf, math.inf), target=math.inf)
    self.assertIn(
      'For 2 of 2 clients, something was released', Page(text).words
    )
    self.assertNotIn('<rect', text)

  def test_a_shared_ledger_is_not_linked(self):
    (self.folder / 'ledger.jsonl').touch()
    text = run(self.folder, shared=True)
    self.assertIn('share the ledger, which is not in this', Page(text).words)
    before_sources = text.split('Sources')[0]
    self.assertNotIn('href="ledger.jsonl"', before_sources)

  def test_many_clients_are_drawn_by_the_highest_of_each_group(self):
    text = html_page.bar_chart(
      'x', [i / 1000 for i in range(1000)], 1.0, ('clients', 'the limit'), ''
    )
    self.assertBetween(text.count('<rect'), 50, 60)
    self.assertIn('from 0.999 to 0, with 0.499 in the middle', text)

  def test_what_cannot_be_drawn(self):
    text = html_page.line_chart('x', 'round', [(1, math.nan)], '')
    self.assertIn('no finite value', text)
    one = html_page.line_chart('x', 'round', [(1, 2.0)], '')
    self.assertIn('<circle', one)


@unittest.skipUnless(_BROWSER, 'chromium is not installed')
class BrowserTest(ReportTestCase):
  """How a page looks in a browser, on a phone and on a desk."""

  def _browse(self, *arguments):
    with tempfile.TemporaryDirectory() as profile, contextlib.chdir(profile):
      return subprocess.run(
        [
          *(_BROWSER, '--headless', '--no-sandbox', '--disable-gpu'),
          *('--no-first-run', '--disable-background-networking'),
          *('--disable-component-update', '--disable-sync'),
          *(f'--user-data-dir={profile}', '--hide-scrollbars'),
          *arguments,
          f'file://{self.folder}/report.html',
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
      ).stdout

  @parameterized.parameters((500, 1200), (1280, 800))
  def test_screenshot(self, width, height):
    run(self.folder)
    path = self.folder / 'page.png'
    self._browse(f'--screenshot={path}', f'--window-size={width},{height}')
    pixels = plots.plt.imread(path)[..., :3]
    self.assertEqual(
      struct.unpack('>II', path.read_bytes()[16:24]), (width, height)
    )
    dark = pixels.max(axis=2) < 0.5
    self.assertGreater(dark.mean(), 0.01)
    # Nothing sticks out: the margins to either side are white.
    self.assertFalse(dark[:, :8].any())
    self.assertFalse(dark[:, -8:].any())
    # The verdict is at the top.
    self.assertTrue(dark[: height // 3].any())

  @parameterized.parameters(320, 500)
  def test_nothing_is_wider_than_a_phone(self, width):
    # What a browser lays out, in a frame as wide as a phone.
    text = run(self.folder)
    framed = self.folder / 'inner.html'
    framed.write_text(text)
    (self.folder / 'report.html').write_text(
      f'<!DOCTYPE html><title>-</title><body><iframe id="f" width="{width}" '
      f'height="900" srcdoc="{html_page.text(text)}"></iframe><script>'
      'onload = () => { const d = document.getElementById("f").contentDocument'
      ';document.title = d.documentElement.scrollWidth + " " + '
      'd.querySelectorAll("svg").length };</script>'
    )
    dom = self._browse('--dump-dom')
    title = dom.split('<title>')[1].split('</title>')[0]
    scroll, charts = map(int, title.split())
    self.assertLessEqual(scroll, width)
    self.assertEqual(charts, 5)


if __name__ == '__main__':
  absltest.main()
