"""A whole training by a peer's program, from the command line to its exit.

The program reads a data set from a folder of NumPy files and trains a work's
model on it. After every round, it evaluates the model on the test set, records
the result and writes a checkpoint. `whole_training` is the other side.

It uses only Python's library and NumPy: see `work`.
"""

import argparse
import dataclasses
import pathlib

import numpy as np

from benchmarks.harness import work as work_lib

PARTS = ('train_features', 'train_labels', 'test_features', 'test_labels')
METRICS = 'metrics.csv'
CHECKPOINTS = 'checkpoints'
COLUMNS = ('round', 'test_loss', 'test_accuracy')


def path_of(folder: pathlib.Path, part: str) -> pathlib.Path:
  """Returns a part's file: pixels are uint8 [n, values], labels int32."""
  return folder / f'{part}.npy'


@dataclasses.dataclass(frozen=True)
class Training:
  """The task of a program; it can replace `program.Server`.

  Attributes:
    work: The work, with the users' examples in place of random ones.
    form: The form of the program.
    rounds: Number of rounds.
    data: Folder of `PARTS`.
    output_dir: Existing folder for its results.
  """

  work: work_lib.Work
  form: str
  rounds: int
  data: pathlib.Path
  output_dir: pathlib.Path

  def indices(self) -> np.ndarray:
    """Indices of each user's examples, [users, examples_per_user]."""
    rng = np.random.default_rng(self.work.seed)
    labels = np.load(path_of(self.data, 'train_labels'), mmap_mode='r')
    shape = self.work.users, self.work.examples_per_user
    return rng.permutation(len(labels))[: shape[0] * shape[1]].reshape(shape)

  def _part(self, part: str) -> np.ndarray:
    return np.load(path_of(self.data, part), mmap_mode='r')

  def user(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns features, float32 in [0, 1], and labels of some examples."""
    features = self._part('train_features')[indices]
    return scaled(features), np.array(self._part('train_labels')[indices])

  @property
  def features(self) -> np.ndarray:
    """Features of all users, float32 [users, examples_per_user, values]."""
    return self.user(self.indices())[0]

  @property
  def labels(self) -> np.ndarray:
    """Labels of all users, int32 [users, examples_per_user]."""
    return np.array(self._part('train_labels')[self.indices()])

  def test(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns features and labels of the test set, in the form of `user`."""
    return (
      scaled(self._part('test_features')),
      np.array(self._part('test_labels')),
    )

  def checkpoint(self, round_number: int) -> pathlib.Path:
    """Returns the path of a round's checkpoint, in an existing folder."""
    folder = self.output_dir / CHECKPOINTS
    folder.mkdir(exist_ok=True)
    return folder / f'round_{round_number}'

  def record(self, round_number: int, loss: float, accuracy: float) -> None:
    """Records a round; the file is complete after each round."""
    path = self.output_dir / METRICS
    lines = [] if path.exists() else [','.join(COLUMNS)]
    lines.append(f'{round_number},{loss},{accuracy}')
    with open(path, 'a', encoding='utf-8') as file:
      file.write('\n'.join(lines) + '\n')


def scaled(pixels: np.ndarray) -> np.ndarray:
  """Scales pixels to float32 in [0, 1]."""
  return pixels.astype(np.float32) / 255


def start() -> Training:
  """Reads the command line."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--work', type=work_lib.from_json, required=True)
  parser.add_argument('--form', required=True)
  parser.add_argument('--rounds', type=int, required=True)
  parser.add_argument('--data', type=pathlib.Path, required=True)
  parser.add_argument('--output_dir', type=pathlib.Path, required=True)
  return Training(**vars(parser.parse_args()))
