"""Runs cells in a real Jupyter kernel; needs nbclient, ipykernel and pandas."""

import sys

import nbformat
from nbclient import NotebookClient

_CELLS = (
  """
import numpy as np, tensorflow as tf, pandas as pd, tvdp_tf
rng = np.random.default_rng(0)
y = np.arange(300) % 3
x = pd.DataFrame(rng.normal(0, 0.3, [300, 4]) + np.eye(4)[y])
model = tf.keras.Sequential([tf.keras.layers.Dense(3, 'softmax')])
""",
  """
run = tvdp_tf.fit(
  model, x[:200], pd.Series(y[:200]), users=10, rounds=5,
  test=(x[200:], y[200:]), output_dir='run')
run
""",
  'run.history',
)


def main() -> None:
  """Executes the cells in the folder of the first argument."""
  notebook = nbformat.v4.new_notebook(
    cells=[nbformat.v4.new_code_cell(text) for text in _CELLS]
  )
  NotebookClient(
    notebook,
    timeout=300,
    kernel_name='python3',
    resources={'metadata': {'path': sys.argv[1]}},
  ).execute()
  _, trained, history = notebook.cells
  shown = [o for o in trained.outputs if o.output_type == 'execute_result']
  page = shown[0]['data']['text/html']
  assert 'data:image/png;base64,' in page
  frame = history.outputs[0]['data']['text/html']
  assert 'delivered_epsilon' in frame and frame.count('<tr') == 7, frame
  print(page[:40])


if __name__ == '__main__':
  main()
