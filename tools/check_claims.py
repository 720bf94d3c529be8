"""Compares other tools' claims, what their noise delivers, and audits of it.

  python -m tools.check_claims --output_dir=results/claims

Each tool's own code runs in a separate environment (`make peers ARGS='flower
nvflare opacus'`), on two neighboring data sets, many times over; see
`benchmarks/peers/<tool>/claim.py`. `attacks.lower_bound` converts the results
to an epsilon that is shown with confidence; `check_claim` says what should be
delivered. With the same seed and versions, the numbers are the same. `make
check-claims` does all of it; docs/CLAIMS.md explains the results.
"""

import pathlib

from absl import flags

from tools import claim_suite
from tvdp_tf.cli import program

_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'results/claims', 'Where claims.csv and README.md go.'
)
_TOOLS = flags.DEFINE_multi_enum(
  'tools',
  list(claim_suite.TOOLS),
  list(claim_suite.TOOLS),
  'A tool to check; repeat the flag for several.',
)
_SHARE = flags.DEFINE_float(
  'share', 1.0, 'Share of the trials to run; fewer show less.', 0.0, 1.0
)
_SEED = flags.DEFINE_integer(
  'seed', 0, "Seed of the tools' noise.", lower_bound=0
)
_CONFIDENCE = flags.DEFINE_float(
  'confidence', 0.99, 'Confidence of each lower bound.', 0.5, 0.999999
)


def main() -> None:
  """Audits the tools, and writes the results."""
  found, rows = [], []
  for tool in _TOOLS.value:
    found.append(claim_suite.run(tool, _SHARE.value, _SEED.value))
    rows += claim_suite.judge(found[-1], _CONFIDENCE.value)
    for row in rows[-len(found[-1].cases) :]:
      print(
        f'{row["tool"]} {row["version"]}, {row["case"]}: '
        f'{row["lower_bound"]:.4g} is shown; {row["verdict"]}'
      )
  command = 'python -m tools.check_claims'
  for holder in (_TOOLS, _SHARE, _SEED, _CONFIDENCE):
    if holder.present:
      words = flags.FLAGS[holder.name].serialize().split('\n')
      command += f' {" ".join(words)}'
  folder = pathlib.Path(_OUTPUT_DIR.value)
  claim_suite.write(found, rows, command, _CONFIDENCE.value, folder)
  print(f'written to {_OUTPUT_DIR.value}')


if __name__ == '__main__':
  program.run(main)
