"""Runs audits of other tools, judges them, and writes the results."""

import math
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Callable

from tvdp_tf import errors

_ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = ('flower', 'nvflare', 'opacus')

COLUMNS = (
  *('tool', 'version', 'case', 'delta', 'epsilon_set', 'epsilon_told'),
  *('check_claim', 'lower_bound', 'lower_bound_if_gaussian', 'verdict'),
  *('trials', 'tpr', 'fpr', 'tpr_lower_limit', 'fpr_upper_limit'),
  'confidence',
)
REFUTED, NOT_REFUTED, NO_CLAIM = 'refuted', 'not refuted', 'claims none'


def run(tool: str, share: float, seed: int):
  """Runs a tool's audit in its environment.

  Returns:
    `audited.Audited`.

  Raises:
    TvdpError: If the environment is missing, or the tool fails.
  """
  from benchmarks.harness import audited, contenders  # noqa: PLC0415

  python = _ROOT / contenders.ENVIRONMENTS / tool / 'bin' / 'python'
  if not python.exists():
    raise errors.TvdpError(f'{tool} has no environment: make peers ARGS={tool}')
  with tempfile.TemporaryDirectory() as folder:
    command = [str(python), '-m', f'benchmarks.peers.{tool}.claim']
    command += [f'--output={folder}', f'--share={share}', f'--seed={seed}']
    done = subprocess.run(
      command,
      cwd=_ROOT,
      env={**os.environ, 'PYTHONPATH': str(_ROOT)},
      check=False,
    )
    if done.returncode:
      raise errors.TvdpError(f'{tool}: its audit failed, see above')
    return audited.read(pathlib.Path(folder))


def judge(found, confidence: float) -> list[dict]:
  """Returns a row of the table for each case.

  Args:
    found: `audited.Audited`.
    confidence: Confidence of each lower bound.
  """
  from tvdp_tf.attacks import lower_bound  # noqa: PLC0415
  from tvdp_tf.privacy import claims  # noqa: PLC0415

  rows = []
  for case in found.cases:
    evidence = (case.scores, case.alternative_scores, case.delta, confidence)
    bound = lower_bound.empirical_lower_bound(*evidence)
    gaussian = math.nan
    if case.is_gaussian:
      gaussian = lower_bound.gaussian_lower_bound(*evidence).epsilon_lower_bound
    checked = claims.check_claim(
      case.formula, delta=case.delta, epsilon=case.claim, **case.arguments
    )
    shown = bound.epsilon_lower_bound
    verdict = REFUTED if case.claim and shown > case.claim else NOT_REFUTED
    values = (
      *(found.tool, found.version, case.name, case.delta, case.epsilon_set),
      *(case.epsilon_told, checked.delivered_epsilon, shown, gaussian),
      NO_CLAIM if case.claim is None else verdict,
      *(bound.trials, bound.tpr, bound.fpr, bound.tpr_lower_limit),
      *(bound.fpr_upper_limit, confidence),
    )
    rows.append(dict(zip(COLUMNS, values, strict=True)))
  return rows


def _number(
  value: float | None, text: Callable[[float], str] = '{:.4g}'.format
) -> str:
  if value is None or math.isnan(value):
    return ''
  return text(value)


def write(
  found: list,
  rows: list[dict],
  command: str,
  confidence: float,
  folder: pathlib.Path,
) -> None:
  """Writes `claims.csv` and `README.md`."""
  from tvdp_tf.attacks import audit_report  # noqa: PLC0415
  from tvdp_tf.output import files, layout, machine  # noqa: PLC0415
  from tvdp_tf.privacy import statement  # noqa: PLC0415

  folder.mkdir(parents=True, exist_ok=True)
  files.write_csv(
    folder / 'claims.csv',
    COLUMNS,
    (
      ['' if row[name] is None else row[name] for name in COLUMNS]
      for row in rows
    ),
  )
  table = layout.markdown_table(
    (
      *('tool', 'case', 'delta', 'epsilon that is set'),
      *('its own account', '`check_claim`', 'shown by the audit'),
      *('shown if Gaussian', 'trials', 'verdict'),
    ),
    [
      (
        *(row['tool'], row['case'], f'{row["delta"]:g}'),
        *map(_number, (row['epsilon_set'], row['epsilon_told'])),
        _number(row['check_claim'], statement.format_epsilon),
        _number(row['lower_bound'], audit_report.format_lower_bound),
        _number(
          row['lower_bound_if_gaussian'], audit_report.format_lower_bound
        ),
        *(f'{row["trials"]:,}', row['verdict']),
      )
      for row in rows
    ],
  )
  versions = ', '.join(
    f'{one.tool} {one.version} (Python {one.python}, {one.seconds:.0f} seconds)'
    for one in found
  )
  host = machine.describe()
  lines = [
    '# Claims of other tools, audited',
    '',
    f'By `make check-claims`, which ends in `{command}`. What it means:'
    ' docs/CLAIMS.md.',
    '',
    table,
    '',
    f'"Shown" are lower bounds of epsilon, each with {confidence:.0%}'
    ' confidence, by Clopper-Pearson limits on half of the trials; the other'
    ' half chose the threshold. Nothing is assumed about the tool but in the'
    ' column "if Gaussian". A claim is the account of the tool, where it keeps'
    ' one, else the epsilon that is set. `claims.csv` has the rates.',
    '',
    f'Versions: {versions}; all packages in `benchmarks/peers/<tool>/'
    f'requirements.txt`. On {machine.in_words(host)}, at a load of'
    f' {host["load_average"]:.1f}.',
  ]
  files.write_text(folder / 'README.md', '\n'.join(lines) + '\n')
