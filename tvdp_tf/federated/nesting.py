"""Finds nestings of TFF's aggregators that break a guarantee.

It also finds values that leave a client besides the noisy update: TFF's own
metrics, counts and weights.

An aggregation factory wraps another. The outer factory processes a client's
value first: `clipping_factory(1.0, TimeVaryingGaussianFactory(s))` clips, then
adds noise. docs/DROP_IN.md has a table of all nestings. This module finds those
that can be recognized by the type of their state.

Types do not distinguish a learning rate from a mean gradient. Whether a part of
the state comes from clients is found by tracing the computation of a round.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tvdp_tf.federated import checked_mean, withheld

# Fields of the states of TFF's clipping_factory and zeroing_factory: their norm
# -> the aggregator that counts the clients they change.
_ROBUST = {
  'clipping_norm': 'clipped_count_agg',
  'zeroing_norm': 'zeroed_count_agg',
}
# Fields of the state of a weighted mean: TFF's, and `checked_mean`'s.
_WEIGHTED = ('weight_sum_process', checked_mean.WEIGHTS)
# Fields of the states of TensorFlow Privacy's queries with a constant clip.
_CONSTANTS = {'l2_norm_clip', 'stddev', 'denominator'}
# What a value may depend on: the data of clients; the schedule of the noise
# and thus, in all aggregators of this library, the noise itself.
_DATA = 'data'
_NOISE = 'noise'
# The round number of a schedule, until something is computed from it.
_OLD_ROUND = 'old round'
# Parts of a learning process's result that must not depend on clients' data.
_OF_CLIENTS = (
  ('metrics', 'client_work'),
  *(('state', 'client_work'), ('state', 'distributor')),
)
# Intrinsics of TFF whose result is that of a function, or is their argument.
_APPLIES = {'federated_map', 'federated_map_all_equal', 'federated_apply'}
_EVALUATES = {'federated_eval_at_clients', 'federated_eval_at_server'}
_ASKS = {'federated_select', 'federated_secure_select'}
_PASSES_ON = {
  *('federated_zip_at_clients', 'federated_zip_at_server'),
  *('federated_value_at_clients', 'federated_value_at_server'),
  'federated_broadcast',
}


def _children(type_spec: tff.Type) -> Iterator[tuple[str | None, tff.Type]]:
  if isinstance(type_spec, tff.FederatedType):
    type_spec = type_spec.member
  if isinstance(type_spec, tff.StructType):
    yield from tff.structure.iter_elements(type_spec)


def _states(type_spec: tff.Type) -> Iterator[dict[str, tff.Type]]:
  """The fields of every structure with named fields in a type."""
  children = list(_children(type_spec))
  fields = {name: child for name, child in children if name is not None}
  if fields:
    yield fields
  for _, child in children:
    yield from _states(child)


def clips_or_zeroes(type_spec: tff.Type) -> bool:
  """Whether an aggregator with this type of state clips or zeroes values."""
  return any(
    name in fields for fields in _states(type_spec) for name in _ROBUST
  )


def _has_schedule(fields: Mapping[Any, tff.Type]) -> bool:
  """Whether a state has the fields of `schedule_state`."""
  kinds = ({'theta', 'initial_variance'}, {'rounds', 'variances'})
  return any(kind <= fields.keys() for kind in kinds)


def _has_noise(type_spec: tff.Type) -> bool:
  return any(_has_schedule(fields) for fields in _states(type_spec))


def _is_local(fields: dict[str, tff.Type]) -> bool:
  """Whether a state belongs to noise that clients add."""
  return 'inner' in fields and _has_schedule(fields)


class _Parts(NamedTuple):
  """A structure of values, each with what it depends on.

  Attributes:
    parts: Name (or None) and value of each part.
  """

  parts: list[tuple[str | None, Any]]


# What a value depends on: a `frozenset` of the tags above, `_Parts`, or a
# function.
_Value = Any
# Name, type and tags of a tensor.
_Leaf = tuple[str, tff.Type, frozenset[str]]


def _tags(value: _Value) -> frozenset[str]:
  """All that a value depends on; for a function, without its argument."""
  if isinstance(value, _Parts):
    return frozenset().union(*(_tags(part) for _, part in value.parts))
  return _tags(value(frozenset())) if callable(value) else value


def _computed(value: _Value) -> frozenset[str]:
  """What every result of a TensorFlow computation depends on."""
  return _tags(value) - {_OLD_ROUND}


def _part(value: _Value, name: str | int | None) -> _Value:
  """A part of a structure; the whole value if its parts are not known."""
  if not isinstance(value, _Parts):
    return value
  if isinstance(name, int):
    return value.parts[name][1]
  return dict(value.parts).get(name, _tags(value))


def _leaves(
  type_spec: tff.Type, value: _Value, name: str | None = None
) -> Iterator[_Leaf]:
  """Yields every tensor of a value."""
  if isinstance(type_spec, tff.FederatedType):
    type_spec = type_spec.member
  if not isinstance(type_spec, tff.StructType):
    yield name or 'a number without a name', type_spec, _tags(value)
  for i, (own, child) in enumerate(_children(type_spec)):
    yield from _leaves(child, _part(value, i), own or name)


def _before_the_round(type_spec: tff.Type) -> _Value:
  """A state as a value; the fields of a schedule in it stand for the noise."""
  if isinstance(type_spec, tff.FederatedType):
    type_spec = type_spec.member
  if not isinstance(type_spec, tff.StructType):
    return frozenset()
  children = list(_children(type_spec))
  of_schedule = _has_schedule(dict(children))
  return _Parts(
    [
      (
        name,
        frozenset({_NOISE, _OLD_ROUND} if name == 'round' else {_NOISE})
        if of_schedule and isinstance(child, tff.TensorType)
        else _before_the_round(child),
      )
      for name, child in children
    ]
  )


class _Round:
  """The dependencies in a round of a process.

  A TensorFlow computation is a black box: every output depends on every input.

  Attributes:
    result: What the parts of the round's result depend on.
    result_type: The type of the result.
    sent: Type and tags of each tensor that leaves clients.
  """

  def __init__(self, process: tff.templates.IterativeProcess):
    signature = process.next.type_signature
    arguments = list(tff.structure.iter_elements(signature.parameter))
    (state_name, state_type), *of_clients = arguments
    self.sent: list[tuple[tff.Type, frozenset[str]]] = []
    self.result_type = signature.result
    self.result = self._value(process.next.to_building_block(), {})(
      _Parts(
        [
          (state_name, _before_the_round(state_type)),
          *((name, frozenset({_DATA})) for name, _ in of_clients),
        ]
      )
    )

  def leaves(self, *path: str) -> list[_Leaf]:
    """The `_leaves` of a part of the result; none if there is no such part."""
    type_spec, value = self.result_type, self.result
    for name in path:
      children = dict(_children(type_spec))
      if name not in children:
        return []
      type_spec, value = children[name], _part(value, name)
    return list(_leaves(type_spec, value))

  def others(self) -> Iterator[tuple[str, list[_Leaf]]]:
    """Other parts of a learning process's result, except the aggregator's.

    The aggregator's state and metrics are recognized by their fields. A trusted
    server may have the counts among them.
    """
    of_kind = dict(_children(self.result_type))
    if 'metrics' not in of_kind:
      return
    for kind in ('state', 'metrics'):
      value = _part(self.result, kind)
      parts = list(_children(of_kind[kind]))
      if not parts:
        yield kind, list(_leaves(of_kind[kind], value))
      for i, (name, child) in enumerate(parts):
        if name != 'aggregator' and (kind, name) not in _OF_CLIENTS:
          yield f'{name or i} of {kind}', list(_leaves(child, _part(value, i)))

  def _value(self, block: Any, scope: Mapping[str, _Value]) -> _Value:
    """What a TFF building block depends on."""
    kinds = tff.framework
    values: dict[type, Callable[[], _Value]] = {
      kinds.Reference: lambda: scope[block.name],
      kinds.Selection: lambda: _part(
        self._value(block.source, scope),
        block.index if block.name is None else block.name,
      ),
      kinds.Struct: lambda: _Parts(
        [
          (name, self._value(element, scope))
          for name, element in tff.structure.iter_elements(block)
        ]
      ),
      kinds.Block: lambda: self._after_locals(block, scope),
      kinds.Lambda: lambda: (
        lambda argument: self._value(
          block.result, {**scope, block.parameter_name: argument}
        )
      ),
      kinds.Call: lambda: self._called(block, scope),
      kinds.Intrinsic: lambda: functools.partial(self._intrinsic, block),
      kinds.CompiledComputation: lambda: _computed,
    }
    # Literals and placements depend on nothing.
    return values.get(type(block), frozenset)()

  def _after_locals(self, block: Any, scope: Mapping[str, _Value]) -> _Value:
    for name, local in block.locals:
      scope = {**scope, name: self._value(local, scope)}
    return self._value(block.result, scope)

  def _called(self, block: Any, scope: Mapping[str, _Value]) -> _Value:
    argument: _Value = frozenset()
    if block.argument is not None:
      argument = self._value(block.argument, scope)
    function = self._value(block.function, scope)
    if callable(function):
      return function(argument)
    return _tags(function) | _tags(argument)

  def _intrinsic(self, block: Any, argument: _Value) -> _Value:
    if block.uri in _APPLIES and isinstance(argument, _Parts):
      (_, function), (_, value) = argument.parts
      return function(value) if callable(function) else _tags(argument)
    if block.uri in _EVALUATES and callable(argument):
      return argument(frozenset())
    if block.uri in _PASSES_ON:
      return argument
    if block.uri in _ASKS:
      # The keys that clients select by are sent, too.
      _, keys = next(_children(block.type_signature.parameter))
      self.sent += [leaf[1:] for leaf in _leaves(keys, _part(argument, 0))]
    # All others send values from clients to the server, or are functions.
    self._send(block.type_signature, argument)
    return _tags(argument)

  def _send(self, signature: tff.FunctionType, argument: _Value) -> None:
    def at(type_spec, placement):
      return (
        isinstance(type_spec, tff.FederatedType)
        and type_spec.placement is placement
      )

    if not at(signature.result, tff.SERVER):
      return
    sent = [(signature.parameter, argument)]
    if not isinstance(signature.parameter, tff.FederatedType):
      sent = [
        (child, _part(argument, i))
        for i, (_, child) in enumerate(_children(signature.parameter))
      ]
    for type_spec, value in sent:
      if at(type_spec, tff.CLIENTS):
        self.sent += [leaf[1:] for leaf in _leaves(type_spec, value)]


def _names(
  leaves: list[_Leaf],
  condition: Callable[[frozenset[str]], bool],
) -> str:
  """The names of the tensors whose tags meet a condition."""
  return ', '.join(
    sorted({name for name, _, tags in leaves if condition(tags)})
  )


def _is_data(tags: frozenset[str]) -> bool:
  return _DATA in tags


def _is_bare(tags: frozenset[str]) -> bool:
  """Whether these are the tags of data without any noise."""
  return _DATA in tags and _NOISE not in tags


def _beside_the_update(found: _Round) -> Iterator[str]:
  """Parts of a result that come from clients, but not by the aggregator."""
  metrics, *states = _OF_CLIENTS
  if names := _names(found.leaves(*metrics), _is_data):
    yield (
      f'training metrics ({names}), unless metrics_aggregator is '
      'federated.withheld_metrics'
    )
  # Even with noise it would be a second release, which no schedule counts.
  for state in states:
    if names := _names(found.leaves(*state), _is_data):
      yield (
        f'state of {state[-1]} ({names}), in which the algorithm keeps what '
        'clients send, as Mime Lite does'
      )
  for name, leaves in (('result', found.leaves('result')), *found.others()):
    if names := _names(leaves, _is_bare):
      yield f'{name} ({names}), which has no noise'


def _adapting(type_spec: tff.Type, value: _Value) -> Iterator[str]:
  """Names of the values that clients change inside noisy queries.

  Such values may move records, which were within the clip, to anywhere.
  """
  children = list(_children(type_spec))
  fields = dict(children)
  if 'query_state' in fields and _has_noise(fields['query_state']):
    inside = _part(value, 'agg_state')
    for name, _, tags in _leaves(fields['agg_state'], inside):
      if _is_data(tags):
        yield name
  for i, (_, child) in enumerate(children):
    yield from _adapting(child, _part(value, i))


def _unnoised(
  found: _Round, state_type: tff.Type, public_weights: bool
) -> Iterator[str]:
  """What leaves clients without noise, and how to prevent it."""
  beside = [
    *_beside_the_update(found),
    *_in_aggregator(state_type, public_weights),
  ]
  yield from beside
  if beside or not any(_is_local(fields) for fields in _states(state_type)):
    return
  others = {
    str(type_spec)
    for type_spec, tags in found.sent
    # A weight is a scalar; a value with dimensions is not a weight.
    if _is_bare(tags) and not (public_weights and type_spec.shape == ())
  }
  if others:
    yield f'other values of type {", ".join(sorted(others))}'


def _in_aggregator(state_type: tff.Type, public_weights: bool) -> Iterator[str]:
  """What the aggregator sends without noise, according to its state."""
  for fields in _states(state_type):
    for norm, count in _ROBUST.items():
      inner = fields.get('inner_agg')
      if norm not in fields or inner is None:
        continue
      # With central noise, the trusted server may have the count.
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
  """Raises an error if clients' data leave a process without noise.

  Use it in the tests of your own pipeline. It recognizes aggregators by their
  state, and other values by whether they depend on clients. docs/DROP_IN.md
  lists what this function cannot find.

  Args:
    process: A process with a `TimeVaryingGaussianFactory` or a
      `GeometricGaussianSumQuery` somewhere in its aggregator.
    public_weights: Whether the weights of a weighted mean are public and do not
      depend on the clients' data. TFF's client work sets the weight of an
      update that is not finite to 0.

  Raises:
    ValueError: If the process has no noise of this library, or only a part of a
      query has it; if a round does not advance the noise schedule; if a norm
      that adapts to the clients' values determines, outside of the noise or
      inside a query, what is clipped or zeroed; if noisy sums are divided by a
      sum of weights without noise; or if training metrics, a state of the
      client work, counts of clipped or zeroed clients, weights or other values
      leave the clients without noise. One line lists all problems.
  """
  try:
    state_type = process.initialize.type_signature.result
  except AttributeError:
    raise ValueError(
      'process must be a learning process or an aggregation process (the'
      f' result of create of a factory), got {type(process).__name__}'
    ) from None
  if not _has_noise(state_type):
    raise ValueError(
      'process must contain an aggregator with noise of tvdp_tf, got none'
    )
  for fields in _states(state_type):
    _check_adaptive(fields)
    _check_query(fields)
    if 'value_sum_process' in fields and _has_noise(
      fields['value_sum_process']
    ):
      raise ValueError(
        'a noisy sum must be divided by a fixed number, not by a sum of'
        ' weights: use tensorflow_privacy.NormalizedQuery instead of'
        ' MeanFactory'
      )
  found = _Round(process)
  if _names(found.leaves('state'), lambda tags: _OLD_ROUND in tags):
    raise ValueError(
      "the state after a round must hold the aggregator's new state, got one"
      ' whose noise schedule is still at the previous round'
    )
  if adapting := {*_adapting(found.result_type, found.result)}:
    raise ValueError(
      'the state that a query aggregates with must not adapt to the values of'
      ' the clients, which the noise does not hide there, got'
      f' {", ".join(sorted(adapting))} in its state'
    )
  unnoised = [*_unnoised(found, state_type, public_weights)]
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
        f'{name} must be a constant, got one that adapts to the values of the'
        ' clients: the noise does not hide them, and they change what other'
        ' clients contribute'
      )


def _check_query(fields: dict[str, tff.Type]) -> None:
  """Refuses a query of queries, some of which may have no noise.

  It also refuses a query that may adapt its clip around noise that clients add.
  """
  query = fields.get('query_state')
  if query is None:
    return
  if not _has_noise(query):
    names = {name for name, _, _ in _leaves(query, frozenset())}
    if _has_noise(fields['agg_state']) and not names <= _CONSTANTS:
      raise ValueError(
        'a query around an aggregator with noise must have a constant clip, as'
        f' GaussianSumQuery has, got one with the state {query}'
      )
    return
  own = dict(_children(query))
  # A NormalizedQuery has its query's state in this field.
  normalized = dict(_children(own.get('numerator_state', query)))
  if not (_has_schedule(own) or _has_schedule(normalized)):
    raise ValueError(
      'query must be a GeometricGaussianSumQuery, alone or in a'
      f' NormalizedQuery, got one with the state {query}'
    )
