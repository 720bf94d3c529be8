"""Which nestings of TFF's aggregators keep a guarantee, and which do not.

And what leaves a client beside the update that the noise hides: TFF's own
metrics, counts and weights.

An aggregation factory wraps another. What the outer one does to a client's
value happens first: `clipping_factory(1.0, TimeVaryingGaussianFactory(s))`
clips, then adds noise. docs/DROP_IN.md has the table of all nestings; those
whose state gives them away are found here.
"""

from collections.abc import Iterator

import tensorflow_federated as tff

from tvdp_tf.federated import checked_mean, withheld

# The state that TFF's clipping_factory and zeroing_factory keep their norm in,
# and that of what counts the clients they change.
_ROBUST = {
  'clipping_norm': 'clipped_count_agg',
  'zeroing_norm': 'zeroed_count_agg',
}
# In the state of a weighted mean: of TFF's, and of `checked_mean`.
_WEIGHTED = ('weight_sum_process', checked_mean.WEIGHTS)
# Metrics of client work that come from the schedule, not from clients.
_OF_THE_SCHEDULE = {'round', 'noise_multiplier'}


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


def _has_schedule(fields: dict[str, tff.Type]) -> bool:
  """Whether a state is one of `schedule_state`."""
  kinds = ({'theta', 'initial_variance'}, {'rounds', 'variances'})
  return any(kind <= fields.keys() for kind in kinds)


def _has_noise(type_spec: tff.Type) -> bool:
  return any(
    'query_state' in fields or _has_schedule(fields)
    for fields in _states(type_spec)
  )


def _is_local(fields: dict[str, tff.Type]) -> bool:
  """Whether a state is that of noise that clients add."""
  return 'inner' in fields and _has_schedule(fields)


def _leaves(type_spec: tff.Type) -> Iterator[str]:
  """The names of the values in a type of metrics."""
  for name, child in _children(type_spec):
    if not isinstance(child, tff.StructType):
      yield name or 'a number without a name'
    yield from _leaves(child)


def _metrics(process: tff.templates.IterativeProcess) -> list[str]:
  """The metrics that a learning process computes from clients' data."""
  result = dict(_children(process.next.type_signature.result))
  if 'metrics' not in result:
    return []
  work = dict(_children(result['metrics'])).get('client_work')
  return [] if work is None else sorted({*_leaves(work)} - _OF_THE_SCHEDULE)


def _unnoised(
  process: tff.templates.IterativeProcess,
  state_type: tff.Type,
  public_weights: bool,
) -> Iterator[str]:
  """What leaves clients as it is, and how to keep it there."""
  if metrics := _metrics(process):
    yield (
      f'training metrics ({", ".join(metrics)}), unless metrics_aggregator is '
      'federated.withheld_metrics'
    )
  for fields in _states(state_type):
    for norm, count in _ROBUST.items():
      inner = fields.get('inner_agg')
      if norm not in fields or inner is None:
        continue
      # A count of central noise is the trusted server's.
      local = any(_is_local(inside) for inside in _states(inner))
      kept = dict(_children(fields[count])).keys() == {withheld.WITHHELD}
      if local and not kept:
        yield (
          f'{count.removesuffix("_agg")}, unless its sum is '
          'federated.WithheldCountFactory'
        )
    if (
      _is_local(fields)
      and not public_weights
      and any(
        name in inside
        for inside in _states(fields['inner'])
        for name in _WEIGHTED
      )
    ):
      yield (
        'weights, unless the factory is '
        'federated.UnweightedTimeVaryingGaussianFactory'
      )


def check_nesting(
  process: tff.learning.templates.LearningProcess
  | tff.templates.AggregationProcess,
  *,
  public_weights: bool = False,
) -> None:
  """Refuses a process that lets more of a client's data out than under noise.

  For the tests of a pipeline of your own. Aggregators are told by their state,
  metrics by the type of what a round returns; docs/DROP_IN.md has what neither
  gives away.

  Args:
    process: A process with a `TimeVaryingGaussianFactory` or a
      `GeometricGaussianSumQuery` somewhere in its aggregator.
    public_weights: Whether the weights of a weighted mean are known to all and
      do not follow the clients' data. TFF's client work sets that of an update
      that is not finite to 0.

  Raises:
    ValueError: If there is no noise of ours; if a norm that adapts to the
      clients' values decides, outside of the noise, what is clipped or zeroed;
      if noisy sums are divided by a sum of weights that has no noise; or if
      training metrics, counts of clipped or zeroed clients, or weights leave
      the clients without noise, with all of them in one line.
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
  unnoised = [*_unnoised(process, state_type, public_weights)]
  if unnoised:
    raise ValueError(
      f'clients must send nothing without noise, got {"; ".join(unnoised)}'
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
