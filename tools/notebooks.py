"""Executes the notebooks of docs/ in a Jupyter kernel, for the site.

  python -m tools.notebooks FOLDER

It needs nbclient and ipykernel: `make docs` has an environment with them. The
notebooks themselves are not changed; copies with outputs are written to FOLDER.
"""

import os
import pathlib
import sys
import tempfile
import time

import nbformat
from nbclient import NotebookClient

from tools import site_pages
from tvdp_tf import _environment

_TIMEOUT_S = 300


def execute(source: pathlib.Path, output: pathlib.Path) -> None:
  """Executes a notebook in a temporary folder.

  Args:
    source: The notebook.
    output: Where to write the notebook with outputs.

  Raises:
    CellExecutionError: If a cell fails.
    ValueError: If an output contains the path of the checkout.
  """
  notebook = nbformat.read(source, as_version=4)
  with tempfile.TemporaryDirectory() as folder:
    NotebookClient(
      notebook,
      timeout=_TIMEOUT_S,
      kernel_name='python3',
      resources={'metadata': {'path': folder}},
    ).execute()
  if str(site_pages.ROOT) in str(notebook.cells):
    raise ValueError(f'{source.name} must show no path of this machine')
  output.parent.mkdir(parents=True, exist_ok=True)
  nbformat.write(notebook, output)


def main() -> None:
  """Executes all of them, one after the other."""
  # Hides TensorFlow's lines about missing hardware in the kernel.
  _environment.set_defaults()
  # Hides tqdm's warning about missing widgets.
  os.environ.setdefault('PYTHONWARNINGS', 'ignore:IProgress not found')
  folder = pathlib.Path(sys.argv[1])
  sources = sorted((site_pages.ROOT / site_pages.NOTEBOOKS).glob('*.ipynb'))
  for source in sources:
    started = time.monotonic()
    execute(source, folder / source.name)
    print(f'{source.name}: {time.monotonic() - started:.0f} s', flush=True)


if __name__ == '__main__':
  main()
