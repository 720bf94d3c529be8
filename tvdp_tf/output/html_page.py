"""Self-contained HTML pages: one file, without scripts or network access.

All text is escaped here. The functions return HTML, which callers concatenate.
Pages must be readable on a phone, in black and white, and by a screen reader:
they have one column, no meaning carried by color, and a title and a description
for each picture.
"""

import base64
import html
import math
import pathlib
from collections.abc import Iterable, Sequence

_STYLE = """
body { margin: 0 auto; max-width: 46rem; padding: 1rem; color: #111;
  background: #fff; font: 1rem/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #555; }
a { color: #00479e; }
.verdict { border: 4px solid #111; padding: 0.5rem 1rem; }
.verdict strong { display: block; font-size: 2rem; line-height: 1.25; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; overflow-wrap: break-word; }
th, td { border-bottom: 1px solid #aaa; padding: 0.25rem 0.75rem 0.25rem 0;
  text-align: left; vertical-align: top; }
caption { text-align: left; font-style: italic; }
figure { margin: 1rem 0; }
svg, img { display: block; width: 100%; height: auto; }
svg { max-width: 28rem; }
svg text { font: 11px system-ui, sans-serif; fill: #111; }
.charts { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
"""
# Whatever a page contains, a browser must load nothing and run nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_WIDTH, _HEIGHT = 320, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 12, 26
_MOST_BARS = 60


def text(value: object) -> str:
  """Returns a value as escaped HTML text."""
  return html.escape(str(value))


def element(tag: str, content: str, **attributes: str) -> str:
  """Returns an element; its content is HTML, its attributes are text."""
  written = ''.join(
    f' {name.replace("_", "-")}="{text(value)}"'
    for name, value in attributes.items()
  )
  return f'<{tag}{written}>{content}</{tag}>'


def paragraph(words: str) -> str:
  """Returns a paragraph of text."""
  return element('p', text(words))


def items(entries: Iterable[str]) -> str:
  """Returns a list; its entries are HTML."""
  return element('ul', ''.join(element('li', entry) for entry in entries))


def link(target: str, words: str | None = None) -> str:
  """Returns a link to a file beside the page, by default named after it."""
  return element('a', text(words or target), href=target)


def section(title: str, *parts: str) -> str:
  """Returns a section of a page under its heading; its parts are HTML."""
  return element('section', element('h2', text(title)) + '\n'.join(parts))


def verdict(words: str, *below: str) -> str:
  """Returns the verdict, always in the same size, with sentences below it."""
  lines = ''.join(map(paragraph, below))
  return element(
    'div',
    element('strong', text(words)) + lines,
    **{
      'class': 'verdict',
      'role': 'note',
    },
  )


