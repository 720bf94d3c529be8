"""The models' numbers of parameters, computed without TensorFlow.

>>> FORMULAS['mlp']((28, 28, 1), 10)
25450
"""

import math
from collections.abc import Callable, Sequence


def check_svm(num_classes: int) -> None:
  """Checks that a linear support vector machine can tell the classes apart.

  Raises:
    ValueError: If there are not two classes.
  """
  if num_classes != 2:
    raise ValueError(
      f'model must be mlp, linear or cnn for {num_classes} classes, got svm'
    )


def check_cnn(input_shape: Sequence[int]) -> None:
  """Checks that the CNN's convolutions and pools fit the input.

  Raises:
    ValueError: If the input is not an image [height, width, channels] of at
      least 16 x 16.
  """
  if len(input_shape) != 3 or min(input_shape[:2]) < 16:
    raise ValueError(
      'model must be mlp, linear or svm for inputs that are not images of at'
      f' least 16 x 16, got cnn for {tuple(input_shape)}'
    )


def _dense(inputs: int, *widths: int) -> int:
  """Number of weights and biases of a stack of dense layers."""
  ends = zip((inputs, *widths), widths, strict=False)
  return sum((width_in + 1) * width_out for width_in, width_out in ends)


def _mlp(input_shape: Sequence[int], num_classes: int) -> int:
  return _dense(math.prod(input_shape), 32, num_classes)


def _linear(input_shape: Sequence[int], num_classes: int) -> int:
  return math.prod(input_shape) * num_classes


def _svm(input_shape: Sequence[int], num_classes: int) -> int:
  check_svm(num_classes)
  return _dense(math.prod(input_shape), 1)


def _cnn(input_shape: Sequence[int], num_classes: int) -> int:
  check_cnn(input_shape)
  height, width, channels = input_shape
  for _ in range(2):  # A 5x5 convolution, then a 2x2 pool.
    height, width = (height - 4) // 2, (width - 4) // 2
  convolutions = (25 * channels + 1) * 6 + (25 * 6 + 1) * 16
  return convolutions + _dense(16 * height * width, 120, 84, num_classes)


# Model -> function of (shape of an example, number of classes), which raises
# ValueError if they do not fit the model.
FORMULAS: dict[str, Callable[[Sequence[int], int], int]] = {
  'mlp': _mlp,
  'svm': _svm,
  'linear': _linear,
  'cnn': _cnn,
}
