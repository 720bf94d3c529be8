"""Which nestings of TFF's aggregators keep a guarantee, and which do not.

An aggregation factory wraps another. What the outer one does to a client's
value happens first: `clipping_factory(1.0, TimeVaryingGaussianFactory(s))`
clips, then adds noise. docs/DROP_IN.md has the table of all nestings; those
whose state gives them away are found here.
"""

from collections.abc import Iterator

import tensorflow_federated as tff

# The state that TFF's clipping_factory and zeroing_factory keep their norm in.
_ROBUST = ('clipping_norm', 'zeroing_norm')


def _children(type_spec: tff.Type) -> Iterator[tuple[str | None, tff.Type]]:
  if isinstance(type_spec, tff.FederatedType):
    type_spec = type_spec.member
  if isinstance(type_spec, tff.StructType):
    yield from tff.structure.iter_elements(type_spec)


def _states(type_spec: tff.Type) -> Iterator[dict[str, tff.Type]]:
  """The fields of every structure in a type that has names."""
  children = list(_children(type_spec))
  fields = {name: child for name, child in children if name is not None}
  if fields:
    yield fields
  for _, child in children:
    yield from _states(child)


def clips_or_zeroes(type_spec: tff.Type) -> bool:
  """Whether an aggregator of this state clips or zeroes values."""
  return any(
    name in fields for fields in _states(type_spec) for name in _ROBUST
  )


def _has_noise(type_spec: tff.Type) -> bool:
  return any(
    'query_state' in fields or {'theta', 'initial_variance'} <= fields.keys()
    for fields in _states(type_spec)
  )


def check_nesting(
  process: tff.learning.templates.LearningProcess
  | tff.templates.AggregationProcess,
) -> None:
  """Refuses aggregators that break the guarantee of the noise inside them.

  Args:
    process: A process with a `TimeVaryingGaussianFactory` or a
      `GeometricGaussianSumQuery` somewhere in its aggregator.

  Raises:
    ValueError: If there is no noise of ours; if a norm that adapts to the
      clients' values decides, outside of the noise, what is clipped or zeroed;
      or if noisy sums are divided by a sum of weights that has no noise.
  """
  state_type = process.initialize.type_signature.result
  if not _has_noise(state_type):
    raise ValueError(
      'process must have an aggregator with noise in it, got none'
    )
  for fields in _states(state_type):
    _check_adaptive(fields)
    if 'value_sum_process' in fields and _has_noise(
      fields['value_sum_process']
    ):
      raise ValueError(
        'a noisy sum must be divided by a fixed number, not by a sum of '
        'weights: use tensorflow_privacy.NormalizedQuery in place of '
        'MeanFactory'
      )


def _check_adaptive(fields: dict[str, tff.Type]) -> None:
  for name in _ROBUST:
    inner = fields.get('inner_agg')
    if name not in fields or inner is None or not _has_noise(inner):
      continue
    if any(True for _ in _children(fields[name])):
      raise ValueError(
        f'{name} must be a constant, got one that adapts to the values of the '
        'clients: they are not hidden by the noise, and change what other '
        'clients contribute'
      )
