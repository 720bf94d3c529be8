"""How far one example or one user can move what is released.

Every epsilon depends on the sensitivity that the noise is scaled to. Each rule
has a name, a value, the release that it covers, and whether it is proven:

  paper       2C/n    NOT PROVEN: the paper's 2C/|D_k| (eq_sensitivity)
  projection  2C      two models in the ball of radius C
  gradient    2C_g/n  mean of clipped per-example gradients, each local step
  gradient_sum 2C_g   sum of clipped per-example gradients, all clients
  update      2C_u    clipped model update, user-level

The paper's rule averages per-example minimizers, which is not what training
does: one example enters through its gradient, whose size has nothing to do with
C. Five full-batch steps on 600 points can move a model by 2C, 600 times more.
"""

import dataclasses
from typing import Any

from tvdp_tf import _validate

PAPER = 'paper'
PROJECTION = 'projection'
GRADIENT = 'gradient'
GRADIENT_SUM = 'gradient_sum'
UPDATE = 'update'

# Number of clipped gradients that are added in float32.
MICROBATCH_SIZE = 64
# Maximum number of microbatch sums that are added in float32.
MOST_MICROBATCHES = 16
# Share of the sensitivity that rounding may take up in a sum of clipped
# updates, added in float64.
UPDATE_ROUNDING = 2e-6

# Beyond these, nothing is proven about float32 arithmetic.
LEAST_CLIP = 1e-10
MOST_CLIP = 1e10

UNITS = ('example', 'user')
REPLACE_ONE = 'replace-one'
ADD_OR_REMOVE_ONE = 'add-or-remove-one'
ZERO_OUT = 'zero-out'
ADJACENCIES = (REPLACE_ONE, ADD_OR_REMOVE_ONE, ZERO_OUT)
# What each one means, for readers of an epsilon.
ADJACENCY_MEANINGS = {
  REPLACE_ONE: 'exchanged for any other; the number of units is public',
  ADD_OR_REMOVE_ONE: (
    'present or absent; the largest possible number of units and the divisor'
    ' of the sum are public'
  ),
  ZERO_OUT: (
    'present, or its gradient is zero; the number of units is public. To'
    ' exchange it for another one takes two such steps, so the same noise'
    ' promises less against that'
  ),
}


@dataclasses.dataclass(frozen=True)
class SensitivityRule:
  """An L2 sensitivity, with its scope and its proof.

  Attributes:
    name: `PAPER`, `PROJECTION`, `GRADIENT`, `GRADIENT_SUM` or `UPDATE`, or a
      custom name.
    value: The L2 sensitivity, > 0, in the unit of what is released.
    formula: How `value` was computed, with numbers.
    release: What is released. Every release needs noise, and counts as one
      noise multiplier.
    unit: The unit whose change is bounded: 'example' or 'user'.
    adjacency: One of `ADJACENCIES`, of that unit.
    proven: Whether the bound holds for every data set and model.
    reason: Why, or why not, in a sentence.
    rounding: The share of `value` that is reserved for rounding. Clips are
      reduced by this share, so that `value` bounds the result in floating
      point. 0 if the computation is unknown.
  """

  name: str
  value: float
  formula: str
  release: str
  unit: str
  adjacency: str
  proven: bool
  reason: str
  rounding: float = 0.0

  def __post_init__(self):
    object.__setattr__(self, 'value', _validate.positive('value', self.value))
    _validate.non_negative('rounding', self.rounding)
    _validate.one_of('unit', self.unit, UNITS)
    _validate.one_of('adjacency', self.adjacency, ADJACENCIES)
    if not isinstance(self.proven, bool):
      raise ValueError(f'proven must be True or False, got {self.proven!r}')
    for name in ('name', 'formula', 'release', 'reason'):
      text = getattr(self, name)
      if not isinstance(text, str) or not text:
        raise ValueError(f'{name} must be a non-empty text, got {text!r}')

  def to_json_dict(self) -> dict[str, str | float | bool]:
    """The attributes, ready for `json.dumps`."""
    return dataclasses.asdict(self)


def check_clip(name: str, value: object) -> float:
  """Checks and returns a clip: from `LEAST_CLIP` to `MOST_CLIP`, for float32.

  Raises:
    ValueError: If it is out of range.
  """
  clip = _validate.positive(name, value)
  if not LEAST_CLIP <= clip <= MOST_CLIP:
    raise ValueError(
      f'{name} must be from {LEAST_CLIP:g} to {MOST_CLIP:g}, where the rounding'
      f' of float32 is bounded, got {value!r}'
    )
  return clip


def relative_rounding(
  examples: Any, microbatch_size: int = MICROBATCH_SIZE
) -> Any:
  """The share of 2 C_g/n that rounding may take up in a mean of n gradients.

  The proof is in `learning.clipping`. Sums are in float32 within a microbatch
  and between those of a group, and in float64 between groups.

  >>> f'{relative_rounding(600):.1e}', f'{relative_rounding(10**6):.1e}'
  ('1.3e-03', '1.3e-03')

  Args:
    examples: n, a number or a float64 tensor.
    microbatch_size: Number of examples in a microbatch, B.
  """
  within = microbatch_size * (microbatch_size + 16) * 2.0**-24
  within += MOST_MICROBATCHES**2 * microbatch_size * 2.0**-24
  microbatches = examples / microbatch_size + 2
  return within + microbatches * examples * 2.0**-52


