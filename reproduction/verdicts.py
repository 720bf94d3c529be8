"""Reports what an experiment's results say about its claims."""

from collections.abc import Mapping, Sequence

from reproduction import catalogue
from reproduction.catalogue import claims
from tvdp_tf.output import layout


def decide(
  experiment: catalogue.Experiment, rows: Sequence[claims.Row]
) -> list[claims.Decision]:
  """Decides the claims whose curves the rows have.

  Args:
    experiment: The experiment.
    rows: Rows of its CSV; a seed without all curves of a claim does not count.

  Returns:
    The decisions, in the order of the claims.
  """
  by_seed: dict[str, dict[str, list[claims.Row]]] = {}
  for row in rows:
    of_seed = by_seed.setdefault(row['seed'], {})
    of_seed.setdefault(row['curve'], []).append(row)
  against_round = experiment.against == catalogue.ROUND
  x = 'round' if against_round else 'planned_rounds'
  decisions = []
  for claim in experiment.claims:
    complete = [
      claims.Seed(own, x)
      for _, own in sorted(by_seed.items())
      if own.keys() >= set(claim.labels)
    ]
    if complete:
      decisions.append(claims.decide(claim, complete))
  return decisions


def to_json(decisions: Sequence[claims.Decision]) -> list[Mapping]:
  """Returns the decisions for a summary, with numbers as in the report."""
  return [
    {
      'claim': decision.text,
      'verdict': decision.verdict,
      'measured': {
        name: claims.text_of(values)
        for name, values in decision.measured.items()
      },
    }
    for decision in decisions
  ]


def _sentence(measured: Mapping[str, Sequence[float]]) -> str:
  """Formats measurements; what all names have in common is written once."""
  parts = [name.split(', ') for name in measured]
  common: list[str] = []
  if len({len(part) for part in parts}) == 1 < len(parts):
    same = [len(set(column)) == 1 for column in zip(*parts, strict=True)]
    common = [p for p, is_same in zip(parts[0], same, strict=True) if is_same]
    parts = [
      [p for p, is_same in zip(part, same, strict=True) if not is_same]
      for part in parts
    ]
  said = '; '.join(
    f'{", ".join(part)}: {claims.text_of(values)}'
    for part, values in zip(parts, measured.values(), strict=True)
  )
  return f'({", ".join(common)}) {said}' if common else said


def table(decisions: Sequence[claims.Decision]) -> str:
  """Returns a Markdown table: claim, what was measured, verdict."""
  return layout.markdown_table(
    ('claim', 'measured', 'verdict'),
    ((d.text, _sentence(d.measured), f'**{d.verdict}**') for d in decisions),
  )


def report(
  experiment: catalogue.Experiment,
  decisions: Sequence[claims.Decision],
  command: str,
) -> str:
  """Returns the Markdown report: what it shows, its claims, its command."""
  parts = [f'# {experiment.name}: {experiment.title}', '']
  if decisions:
    parts += [
      'Least test losses unless a name says more, mean and standard deviation '
      'over the',
      'seeds. A claim is decided in each seed by itself: it holds if it does '
      'in all.',
      '',
      table(decisions),
      '',
    ]
  parts += ['```', command, '```', '']
  return '\n'.join(parts)
