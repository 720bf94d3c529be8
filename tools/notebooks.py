"""Executes the notebooks of docs/ in a Jupyter kernel, for the site.

  python -m tools.notebooks FOLDER

Needs nbclient and ipykernel: `make docs` has an environment with them. The
notebooks themselves stay as they are; those with outputs are in FOLDER.
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
    output: Where it is written, with outputs.

  Raises:
    CellExecutionError: If a cell fails.
    ValueError: If an output names the folder of the checkout.
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
  # Of TensorFlow, in the kernel: no lines about what this machine lacks.
  _environment.set_defaults()
  # Of tqdm, about widgets that the environment has not.
  os.environ.setdefault('PYTHONWARNINGS', 'ignore:IProgress not found')
  folder = pathlib.Path(sys.argv[1])
  sources = sorted((site_pages.ROOT / site_pages.NOTEBOOKS).glob('*.ipynb'))
  for source in sources:
    started = time.monotonic()
    execute(source, folder / source.name)
    print(f'{source.name}: {time.monotonic() - started:.0f} s', flush=True)


if __name__ == '__main__':
  main()