def paper_rule(l2_norm_clip: float, examples: int) -> SensitivityRule:
  """The paper's 2C/|D_k|. It is not proven, so it supports no guarantee.

  >>> rule = paper_rule(l2_norm_clip=5.0, examples=600)
  >>> round(rule.value, 6), rule.proven
  (0.016667, False)

  Args:
    l2_norm_clip: C, norm that the parameters are projected to, > 0.
    examples: n = |D_k| >= 1.

  Raises:
    ValueError: If an argument is out of range.
  """
  clip = _validate.positive('l2_norm_clip', l2_norm_clip)
  examples = _validate.integer('examples', examples)
  return SensitivityRule(
    name=PAPER,
    value=2 * clip / examples,
    formula=f'2 C / n = 2 * {clip!r} / {examples}',
    release='the parameters after the local steps, one upload per round',
    unit='example',
    adjacency=REPLACE_ONE,
    proven=False,
    reason=(
      'projecting the parameters to norm C bounds their movement by 2 C, not'
      ' by 2 C / n: one example can move them n times as far as this formula'
      ' says'
    ),
  )


def projection_rule(l2_norm_clip: float) -> SensitivityRule:
  """The rule 2C, for any two models in the ball of radius C.

  Args:
    l2_norm_clip: C, norm that the parameters are projected to, > 0.

  Raises:
    ValueError: If an argument is out of range.
  """
  clip = _validate.positive('l2_norm_clip', l2_norm_clip)
  return SensitivityRule(
    name=PROJECTION,
    value=2 * clip,
    formula=f'2 C = 2 * {clip!r}',
    release='the parameters after the local steps, one upload per round',
    unit='user',
    adjacency=REPLACE_ONE,
    proven=True,
    reason=(
      'the upload lies in the ball of radius C whatever the data, so even'
      " exchanging all of a user's data moves it by at most 2 C"
    ),
  )


def gradient_rule(
  example_l2_norm_clip: float, examples: int, adjacency: str = REPLACE_ONE
) -> SensitivityRule:
  """The rule 2 C_g/n, for the mean of clipped per-example gradients, any model.

  It holds for the mean of `learning.clipping`, including `relative_rounding`.

  Args:
    example_l2_norm_clip: C_g, norm that every per-example gradient is clipped
      to, > 0.
    examples: n >= 1, the divisor of the mean: fixed and public.
    adjacency: 'replace-one' (2 C_g/n); 'zero-out' or 'add-or-remove-one'
      (C_g/n).

  Raises:
    ValueError: If an argument is out of range.
  """
  clip = _validate.positive('example_l2_norm_clip', example_l2_norm_clip)
  examples = _validate.integer('examples', examples)
  _validate.one_of('adjacency', adjacency, ADJACENCIES)
  factor = 2 if adjacency == REPLACE_ONE else 1
  return SensitivityRule(
    name=GRADIENT,
    value=factor * clip / examples,
    formula=f'{factor} C_g / n = {factor} * {clip!r} / {examples}',
    release=(
      'the mean gradient of one local step: tau releases for every round a'
      ' client takes part in'
    ),
    unit='example',
    adjacency=adjacency,
    proven=True,
    reason=(
      'one example enters the sum through one gradient of norm at most C_g, and'
      ' the divisor n does not depend on the data; later steps see it only'
      ' through noisy gradients'
    ),
    # Rounding may add the same amount, but the sensitivity is half.
    rounding=relative_rounding(examples) * (2 // factor),
  )


def gradient_sum_rule(
  example_l2_norm_clip: float, adjacency: str = REPLACE_ONE
) -> SensitivityRule:
  """The rule 2 C_g, for the sum of a round's clipped per-example gradients.

  Args:
    example_l2_norm_clip: C_g, norm that every per-example gradient is clipped
      to, > 0.
    adjacency: As for `gradient_rule`.

  Raises:
    ValueError: If an argument is out of range.
  """
  clip = _validate.positive('example_l2_norm_clip', example_l2_norm_clip)
  _validate.one_of('adjacency', adjacency, ADJACENCIES)
  factor = 2 if adjacency == REPLACE_ONE else 1
  return SensitivityRule(
    name=GRADIENT_SUM,
    value=factor * clip,
    formula=f'{factor} C_g = {factor} * {clip!r}',
    release='the sum of the gradients of all clients of a round, one per round',
    unit='example',
    adjacency=adjacency,
    proven=True,
    reason=(
      'one example enters the sum through one gradient of norm at most C_g;'
      ' the clip is reduced by what rounding adds'
    ),
  )


def update_rule(
  update_l2_norm_clip: float, adjacency: str = REPLACE_ONE
) -> SensitivityRule:
  """The rule 2 C_u, for the clipped update of a user, who may change all data.

  Args:
    update_l2_norm_clip: C_u, norm that the update w_k - w(m-1) is clipped to,
      > 0.
    adjacency: 'replace-one' (2 C_u), the only one for noise added before an
      upload that the server sees; 'add-or-remove-one' or 'zero-out' (C_u), for
      noise on a sum with a fixed denominator.

  Raises:
    ValueError: If an argument is out of range.
  """
  clip = _validate.positive('update_l2_norm_clip', update_l2_norm_clip)
  _validate.one_of('adjacency', adjacency, ADJACENCIES)
  factor = 2 if adjacency == REPLACE_ONE else 1
  return SensitivityRule(
    name=UPDATE,
    value=factor * clip,
    formula=f'{factor} C_u = {factor} * {clip!r}',
    release='the clipped model update (or their sum), one per round',
    unit='user',
    adjacency=adjacency,
    proven=True,
    reason=(
      'the update has norm at most C_u whatever the data; adding a user to the'
      ' sum moves it by C_u, exchanging one by 2 C_u'
    ),
    rounding=UPDATE_ROUNDING,
  )
