"""Several views of an example, whose gradients are averaged before the clip.

A flat picture is as good a picture turned over. The gradient of an example is
then the mean of those of its loss on each of its views, and is clipped once
(De et al., 2022). That costs no privacy: the views are made of one example
alone, and it enters through one clipped gradient as before.

Here are the names and what is asked of the data; `view_gradients` makes the
views.
"""

from collections.abc import Sequence

from tvdp_tf import _validate

NONE = 'none'
# The image, and its mirror image: left and right exchanged.
MIRROR = 'mirror'
# How many views there are of an example.
VIEWS = {NONE: 1, MIRROR: 2}


def check(name: str, input_shape: Sequence[int | None]) -> str:
  """The name, if examples of a shape have such views.

  Args:
    name: A key of `VIEWS`.
    input_shape: Of one example.

  Raises:
    ValueError: If there are no such views, or examples are no images.
  """
  _validate.one_of('views', name, VIEWS)
  if name != NONE and len(input_shape) != 3:
    raise ValueError(
      'views must be none for examples that are not images of height, width'
      f' and channels, got {name} for {tuple(input_shape)}'
    )
  return name


def privacy_words(name: str) -> str:
  """Why they cost nothing, for a statement."""
  return (
    f'views ({name}) are made of one example alone, and their gradients are'
    ' averaged before the clip: exchanging an example still exchanges one'
    ' clipped gradient, so that they cost no privacy'
  )
