"""The site: notebooks run, links lead somewhere, nothing public is left out.

`make docs` executes the notebooks in a Jupyter kernel and builds the site
itself; here is what needs neither.
"""

import contextlib
import io
import json
import pathlib
import re
import warnings

import matplotlib as mpl
import numpy as np
import tensorflow as tf
from absl.testing import absltest, parameterized
from matplotlib import image
from matplotlib import pyplot as plt

import tvdp_tf
from tools import concept_pictures, site_pages
from tvdp_tf import privacy

_ROOT = site_pages.ROOT
# What each of them prints, among much else.
_PRINTS = {
  'check_a_claim': ('epsilon = 1.0 DOES NOT HOLD', 'Delivered: epsilon = inf'),
  'first_private_model': ('HOLDS\n', 'the target holds: True'),
  'plan_a_budget': ('at delta = 1e-05 HOLDS.', 'it promises no progress'),
  'your_tff_pipeline': ('got clipped_count', '3 rounds, worst client 2.34'),
}
# What public functions return, by the places of their classes.
_RETURNED = (
  'tvdp_tf.planner.report.PlanReport',
  'tvdp_tf.training.fit.PrivateRun',
  'tvdp_tf.training.train.TrainingResult',
)
_MOST_BYTES = 2**20


def _read(name: str) -> dict:
  path = _ROOT / site_pages.NOTEBOOKS / f'{name}.ipynb'
  return json.loads(path.read_text(encoding='utf-8'))


class NotebooksTest(parameterized.TestCase):
  def test_all_are_known(self):
    folder = _ROOT / site_pages.NOTEBOOKS
    self.assertCountEqual([path.stem for path in folder.iterdir()], _PRINTS)

  @parameterized.parameters(*_PRINTS)
  def test_is_stored_without_outputs(self, name):
    notebook = _read(name)
    self.assertEqual((notebook['nbformat'], notebook['nbformat_minor']), (4, 5))
    for number, cell in enumerate(notebook['cells'], start=1):
      self.assertEqual(cell['id'], f'cell-{number}')
      self.assertEqual(cell['metadata'], {})
      if cell['cell_type'] == 'code':
        self.assertEqual(cell['outputs'], [])
        self.assertIsNone(cell['execution_count'])

  @parameterized.parameters(*_PRINTS)
  def test_runs(self, name):
    self.enter_context(contextlib.chdir(self.create_tempdir().full_path))
    self.enter_context(mpl.rc_context({'backend': 'Agg'}))
    self.enter_context(warnings.catch_warnings())
    warnings.filterwarnings('ignore', message='FigureCanvasAgg')
    self.addCleanup(tf.get_logger().setLevel, tf.get_logger().level)
    self.addCleanup(plt.close, 'all')
    program = compile(site_pages.code(_read(name)), f'{name}.ipynb', 'exec')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
      exec(program, {'__name__': '__main__'})
    for text in _PRINTS[name]:
      self.assertIn(text, printed.getvalue())


class PagesTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.all = site_pages.closure()
    self.pages = [path for path in self.all if site_pages.is_page(path)]
    self.texts = {
      page: site_pages.read_page(page, executed=False).markdown
      for page in self.pages
    }

  def test_navigation_has_every_page_of_docs_and_no_other(self):
    text = (_ROOT / 'mkdocs.yml').read_text(encoding='utf-8')
    nav = re.search(r'^nav:\n(.*?)^\S', text, re.DOTALL | re.MULTILINE)
    assert nav
    entries = re.findall(r': (\S+\.md)$', nav[1], re.MULTILINE)
    ours = [page for page in self.pages if page.startswith('docs/')]
    self.assertCountEqual(
      entries, map(site_pages.site_uri, [*ours, *site_pages.BESIDE])
    )

  def test_links_lead_somewhere(self):
    wrong = []
    for page in self.pages:
      for link, anchor in site_pages.links(self.texts[page]):
        found = site_pages.target(page, link) if link else page
        known = found in self.all
        if found in self.texts and anchor:
          known = anchor in site_pages.anchors(self.texts[found]) or (
            f'\n::: {anchor}\n' in self.texts[found]
          )
        if not known:
          wrong.append(f'{page}: {link}#{anchor}')
    self.assertEmpty(wrong)

  def test_links_are_found_and_rewritten(self):
    text = (
      'See [a](../README.md#b) and\n[c](https://d.org).\n```\n[e](f)\n```\n'
    )
    self.assertEqual(list(site_pages.links(text)), [('../README.md', 'b')])
    self.assertIn('[a](OVERVIEW.md#b)', site_pages.rewritten(text, 'docs/x.md'))
    text = text.replace('../', '../../')
    self.assertIn(
      '[a](../OVERVIEW.md#b)', site_pages.rewritten(text, 'docs/reference/x.md')
    )
    self.assertIn('[e](f)', site_pages.rewritten(text, 'docs/x.md'))
    self.assertEqual(
      site_pages.target('docs/OPERATIONS.md', '../results/faults'),
      'results/faults/README.md',
    )
    self.assertIsNone(site_pages.target('docs/x.md', '../../else'))
    self.assertIsNone(site_pages.target('docs/x.md', 'missing.md'))
    self.assertEqual(site_pages.anchors('# A b\n## C, `d`!\n'), {'a-b', 'c-d'})

  def test_reference_has_every_public_name_once(self):
    for page, module, more in (
      ('tvdp_tf', tvdp_tf, _RETURNED),
      ('privacy', privacy, ()),
    ):
      self.assertCountEqual(
        re.findall(
          r'^::: (\S+)$', self.texts[f'docs/reference/{page}.md'], re.MULTILINE
        ),
        [*(f'{module.__name__}.{name}' for name in module.__all__), *more],
      )

  def test_a_notebook_as_a_page(self):
    outputs = [
      {'output_type': 'stream', 'name': 'stdout', 'text': ['0\n']},
      {'output_type': 'stream', 'name': 'stderr', 'text': ['W\n']},
      {'output_type': 'stream', 'name': 'stdout', 'text': ['1\n']},
      {'output_type': 'execute_result', 'data': {'text/html': ['<b>2</b>']}},
      {'output_type': 'display_data', 'data': {'image/png': 'Mw=='}},
    ]
    notebook = {
      'cells': [
        {'cell_type': 'markdown', 'source': ['# T\n', 'x']},
        {'cell_type': 'code', 'source': ['f()'], 'outputs': outputs},
      ]
    }
    page = site_pages.notebook_page(notebook, 'n')
    self.assertEqual(
      page.markdown,
      '# T\nx\n\n```python\nf()\n```\n\n``` { .text .output }\n0\n1\n```\n\n'
      '``` { .text .output }\nW\n```\n\n'
      '<b>2</b>\n\n![What the cell shows](n_1.png)\n',
    )
    self.assertEqual(page.pictures, {'n_1.png': b'3'})
    self.assertEqual(site_pages.code(notebook), 'f()')

  def test_a_docstring_as_markdown(self):
    text = (
      'A.\n\n>>> f()\n1\n\n  x = 1\n    y\n\n'
      'Args:\n  a: At least\n    > 0.\n  b: > 1\n'
    )
    self.assertEqual(
      site_pages.docstring_markdown(text),
      'A.\n\n```pycon\n>>> f()\n1\n```\n\n```text\nx = 1\n  y\n```\n\n'
      'Args:\n  a: At least\n    \\> 0.\n  b: \\> 1\n',
    )
    self.assertEqual(site_pages.docstring_markdown('A.'), 'A.')


class PicturesTest(absltest.TestCase):
  def test_are_those_of_the_script(self):
    """Else: python -m tools.concept_pictures."""
    folder = pathlib.Path(self.create_tempdir().full_path)
    concept_pictures.draw(folder)
    committed = sorted(concept_pictures.FOLDER.iterdir())
    self.assertCountEqual(
      [path.name for path in committed], concept_pictures.PICTURES
    )
    for path in committed:
      self.assertLess(path.stat().st_size, _MOST_BYTES)
      drawn, there = image.imread(folder / path.name), image.imread(path)
      self.assertEqual(drawn.shape, there.shape, path.name)
      self.assertLess(np.mean(np.abs(drawn - there) > 0.1), 1e-3, path.name)


if __name__ == '__main__':
  absltest.main()
