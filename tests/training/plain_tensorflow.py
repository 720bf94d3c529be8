"""Loads exported models with TensorFlow alone; needs nothing of the project.

  python plain_tensorflow.py FOLDER...

Each folder holds `model`, and `expected.npz` with the arrays `features`,
`class_scores` and `predicted_class`. Whatever imports the project
or TFF on the way fails.
"""

import json
import pathlib
import sys
import zipfile

_REFUSED = (
  'dp_accounting',
  'tensorflow_federated',
  'tensorflow_privacy',
  'tvdp_tf',
)


class _Refusal:
  """An import hook."""

  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] in _REFUSED:
      raise ImportError(f'{name} was imported')


def _check(folder: pathlib.Path) -> None:
  import numpy as np  # noqa: PLC0415 After the hook.
  import tensorflow as tf  # noqa: PLC0415

  expected = np.load(folder / 'expected.npz')
  features = tf.constant(expected['features'])

  def check_scores(scores):
    # Of what is added up, which may be much larger than the sum.
    largest = np.abs(expected['class_scores']).max()
    np.testing.assert_allclose(
      scores,
      expected['class_scores'],
      rtol=1e-5,
      atol=1e-6 * max(1.0, largest),
    )

  saved = tf.saved_model.load(str(folder / 'model'))
  serve = saved.signatures['serving_default']
  outputs = serve(features=features)
  check_scores(outputs['class_scores'])
  np.testing.assert_array_equal(
    outputs['predicted_class'], expected['predicted_class']
  )
  check_scores(tf.keras.models.load_model(folder / 'model')(features))
  keras_file = folder / 'model' / 'model.keras'
  check_scores(tf.keras.models.load_model(keras_file)(features))

  extra = folder / 'model' / 'assets.extra'
  spec = json.loads((extra / 'model_spec.json').read_text())
  _, arguments = serve.structured_input_signature
  assert spec['inputs'] == {
    name: {'dtype': s.dtype.name, 'shape': s.shape.as_list()}
    for name, s in arguments.items()
  }, (spec, arguments)
  assert spec['outputs'] == {
    name: {'dtype': s.dtype.name, 'shape': s.shape.as_list()}
    for name, s in serve.structured_outputs.items()
  }, (spec, serve.structured_outputs)
  with zipfile.ZipFile(keras_file) as archive:
    for path in extra.iterdir():
      assert archive.read(path.name) == path.read_bytes(), path
  print(folder, json.loads((extra / 'privacy.json').read_text())['reason'])


if __name__ == '__main__':
  sys.meta_path.insert(0, _Refusal())
  for argument in sys.argv[1:]:
    _check(pathlib.Path(argument))
