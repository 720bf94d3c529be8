"""The pages of the site, and the targets of their links.

Links in docs/ are those of a checkout, as GitHub shows it: `../README.md`,
`../results/faults`, `notebooks/plan_a_budget.ipynb`. The site has a page or a
file for each of these, and the links are rewritten to it. Nothing here needs
MkDocs, so that tests can check the pages without it.
"""

import base64
import json
import pathlib
import posixpath
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = 'docs'
NOTEBOOKS = 'docs/notebooks'
EXECUTED = 'build/notebooks'
# Pages of the site that are not in docs/.
BESIDE = ('CHANGELOG.md', 'README.md', 'SECURITY.md')

_FENCE = re.compile(r'^ *```.*?^ *```', re.DOTALL | re.MULTILINE)
_LINK = re.compile(r'(\]\()([^()\s]+)(\))')
_ELSEWHERE = re.compile(r'[a-z][a-z0-9+.-]*:')
_SECTION = re.compile(
  r'^(Args|Attributes|Returns|Yields|Raises):$', re.MULTILINE
)
_QUOTATION = re.compile(r'^( *(?:\w+: )?)(>)', re.MULTILINE)
_HEADING = re.compile(r'^#+ +(.+?) *$', re.MULTILINE)
_RENAMED = {
  'README.md': 'OVERVIEW.md',  # Otherwise it would be the start page.
}


class PageText(NamedTuple):
  """A page of the site, with its links as in the checkout.

  Attributes:
    markdown: The text of the page.
    pictures: File name -> content, for pictures that are not files.
  """

  markdown: str
  pictures: Mapping[str, bytes]


def site_uri(path: str) -> str:
  """Returns where a file of the checkout is in the site, for MkDocs.

  >>> site_uri('docs/SCHEDULE.md'), site_uri('docs/notebooks/a.ipynb')
  ('SCHEDULE.md', 'notebooks/a.md')
  >>> site_uri('results/faults/README.md'), site_uri('examples/own_loop.py')
  ('results/faults/README.md', 'examples/own_loop.py.md')
  >>> site_uri('results/audit/mnist')
  'results/audit/mnist/index.md'

  Args:
    path: A file, or a folder without a README.md, relative to the checkout.
  """
  uri = path.removeprefix(f'{DOCS}/')
  if (ROOT / path).is_dir():
    return f'{uri}/index.md'
  if uri in _RENAMED:
    return _RENAMED[uri]
  if uri.endswith('.ipynb'):
    return f'{uri.removesuffix(".ipynb")}.md'
  return f'{uri}.md' if uri.endswith('.py') else uri


def target(page: str, link: str) -> str | None:
  """Returns the target of a page's link, relative to the checkout.

  Args:
    page: The page's file, relative to the checkout.
    link: The link, without an anchor.

  Returns:
    The file, or the folder, or the README.md of the folder if it has one. None
    if it does not exist.
  """
  path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
  if path.startswith('..'):
    return None
  if (ROOT / path / 'README.md').is_file():
    path = posixpath.normpath(f'{path}/README.md')
  return path if (ROOT / path).exists() else None


def links(markdown: str) -> Iterator[tuple[str, str]]:
  """Yields a page's relative links outside of code, as (path, anchor)."""
  for _, link, _ in _LINK.findall(_FENCE.sub('', markdown)):
    if not _ELSEWHERE.match(link):
      path, _, anchor = link.partition('#')
      yield path, anchor


def rewritten(markdown: str, page: str) -> str:
  """Rewrites a page's links to where their targets are in the site."""
  folder = posixpath.dirname(site_uri(page))

  def changed(match: re.Match[str]) -> str:
    path, hash_sign, anchor = match[2].partition('#')
    found = target(page, path) if path else None
    if _ELSEWHERE.match(match[2]) or found is None:
      return match[0]
    link = posixpath.relpath(site_uri(found), folder)
    return f'{match[1]}{link}{hash_sign}{anchor}{match[3]}'

  return _LINK.sub(changed, markdown)


def anchors(markdown: str) -> set[str]:
  """Returns the anchors of headings for which GitHub and MkDocs agree."""
  headings = _HEADING.findall(_FENCE.sub('', markdown))
  plain = (re.sub(r'[^\w\s-]', '', heading).lower() for heading in headings)
  return {re.sub(r'\s', '-', heading.strip()) for heading in plain}


