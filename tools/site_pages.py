"""What the pages of the site are, and where their links go.

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
  'README.md': 'OVERVIEW.md',  # Else it would be the start page.
}


class PageText(NamedTuple):
  """A page of the site, its links as they are in the checkout.

  Attributes:
    markdown: Its text.
    pictures: Content of pictures that are in no file, by the file's name.
  """

  markdown: str
  pictures: Mapping[str, bytes]


def site_uri(path: str) -> str:
  """Where a file of the checkout is in the site, as a source of MkDocs.

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
  """What a link of a page leads to, relative to the checkout.

  Args:
    page: The page's file, relative to the checkout.
    link: What the link says, without an anchor.

  Returns:
    The file, or the folder; of one with a README.md that file. None if there is
    neither.
  """
  path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
  if path.startswith('..'):
    return None
  if (ROOT / path / 'README.md').is_file():
    path = posixpath.normpath(f'{path}/README.md')
  return path if (ROOT / path).exists() else None


def links(markdown: str) -> Iterator[tuple[str, str]]:
  """The relative links of a page outside of code, each as (path, anchor)."""
  for _, link, _ in _LINK.findall(_FENCE.sub('', markdown)):
    if not _ELSEWHERE.match(link):
      path, _, anchor = link.partition('#')
      yield path, anchor


def rewritten(markdown: str, page: str) -> str:
  """A page with links that lead to where their targets are in the site."""
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
  """The anchors of a page's headings, where GitHub and MkDocs agree on them."""
  headings = _HEADING.findall(_FENCE.sub('', markdown))
  plain = (re.sub(r'[^\w\s-]', '', heading).lower() for heading in headings)
  return {re.sub(r'\s', '-', heading.strip()) for heading in plain}


def read_page(path: str, executed: bool = True) -> PageText:
  """Reads, or makes, a page.

  Args:
    path: Its file: Markdown, a notebook or a Python program; or a folder, whose
      page lists its files.
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
  """All of the site: pages of docs/ and beside, and what they link to."""
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
  """Whether a file or folder becomes a page; else it is copied as it is."""
  return path.endswith(('.md', '.ipynb', '.py')) or (ROOT / path).is_dir()


def code(notebook: Mapping[str, Any]) -> str:
  """The code cells of a notebook as one program."""
  return '\n'.join(
    ''.join(cell['source'])
    for cell in notebook['cells']
    if cell['cell_type'] == 'code'
  )


def notebook_page(notebook: Mapping[str, Any], name: str) -> PageText:
  """A notebook, with the outputs that it has.

  Args:
    notebook: Its content.
    name: Of its pictures, before their numbers.
  """
  parts: list[str] = []
  pictures: dict[str, bytes] = {}
  for cell in notebook['cells']:
    source = ''.join(cell['source'])
    if cell['cell_type'] == 'markdown':
      parts.append(source)
      continue
    parts.append(f'```python\n{source}\n```')
    # What is printed comes in pieces, and not in the order of the two streams.
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
  """An output in Markdown; a picture is added to `pictures`."""
  if 'text/html' in data:
    return ''.join(data['text/html'])
  if 'image/png' in data:
    file = f'{name}_{len(pictures) + 1}.png'
    pictures[file] = base64.b64decode(''.join(data['image/png']))
    return f'![What the cell shows]({file})'
  return _printed(''.join(data.get('text/plain', '')))


def docstring_markdown(text: str) -> str:
  """A docstring in Markdown: its examples and indented lines are code.

  Its sections stay as they are, for mkdocstrings, except that no line and no
  description begins with `>`, which Markdown takes for a quotation.

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
