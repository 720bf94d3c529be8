"""Several views of an example, whose gradients are averaged before clipping.

A mirrored image usually has the same label. The gradient of an example is the
mean of the gradients of its loss on each view, and is clipped once (De et al.,
2022). This costs no privacy: all views are made from one example, which still
contributes one clipped gradient.

This module defines the names and the requirements on the data;
`view_gradients` makes the views.
"""

from collections.abc import Sequence

from tvdp_tf import _validate

NONE = 'none'
# The image and its mirror image, with left and right exchanged.
MIRROR = 'mirror'
# Name -> number of views of an example.
VIEWS = {NONE: 1, MIRROR: 2}


def check(name: str, input_shape: Sequence[int | None]) -> str:
  """Returns the name, after checking that examples of a shape have such views.

  Args:
    name: A key of `VIEWS`.
    input_shape: Shape of one example.

  Raises:
    ValueError: If there are no such views, or the examples are not images.
  """
  _validate.one_of('views', name, VIEWS)
  if name != NONE and len(input_shape) != 3:
    raise ValueError(
      'views must be none for examples that are not images of height, width'
      f' and channels, got {name} for {tuple(input_shape)}'
    )
  return name


def privacy_words(name: str) -> str:
  """The reason why they cost no privacy, for a privacy statement."""
  return (
    f'views ({name}) are made of one example alone, and their gradients are'
    ' averaged before the clip: exchanging an example still exchanges one'
    ' clipped gradient, so they cost no privacy'
  )