def read_page(path: str, executed: bool = True) -> PageText:
  """Reads or generates a page.

  Args:
    path: The page's file: Markdown, a notebook or a Python program; or a
      folder, whose page lists its files.
    executed: Whether to take a notebook's outputs, if `tools.notebooks` has
      executed it.
  """
  file = ROOT / path
  if file.is_dir():
    names = sorted(entry.name for entry in file.iterdir() if entry.is_file())
    listed = ''.join(f'* [{name}]({file.name}/{name})\n' for name in names)
    return PageText(f'# {path}\n\n{listed}', {})
  if path.endswith('.ipynb'):
    with_outputs = ROOT / EXECUTED / file.name
    if executed and with_outputs.exists():
      file = with_outputs
    text = file.read_text(encoding='utf-8')
    return notebook_page(json.loads(text), file.stem)
  text = file.read_text(encoding='utf-8')
  if path.endswith('.py'):
    return PageText(f'# {path}\n\n```python\n{text}```\n', {})
  return PageText(text, {})


def closure() -> list[str]:
  """Returns the whole site: all pages, and the files that they link to."""
  files = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / DOCS).rglob('*')
    if path.is_file()
  )
  todo, found = [*BESIDE, *files], set()
  while todo:
    path = todo.pop()
    if path in found:
      continue
    found.add(path)
    if is_page(path):
      for link, _ in links(read_page(path, executed=False).markdown):
        if link and (other := target(path, link)):
          todo.append(other)
  return sorted(found)


def is_page(path: str) -> bool:
  """Whether a file or folder becomes a page; otherwise it is only copied."""
  return path.endswith(('.md', '.ipynb', '.py')) or (ROOT / path).is_dir()


def code(notebook: Mapping[str, Any]) -> str:
  """Joins the code cells of a notebook to one program."""
  return '\n'.join(
    ''.join(cell['source'])
    for cell in notebook['cells']
    if cell['cell_type'] == 'code'
  )


def notebook_page(notebook: Mapping[str, Any], name: str) -> PageText:
  """Converts a notebook, with its outputs, to a page.

  Args:
    notebook: The content of the notebook.
    name: Prefix of its pictures' names, before their numbers.
  """
  parts: list[str] = []
  pictures: dict[str, bytes] = {}
  for cell in notebook['cells']:
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      parts.append(source)
      continue
    parts.append(f'```python\n{source}\n```')
    # Printed text comes in pieces, in which the two streams may alternate.
    for stream in ('stdout', 'stderr'):
      pieces = (
        ''.join(one['text'])
        for one in cell['outputs']
        if one.get('name') == stream
      )
      parts.append(_printed(''.join(pieces)))
    parts.extend(
      _output(one['data'], name, pictures)
      for one in cell['outputs']
      if 'data' in one
    )
  return PageText('\n\n'.join(filter(None, parts)) + '\n', pictures)


def _printed(text: str) -> str:
  return f'``` {{ .text .output }}\n{text.rstrip()}\n```' if text else ''


def _output(
  data: Mapping[str, Any], name: str, pictures: dict[str, bytes]
) -> str:
  """Converts an output to Markdown; adds a picture to `pictures`."""
  if 'text/html' in data:
    return ''.join(data['text/html'])
  if 'image/png' in data:
    file = f'{name}_{len(pictures) + 1}.png'
    pictures[file] = base64.b64decode(''.join(data['image/png']))
    return f'![What the cell shows]({file})'
  return _printed(''.join(data.get('text/plain', '')))


def docstring_markdown(text: str) -> str:
  """Converts a docstring to Markdown: examples and indented lines are code.

  Its sections are unchanged, for mkdocstrings, except that no line and no
  description begins with `>`, which Markdown would take for a quotation.

  Args:
    text: The docstring, without the indentation of its quotes.
  """
  found = _SECTION.search(text)
  end = found.start() if found else len(text)
  parts = []
  for part in re.split(r'\n{2,}', text[:end].rstrip()):
    if part.startswith('>>>'):
      parts.append(f'```pycon\n{part}\n```')
    elif part.startswith('  '):
      parts.append(f'```text\n{textwrap.dedent(part)}\n```')
    else:
      parts.append(part)
  sections = _QUOTATION.sub(r'\1\\\2', text[end:])
  return '\n\n'.join(filter(None, [*parts, sections]))
