"""Draws the pictures of docs/CONCEPTS.md.

  python -m tools.concept_pictures

Lines and numbers come from the library; a test draws the pictures again.
"""

import pathlib
import textwrap

import matplotlib as mpl
import numpy as np
from matplotlib import patches
from matplotlib import pyplot as plt

import tvdp_tf

FOLDER = pathlib.Path(__file__).resolve().parents[1] / 'docs/pictures'
_BLUE, _ORANGE, _GREEN, _RED = '#3f51b5', '#e68a00', '#2e7d32', '#c62828'
_GRAY = '#616161'
_STYLE = {
  'font.family': 'DejaVu Sans',
  'font.size': 10,
  'savefig.dpi': 110,
}
# The plan whose statement is shown, as printed in docs/CONCEPTS.md.
PLAN = tvdp_tf.PlanSettings(
  mechanism='gradient',
  epsilon=3.0,
  delta=1e-5,
  users=20,
  users_per_round=20,
  rounds=30,
  examples_per_user=500,
  dimension=7850,
)


def _canvas(width: float, height: float):
  """Creates axes without a frame, with inches as units."""
  figure = plt.figure(figsize=(width, height))
  axes = figure.add_axes((0, 0, 1, 1))
  axes.set_xlim(0, width)
  axes.set_ylim(0, height)
  axes.axis('off')
  return figure, axes


def _box(axes, x, y, width, height, text='', color=_BLUE, linestyle='-'):
  axes.add_patch(
    patches.FancyBboxPatch(
      (x, y),
      width,
      height,
      boxstyle='round,pad=0,rounding_size=0.08',
      edgecolor=color,
      facecolor='white',
      linestyle=linestyle,
      linewidth=1.5,
    )
  )
  axes.text(
    x + width / 2, y + height / 2, text, ha='center', va='center', color=color
  )


def _arrow(axes, start, end, color=_GRAY):
  axes.annotate(
    '', end, start, arrowprops={'arrowstyle': '-|>', 'color': color, 'lw': 1.5}
  )


