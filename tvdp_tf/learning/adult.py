"""UCI Adult for TensorFlow Datasets, which has no builder for it.

Reads `adult.data` and `adult.test` from TFDS's folder for manual downloads
(`<data_dir>/downloads/manual`), or else downloads them. A missing value, '?',
is treated as a separate category. `encode` computes the features of a linear
model: one-hot categories, and numbers scaled by constants that are defined
here, not derived from the data.
"""

import csv
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

_URL = 'https://archive.ics.uci.edu/ml/machine-learning-databases/adult/'
_FILES = {'train': 'adult.data', 'test': 'adult.test'}

# Column -> its categories, in the order of the data set's documentation.
_CATEGORIES = {
  'workclass': (
    'Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov '
    'Without-pay Never-worked ?'
  ),
  'education': (
    'Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th '
    '7th-8th 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool'
  ),
  'marital_status': (
    'Married-civ-spouse Divorced Never-married Separated Widowed '
    'Married-spouse-absent Married-AF-spouse'
  ),
  'occupation': (
    'Tech-support Craft-repair Other-service Sales Exec-managerial '
    'Prof-specialty Handlers-cleaners Machine-op-inspct Adm-clerical '
    'Farming-fishing Transport-moving Priv-house-serv Protective-serv '
    'Armed-Forces ?'
  ),
  'relationship': (
    'Wife Own-child Husband Not-in-family Other-relative Unmarried'
  ),
  'race': 'White Asian-Pac-Islander Amer-Indian-Eskimo Other Black',
  'sex': 'Female Male',
  'native_country': (
    'United-States Cambodia England Puerto-Rico Canada Germany '
    'Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran '
    'Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland '
    'France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary '
    'Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador '
    'Trinadad&Tobago Peru Hong Holand-Netherlands ?'
  ),
}
# Column -> a public bound on its values.
_NUMBERS = {
  'age': 100.0,
  'fnlwgt': 1.5e6,
  'education_num': 16.0,
  'capital_gain': 1e5,
  'capital_loss': 5e3,
  'hours_per_week': 100.0,
}
_COLUMNS = (
  'age',
  'workclass',
  'fnlwgt',
  'education',
  'education_num',
  'marital_status',
  'occupation',
  'relationship',
  'race',
  'sex',
  'capital_gain',
  'capital_loss',
  'hours_per_week',
  'native_country',
)
NUM_FEATURES = len(_NUMBERS) + sum(
  len(names.split()) for names in _CATEGORIES.values()
)


class Adult(tfds.core.GeneratorBasedBuilder):
  """UCI Adult: does a person earn more than 50,000 dollars a year?"""

  VERSION = tfds.core.Version('1.0.0')
  MANUAL_DOWNLOAD_INSTRUCTIONS = (
    'adult.data and adult.test are taken from here, or else downloaded.'
  )

  def _info(self) -> tfds.core.DatasetInfo:
    features: dict[str, Any] = {
      column: (
        tfds.features.ClassLabel(names=_CATEGORIES[column].split())
        if column in _CATEGORIES
        else np.float32
      )
      for column in _COLUMNS
    }
    features['label'] = tfds.features.ClassLabel(names=['<=50K', '>50K'])
    return tfds.core.DatasetInfo(
      builder=self,
      description='UCI Adult, the census data of 1994.',
      features=tfds.features.FeaturesDict(features),
      homepage=_URL,
    )

  def _split_generators(self, dl_manager: tfds.download.DownloadManager):
    paths = {
      split: dl_manager.manual_dir / name for split, name in _FILES.items()
    }
    if not all(path.exists() for path in paths.values()):
      paths = dl_manager.download(
        {split: _URL + name for split, name in _FILES.items()}
      )
    return {
      split: self._generate_examples(path) for split, path in paths.items()
    }

  def _generate_examples(self, path: Any) -> Iterator[tuple[int, dict]]:
    lines = path.read_text().splitlines()
    for number, row in enumerate(csv.reader(lines, skipinitialspace=True)):
      if len(row) != len(_COLUMNS) + 1:
        continue  # The test file's header, and empty lines.
      example: dict[str, Any] = dict(zip(_COLUMNS, row, strict=False))
      example.update({name: float(example[name]) for name in _NUMBERS})
      yield number, {**example, 'label': row[-1].rstrip('.')}


def encode(columns: Mapping[str, np.ndarray]) -> np.ndarray:
  """Encodes the columns of a split as features of a linear model.

  Args:
    columns: The columns of a split as returned by TFDS, each [n].

  Returns:
    float32 [n, NUM_FEATURES] in [0, 1]: the numbers divided by their public
    bounds, followed by the one-hot categories.
  """
  parts: list[np.ndarray] = [
    np.minimum(columns[name] / bound, 1.0)[:, np.newaxis]
    for name, bound in _NUMBERS.items()
  ]
  for name, categories in _CATEGORIES.items():
    parts.append(np.eye(len(categories.split()))[columns[name]])
  return np.concatenate(parts, axis=1).astype(np.float32)
