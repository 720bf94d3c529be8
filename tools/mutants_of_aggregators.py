"""Mutants of the aggregators; see `mutant_cases`."""

from tools.mutants_of_learning import Case

_QUERY = (
  'tests/federated/sum_query_test.py',
  'tests/federated/discrete_query_test.py',
)
_VALUES = ('tests/federated/value_types_test.py',)
_NESTING = 'tests/federated/nesting_test.py'
_SHARES = (
  'tests/mechanisms/distributed_test.py',
  'tests/federated/distributed_noise_test.py',
)

CASES: list[Case] = [
  (
    'tvdp_tf/federated/sum_query.py',
    _QUERY,
    (
      '[tf.cast(part, tf.float64) for part in tf.nest.flatten(record)],\n'
      "      params['l2_norm_clip'],",
      '[tf.cast(part, tf.float64) for part in tf.nest.flatten(record)],\n'
      '      None,',
    ),
    (
      'noise_multiplier * tf.constant(self._l2_norm_clip, tf.float64)',
      'tf.constant(self._l2_norm_clip, tf.float64)',
    ),
    ('schedule_state.next_round(global_state)', 'global_state'),
  ),
  (
    'tvdp_tf/federated/calibrated.py',
    ('tests/federated/calibrated_test.py',),
    ('_MARGIN = 1 - 1e-11', '_MARGIN = 1.0'),
    ('l2_norm_clip=clip,', 'l2_norm_clip=l2_norm_clip,'),
  ),
  (
    'tvdp_tf/federated/schedule_state.py',
    ('tests/federated/schedule_state_test.py',),
    (
      'return tf.where(fits, initial_variance * power, in_steps)',
      'return initial_variance * power',
    ),
    (
      'return tf.where(fits, initial_variance * power, in_steps)',
      'return in_steps',
    ),
    ('if not least >= _LEAST_STDDEV:', 'if False:'),
    ('variance >= sys.float_info.min', 'variance >= 0.0'),
    (
      'tf.logical_and(variance >= sys.float_info.min, variance < math.inf)',
      'variance >= sys.float_info.min',
    ),
    ('[has_round, is_noise]', '[has_round]'),
  ),
  (
    'tvdp_tf/federated/bounded_value.py',
    _QUERY,
    ('limit / tf.maximum(norm, limit)', '0 * norm + 1'),
    (
      'return zero_unless(tf.math.is_finite(norm), tensors)',
      'return list(tensors)',
    ),
  ),
  (
    'tvdp_tf/federated/distributed_noise.py',
    _SHARES,
    (
      'noise.truncated if self._truncates else noise.nearest',
      'noise.nearest',
    ),
    ('if self._divisor is None:', 'if True:'),
  ),
  (
    'tvdp_tf/federated/nesting.py',
    (
      f'{_NESTING}::AggregatorsTest',
      f'{_NESTING}::QueriesTest',
      f'{_NESTING}::AlgorithmsTest',
    ),
    (
      'any(_has_schedule(fields) for fields in _states(type_spec))',
      "any('query_state' in f or _has_schedule(f) for f in _states(type_spec))",
    ),
    ('if not (_has_schedule(own) or _has_schedule(normalized)):', 'if False:'),
    (
      'kinds.CompiledComputation: lambda: _computed,',
      'kinds.CompiledComputation: lambda: lambda _: frozenset(),',
    ),
    ('_OLD_ROUND} if name', '_NOISE} if name'),
    ('return _tags(value) - {_OLD_ROUND}', 'return _tags(value)'),
    ('self._send(block.type_signature, argument)', 'pass'),
    (
      'self._send(block.type_signature, argument)\n    return _tags(argument)',
      'self._send(block.type_signature, argument)\n    return frozenset()',
    ),
    (
      'and not (public_weights and type_spec.shape == ())',
      'and not public_weights',
    ),
    ('if names := _names(leaves, _is_bare):', "if names := '':"),
    (
      'if names := _names(found.leaves(*metrics), _is_data):',
      "if names := '':",
    ),
    ('if names := _names(found.leaves(*state), _is_data):', "if names := '':"),
    (
      'if names := _names(found.leaves(*state), _is_data):',
      'if names := _names(found.leaves(*state), _is_bare):',
    ),
  ),
  (
    'tvdp_tf/federated/bounded_value.py',
    _VALUES,
    ('scale >= _LEAST_SCALE', 'scale >= 0'),
    ('_DTYPES = (tf.float32,', '_DTYPES = (tf.bfloat16, tf.float32,'),
    ('_DTYPES = (tf.float32,', '_DTYPES = (tf.complex64, tf.float32,'),
    (
      "check_dtype(tensor.dtype, f'{tensor.dtype.name}{tensor.shape}')",
      'pass',
    ),
  ),
  (
    'tvdp_tf/federated/checked_mean.py',
    (*_VALUES, 'tests/federated/checked_mean_test.py'),
    (
      'tf.as_dtype(value_type.dtype) if is_tensor else None, got',
      'tf.as_dtype(value_type.dtype) if is_tensor else tf.float32, got',
    ),
    (
      'bounded_value.check_dtype(\n'
      '    tf.as_dtype(value_type.dtype) if is_tensor else None, got\n'
      '  )',
      'pass',
    ),
    (
      'if not tf.TensorShape(value_type.shape).is_fully_defined():',
      'if False:',
    ),
  ),
  (
    'tvdp_tf/federated/sum_query.py',
    _VALUES,
    ('    _check_dtypes(template)\n', ''),
    ('    _check_dtypes(record)\n', ''),
  ),
  (
    'tvdp_tf/federated/nesting.py',
    ('tests/federated/drop_in_test.py::NestingTest',),
    ('      if _is_data(tags):\n        yield name', '      pass'),
  ),
  (
    'tvdp_tf/federated/nesting.py',
    (f'{_NESTING}::SelectTest',),
    ('if block.uri in _ASKS:', 'if False:'),
  ),
  (
    'tvdp_tf/federated/nesting.py',
    ('tests/federated/drop_in_test.py::NestingTest',),
    ('and not names <= _CONSTANTS:', 'and False:'),
    ('and not names <= _CONSTANTS:', 'and names:'),
  ),
  (
    'tvdp_tf/federated/distributed_noise.py',
    ('tests/federated/distributed_noise_test.py',),
    (
      'noise_multiplier=noise_multiplier * tf.sqrt(share)',
      'noise_multiplier=noise_multiplier',
    ),
    ('noise_multiplier * tf.sqrt(share)', 'noise_multiplier * share'),
    (
      'tf.minimum(shares / self._honest, tf.constant(1.0, tf.float64))',
      'shares / self._honest',
    ),
  ),
  (
    'tvdp_tf/federated/aggregator.py',
    ('tests/federated/aggregator_test.py',),
    ('if l2_norm_clip < sensitivity.LEAST_CLIP:', 'if False:'),
  ),
]