def _users(axes, x, y, title, *, gone=None, other=None):
  """Draws three users with four examples each, one removed or replaced."""
  axes.text(x, y + 1.25, title, color=_GRAY)
  for user in range(3):
    left = x + 1.05 * user
    away = gone == user
    color = '#bdbdbd' if away else _BLUE
    style = '--' if away else '-'
    _box(axes, left, y, 0.95, 1, color=color, linestyle=style)
    axes.text(
      left + 0.475,
      y + 0.83,
      f'user {user + 1}',
      ha='center',
      color=color,
      fontsize=8,
    )
    for number in range(0 if away else 4):
      place = (left + 0.3 + 0.35 * (number % 2), y + 0.22 + 0.3 * (number // 2))
      changed = other == (user, number)
      axes.add_patch(
        patches.Circle(place, 0.1, color=_ORANGE if changed else _BLUE)
      )


def draw_protected():
  """Draws the two units: what differs between neighboring data sets."""
  figure, axes = _canvas(7.4, 3.9)
  _users(axes, 0.1, 2.3, 'unit: example, adjacency: replace-one')
  _users(axes, 4.15, 2.3, 'one example is another one', other=(1, 2))
  _users(axes, 0.1, 0.4, 'unit: user, adjacency: add-or-remove-one')
  _users(axes, 4.15, 0.4, 'one user is not there', gone=1)
  for y in (2.8, 0.9):
    axes.text(3.69, y, '≈', ha='center', va='center', fontsize=22, color=_GREEN)
  axes.text(
    3.7,
    0.1,
    'Any result must be at most $e^ε$ times as likely in one as in the other,'
    ' but for $δ$.',
    ha='center',
    fontsize=9,
    color=_GRAY,
  )
  return figure


def draw_views():
  """Draws where the noise is added, and who sees what."""
  figure, axes = _canvas(7.4, 4.0)
  rows = (
    (
      'gradient',
      'each client adds noise\nto its own gradients',
      'single uploads,\neach with its noise',
    ),
    (
      'distributed',
      'each client adds a share\nof one noise',
      'secure sums,\nwith the whole noise',
    ),
    (
      'central',
      'clients add no noise',
      'single uploads\nWITHOUT noise',
    ),
  )
  for left, title in (
    (1.2, 'clients'),
    (3.55, 'the server sees'),
    (5.9, 'others see'),
  ):
    axes.text(left + 0.65, 3.7, title, ha='center', color=_GRAY)
  for row, (name, clients, server) in enumerate(rows):
    y = 2.55 - 1.2 * row
    bare = name == 'central'
    axes.text(0.05, y + 0.4, name, va='center', weight='bold', fontsize=9)
    _box(axes, 0.98, y, 1.87, 0.8, clients)
    _box(axes, 3.4, y, 1.65, 0.8, server, _RED if bare else _GREEN)
    _box(axes, 5.65, y, 1.65, 0.8, 'models, with noise', _GREEN)
    _arrow(axes, (2.87, y + 0.4), (3.38, y + 0.4))
    _arrow(axes, (5.07, y + 0.4), (5.63, y + 0.4))
    if bare:
      axes.text(
        5.35,
        y - 0.12,
        'the server adds noise',
        ha='center',
        fontsize=8,
        color=_GRAY,
      )
  return figure


def draw_schedule():
  """Draws the noise of each round, and the epsilon of the rounds so far."""
  rounds = np.arange(1, 31)
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(7.4, 3.2), layout='constrained'
  )
  for theta, color in ((0.9, _BLUE), (1.0, _GRAY), (1.1, _ORANGE)):
    schedule = tvdp_tf.calibrate(epsilon=3, delta=1e-5, theta=theta, rounds=30)
    stddevs = [schedule.stddev(int(m)) for m in rounds]
    spent = [
      tvdp_tf.delivered_epsilon(stddevs[:m], 1e-5, 'exact') for m in rounds
    ]
    left.plot(rounds, stddevs, color=color, label=f'theta = {theta:g}')
    right.plot(rounds, spent, color=color)
  left.set(xlabel='round', ylabel='noise / sensitivity', yscale='log')
  left.legend(frameon=False)
  right.axhline(3, color=_RED, linestyle='--', linewidth=1)
  right.text(1, 3.05, 'target', color=_RED, va='bottom')
  right.set(xlabel='round', ylabel='epsilon so far', ylim=(0, 3.5))
  return figure


def draw_ledger():
  """Draws how releases are recorded first, then released."""
  figure, axes = _canvas(7.4, 2.5)
  steps = (
    ('Does it fit\nthe budget?', _BLUE),
    ('Write it to the\nledger, on the disk', _BLUE),
    ('Release it', _GREEN),
  )
  for number, (text, color) in enumerate(steps):
    _box(axes, 0.2 + 2.5 * number, 1.35, 1.9, 0.8, text, color)
    if number:
      _arrow(axes, (2.5 * number - 0.38, 1.75), (0.18 + 2.5 * number, 1.75))
  notes = (
    ('no: nothing is written,\nnothing is released', _RED),
    ('killed after this: it counts,\nreleased or not', _GRAY),
    ('an audit recomputes each\nepsilon from the file alone', _GRAY),
  )
  for number, (text, color) in enumerate(notes):
    x = 1.15 + 2.5 * number
    _arrow(axes, (x, 1.33), (x, 0.9), color)
    axes.text(x, 0.55, text, ha='center', va='center', color=color, fontsize=9)
  return figure


# Prefix of a statement's line -> what the line says.
_PARTS = (
  ('Privacy statement', 'the verdict on the target', _GREEN),
  ('  Reason', 'why', _GREEN),
  ('  Worth', 'what an attacker can gain', _GREEN),
  ('  Protects', 'unit and adjacency', _BLUE),
  ('  Promised', 'who is looking', _BLUE),
  ('  Claimed', 'what the formula of the noise says', _GRAY),
  ('  Delivered', 'what the accountants say', _ORANGE),
  ('  Sensitivity', 'what the noise is measured against', _ORANGE),
  ('  Assuming', 'what you have to grant', _RED),
)


def draw_statement():
  """Draws a statement, with a label next to each of its parts."""
  lines: list[tuple[str, str]] = []
  color, beside = _GRAY, []
  for text in tvdp_tf.plan(PLAN).statement.describe().splitlines():
    for start, word, its_color in _PARTS:
      if text.startswith(start):
        color = its_color
        beside.append((len(lines), word, color))
    indent = ' ' * (len(text) - len(text.lstrip()))
    lines.extend(
      (line, color)
      for line in textwrap.wrap(
        text.lstrip(),
        74,
        initial_indent=indent,
        subsequent_indent=indent + '  ',
      )
    )
  height = 0.165 * len(lines) + 0.3
  figure, axes = _canvas(8.0, height)
  for number, (line, its_color) in enumerate(lines):
    y = height - 0.2 - 0.165 * number
    axes.text(
      0.15,
      y,
      line,
      family='DejaVu Sans Mono',
      fontsize=7.5,
      va='center',
      color='#212121',
    )
    axes.plot([0.07, 0.07], [y - 0.083, y + 0.083], color=its_color, lw=3)
  for number, word, its_color in beside:
    y = height - 0.2 - 0.165 * number
    axes.text(5.35, y, f'← {word}', va='center', color=its_color, fontsize=9)
  return figure


PICTURES = {
  'ledger.png': draw_ledger,
  'protected.png': draw_protected,
  'schedule.png': draw_schedule,
  'statement.png': draw_statement,
  'views.png': draw_views,
}


def draw(folder: pathlib.Path) -> None:
  """Draws all pictures into an existing folder."""
  with plt.style.context(['default', _STYLE]):
    for name, function in PICTURES.items():
      figure = function()
      figure.savefig(folder / name, metadata={'Software': None})
      plt.close(figure)


def main() -> None:
  """Draws the pictures where the document expects them."""
  mpl.use('Agg')
  FOLDER.mkdir(exist_ok=True)
  draw(FOLDER)


if __name__ == '__main__':
  main()