def table(
  caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
  """Returns a table; its caption and header are text, its cells are HTML.

  The first cell of a row names it.
  """
  head = ''.join(element('th', text(name), scope='col') for name in header)
  body = ''.join(
    element(
      'tr',
      element('th', first, scope='row')
      + ''.join(element('td', cell) for cell in rest),
    )
    for first, *rest in rows
  )
  return element(
    'div',
    element(
      'table',
      element('caption', text(caption))
      + element('thead', element('tr', head))
      + element('tbody', body),
    ),
    **{'class': 'table', 'tabindex': '0'},
  )


def picture(path: pathlib.Path, description: str, caption: str) -> str:
  """Returns a PNG that is embedded in the page.

  Args:
    path: The file, beside the page.
    description: Text for readers who cannot see it.
    caption: HTML.
  """
  data = base64.b64encode(path.read_bytes()).decode()
  image = f'<img alt="{text(description)}" src="data:image/png;base64,{data}">'
  return element('figure', image + element('figcaption', caption))


def _chart(title: str, description: str, drawn: str, caption: str) -> str:
  name = ''.join(c if c.isalnum() else '-' for c in title.lower())
  svg = element(
    'svg',
    element('title', text(title), id=f'{name}-title')
    + element('desc', text(description), id=f'{name}-desc')
    + drawn,
    role='img',
    aria_labelledby=f'{name}-title {name}-desc',
    # This attribute of SVG has a capital letter.
    viewBox=f'0 0 {_WIDTH} {_HEIGHT}',
  )
  return element('figure', svg + element('figcaption', caption))


def _label(x: float, y: float, words: str, anchor: str) -> str:
  return element(
    'text', text(words), x=f'{x:g}', y=f'{y:g}', text_anchor=anchor
  )


def _frame(low: float, high: float, first: str, last: str) -> str:
  """Returns the axes, with labels at their ends."""
  right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
  return (
    f'<path d="M{_LEFT},{_TOP}V{bottom}H{right}" fill="none" stroke="#111"/>'
    + _label(_LEFT - 4, _TOP + 8, f'{high:.4g}', 'end')
    + _label(_LEFT - 4, bottom, f'{low:.4g}', 'end')
    + _label(_LEFT, _HEIGHT - 8, first, 'start')
    + _label(right, _HEIGHT - 8, last, 'end')
  )


def line_chart(
  title: str, x_name: str, points: Sequence[tuple[float, float]], caption: str
) -> str:
  """Returns a chart with one curve.

  Args:
    title: What is drawn.
    x_name: What it is drawn against.
    points: (x, y); points that are not finite are left out.
    caption: HTML.
  """
  finite = [(x, y) for x, y in points if math.isfinite(y)]
  if not finite:
    return paragraph(f'{title}: there is no finite value to draw.')
  xs, ys = zip(*finite, strict=True)
  low, high = min(ys), max(ys)
  across = (_WIDTH - _LEFT - _RIGHT) / ((xs[-1] - xs[0]) or 1)
  up = (_HEIGHT - _TOP - _BOTTOM) / ((high - low) or 1)
  places = [
    (_LEFT + (x - xs[0]) * across, _HEIGHT - _BOTTOM - (y - low) * up)
    for x, y in finite
  ]
  path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in places)
  drawn = (
    f'<polyline points="{path}" fill="none" stroke="#111" stroke-width="2"/>'
  )
  if len(places) <= _MOST_BARS:
    drawn += ''.join(
      f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places
    )
  return _chart(
    title,
    f'From {ys[0]:.4g} at {x_name} {xs[0]:g} to {ys[-1]:.4g} at {x_name}'
    f' {xs[-1]:g}; between {low:.4g} and {high:.4g}.',
    _frame(low, high, f'{x_name} {xs[0]:g}', f'{x_name} {xs[-1]:g}') + drawn,
    element('strong', text(title)) + ' ' + caption,
  )


def bar_chart(
  title: str,
  values: Sequence[float],
  limit: float,
  words: tuple[str, str],
  caption: str,
) -> str:
  """Returns a chart of bars, the highest first, and a dashed line, the limit.

  Args:
    title: What is drawn.
    values: At least one value, finite and >= 0. Many values are drawn in
      groups, by the highest of each.
    limit: Where the line is, finite.
    words: The names of the values and of the limit.
    caption: HTML.
  """
  ordered = sorted(values, reverse=True)
  step = math.ceil(len(ordered) / _MOST_BARS)
  bars = ordered[::step]
  high = max(limit, ordered[0]) or 1.0
  bottom = _HEIGHT - _BOTTOM
  up = (bottom - _TOP) / high
  width = (_WIDTH - _LEFT - _RIGHT) / len(bars)
  drawn = ''.join(
    f'<rect x="{_LEFT + i * width + 0.1 * width:.1f}" '
    f'y="{bottom - value * up:.1f}" width="{0.8 * width:.1f}" '
    f'height="{value * up:.1f}" fill="#666" stroke="#111"/>'
    for i, value in enumerate(bars)
  )
  line = bottom - limit * up
  drawn += (
    f'<path d="M{_LEFT},{line:.1f}H{_WIDTH - _RIGHT}" stroke="#111" '
    'stroke-width="2" stroke-dasharray="6 4"/>'
  )
  middle = ordered[len(ordered) // 2]
  return _chart(
    title,
    f'{len(ordered)} {words[0]}, from {ordered[0]:.4g} to {ordered[-1]:.4g},'
    f' with {middle:.4g} in the middle; the dashed line, {words[1]}, is at'
    f' {limit:.4g}.',
    _frame(0, high, 'most', 'least') + drawn,
    element('strong', text(title)) + ' ' + caption,
  )


def page(title: str, *parts: str) -> str:
  """Returns a whole page of HTML parts."""
  return (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    f'<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
    f'<main>\n<h1>{text(title)}</h1>\n'
    + '\n'.join(parts)
    + '\n</main>\n</body>\n</html>\n'
  )
