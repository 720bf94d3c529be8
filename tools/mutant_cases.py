"""The mutants of `tools.mutants`: what is broken, and which tests see it.

A change is given by the text before it, which stands in its file just once.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
  """One change to one file.

  Attributes:
    path: The file, from the root.
    before: Text that stands in it just once.
    after: What takes its place.
    tests: Arguments of pytest: tests of which one should fail.
  """

  path: str
  before: str
  after: str
  tests: tuple[str, ...]


def mutated(mutant: Mutant, text: str) -> str:
  """The text of a file with the change.

  Raises:
    ValueError: If what is to be changed does not stand in it just once.
  """
  count = text.count(mutant.before)
  if count != 1:
    raise ValueError(
      f'{mutant.path} must hold {mutant.before!r} once, got {count} times'
    )
  return text.replace(mutant.before, mutant.after)


_LEARNING = 'tests/learning/'
_CLIPPING = (
  f'{_LEARNING}private_training_test.py',
  f'{_LEARNING}discrete_noise_test.py',
  f'{_LEARNING}hostile_models_test.py',
  f'{_LEARNING}clipping_arithmetic_test.py',
)
# The quick ones first: the first that fails ends the run.
_LIST = (f'{_LEARNING}ghost_list_test.py',)
_VIEWS = f'{_LEARNING}views_test.py'
_ZOO = (f'{_LEARNING}hostile_models_test.py',)
_ONEDNN = f'{_LEARNING}onednn_test.py'
_NOISE = (
  f'{_LEARNING}noise_test.py',
  f'{_LEARNING}discrete_noise_test.py',
  f'{_LEARNING}private_training_test.py',
)
_DISCRETE = (
  f'{_LEARNING}discrete_gaussian_parts_test.py',
  f'{_LEARNING}discrete_gaussian_test.py',
)
_SENSITIVITY = (
  'tests/privacy/sensitivity_test.py',
  'tests/privacy/noise_distance_test.py',
  f'{_LEARNING}clipping_arithmetic_test.py',
)
_QUERY = (
  'tests/federated/sum_query_test.py',
  'tests/federated/discrete_query_test.py',
)
_LEDGER = (
  'tests/privacy/ledger_test.py',
  'tests/privacy/ledger_accounting_test.py',
  'tests/privacy/ledger_shared_test.py',
  'tests/privacy/ledger_retry_test.py',
)
_SHARES = (
  'tests/mechanisms/distributed_test.py',
  'tests/federated/distributed_noise_test.py',
)
_PLANS = (
  'tests/training/proven_epsilon_test.py',
  'tests/mechanisms/plans_test.py',
)


def _of(path: str, tests: tuple[str, ...], *changes: tuple[str, str]):
  return [Mutant(path, before, after, tests) for before, after in changes]


MUTANTS = [
  *_of(
    'tvdp_tf/_environment.py',
    ('tests/environment_test.py',),
    ('version <= LAST_WITH_ONEDNN', 'True'),
  ),
  *_of(
    'tvdp_tf/learning/clipping.py',
    _CLIPPING,
    ('tf.maximum(tf.sqrt(squares), clip)', 'tf.maximum(squares, clip)'),
    (
      'tf.logical_and(present, tf.math.is_finite(squares))',
      'tf.math.is_finite(squares)',
    ),
    (
      'tf.logical_and(present, tf.math.is_finite(squares))',
      'present',
    ),
    (
      'factors = tf.where(used, factors, tf.zeros_like(factors))',
      'pass',
    ),
    (
      'return tf.where(finite, quick, slow)',
      'return slow',
    ),
    ('tf.where(finite, quick, slow)', 'quick'),
    ('tf.square(tensor)', 'tf.square(tensor) / 4'),
    ('return 1 + terms * 2.0**-52, terms', 'return 0.999, terms'),
    ('factor = 1 + (terms + 4)', 'factor = 1 - (terms + 4)'),
    ('return sums, factor, terms * 2.0**-125', 'return sums, factor, 0.0'),
    ('or terms > _MOST_IN_FLOAT32', ''),
    (
      '1 + roundings * sensitivity.relative_rounding(count, microbatch_size)',
      '1 - roundings * sensitivity.relative_rounding(count, microbatch_size)',
    ),
    (
      'return end, total + addend',
      'return end, tf.cast(tf.cast(total, tf.float32)'
      ' + tf.cast(addend, tf.float32), tf.float64)',
    ),
    ('tf.minimum(start + at_once, num_examples)', 'start + at_once - 1'),
    ('num_examples <= at_once, lambda', 'num_examples <= 2 * at_once, lambda'),
    ('if microbatch_size != MICROBATCH_SIZE', 'if False'),
    ('count - count % MICROBATCH_SIZE', 'count - count % 32'),
    ('[-1, MICROBATCH_SIZE, tensor', '[1, self._whole, tensor'),
    (
      'whole + tf.matmul(left_rest, right_rest, transpose_a=True)',
      'whole',
    ),
    (
      'tf.reduce_sum(within, axis=0) + tf.reduce_sum(rest, axis=0)',
      'tf.reduce_sum(within, axis=0)',
    ),
    (
      'divisor = tf.cast(tf.shape(prepared.labels)[0], tf.float64)',
      'divisor = tf.cast(tf.shape(prepared.labels)[0], tf.float64) / 2',
    ),
    (
      'tf.where(used[:, tf.newaxis], gradient, tf.zeros_like(gradient))',
      'gradient',
    ),
    ('tf.where(used, part, tf.zeros_like(part))', 'part'),
  ),
  *_of(
    'tvdp_tf/learning/clipping.py',
    (f'{_LEARNING}full_precision_test.py',),
    (
      'enable_tensor_float_32_execution(False)',
      'enable_tensor_float_32_execution(True)',
    ),
    ('.upper() not in allowed', '.upper() in ()'),
    ("name.startswith('auto_mixed_precision') and value", 'False'),
  ),
  *_of(
    'tvdp_tf/learning/ghost_clipping.py',
    _LIST + _CLIPPING,
    ('* (of_input + 1.0 * layer.use_bias)', '* 1.0'),
    ('* (of_input + 1.0 * layer.use_bias)', '* of_input'),
    ('not upstream.weights and not model.is_random', 'not upstream.weights'),
    ('not upstream.weights and not model.is_random', 'not model.is_random'),
    ('place: prepared[:, column]', 'place: prepared[:, 0]'),
    (
      'tf.reduce_all(tf.math.is_finite(squares))',
      'tf.constant(True)',
    ),
    (
      'squares += [next(norms) for _ in parts]',
      'squares += [next(norms) for _ in parts][:1]',
    ),
    ('squares.append(of_delta *', 'squares.append(0 * of_delta *'),
    ('and len(layer.input_shape) == 4', 'and len(layer.input_shape) >= 4'),
    ('len(layer.input_shape) == 2', 'len(layer.input_shape) >= 2'),
    ('and layer.groups == 1', ''),
    ('in _ACTIVATIONS', 'is not NotImplemented'),
    ('known = type(layer) in _WEIGHTLESS_LAYERS', 'known = True'),
    ('and len(layer.inbound_nodes) == 1', ''),
    ("and layer.dtype_policy.name == 'float32'", ''),
    ('layer.axis % len(shape) == 0', 'layer.axis == 0'),
    ('and _is_kerass_own(type(layer))', ''),
    ('not np.array_equal(given, own, equal_nan=True)', 'False'),
    ('return copied if _is_listed(copied, loss) else None', 'return copied'),
    (
      'return copied if _is_listed(copied, loss) else None',
      'return model if _is_listed(copied, loss) else None',
    ),
    ('and not any(hasattr(type(loss), name) for name in vars(loss))', ''),
    ("and getattr(loss, 'fn', _CROSS_ENTROPY) is _CROSS_ENTROPY", ''),
    ('and _is_kerass_own(type(loss))', ''),
    ('type(loss) in _LOSSES', 'True'),
    ("kind.__module__.startswith('keras.src.engine.')", 'True'),
    (
      'tf.where(shaped(used, tensor), tensor, 0)',
      'tensor',
    ),
    ('model.ops <= _OPS', 'True'),
  ),
  *_of(
    'tvdp_tf/learning/ghost_clipping.py',
    (_VIEWS,),
    ('sensitivity.MOST_MICROBATCHES // self._views', '16'),
    (
      'squares.append(view_gradients.squared_norms_of_sums(value, of_terms))',
      'squares.append(of_terms[0] * of_terms[2])',
    ),
  ),
  *_of(
    'tvdp_tf/learning/view_gradients.py',
    (_VIEWS,),
    ('features, tf.reverse(features, axis=[2])', 'features, features'),
    ('tf.add_n(of_views) / len(of_views)', 'tf.add_n(of_views)'),
    (', axis=1), [-1, *features', ', axis=0), [-1, *features'),
    ('other - share * one', 'other'),
    ('first + share * second', 'first'),
    ('tf.where(tf.math.is_finite(share), share, 0)', 'share * 0'),
    ('+ 2 * crossed', ''),
    ('+ 2 * crossed', '- 2 * crossed'),
    ('tf.abs(product) + rounding + vanished', 'product + rounding'),
    ('tf.abs(product) + rounding + vanished', 'tf.abs(product)'),
    ('tf.where(tf.math.is_finite(product), bound, longest)', 'bound'),
  ),
  *_of(
    'tvdp_tf/learning/views.py',
    (_VIEWS,),
    ('len(input_shape) != 3', 'False'),
  ),
  *_of(
    'tvdp_tf/learning/example_independence.py',
    _LIST + _ZOO,
    ('if not _same_outputs(predict, weights, features):', 'if False:'),
    ('if gap > _TOLERANCE * clip * len(labels):', 'if False:'),
  ),
  *_of(
    'tvdp_tf/learning/functional.py',
    (f'{_LEARNING}functional_test.py', *_ZOO),
    ('definition is None or definition.is_stateful', 'False'),
    ('found = node.op in _OTHER_OPS', 'found = False'),
    ('if types & _HALF_TYPES:', 'if False:'),
    (
      'policy is not None and policy.compute_dtype not in _FULL_TYPES',
      'False',
    ),
    (
      'tf.as_dtype(weight.dtype) not in (tf.float32, tf.float64)',
      'False',
    ),
    ('if model.non_trainable_weights:', 'if False:'),
    (
      'tf.clip_by_value(indices, 0, layer.input_dim - 1)',
      'indices',
    ),
  ),
  *_of(
    'tvdp_tf/learning/chacha20.py',
    (f'{_LEARNING}chacha20_test.py',),
    ('_DOUBLE_ROUNDS = 10', '_DOUBLE_ROUNDS = 4'),
    (
      'for first, second in ((16, 12), (8, 7)):',
      'for first, second in ((16, 12),):',
    ),
    ('row + word for row, word in', 'word for row, word in'),
    (
      'blocks = index // small * size + index % small * _COMPILED_TILE',
      'blocks = index // small * size',
    ),
    ('first = start + tf.cast(index, tf.int64) * size', 'first = start'),
    ('low, high = tf.split(rows, 2, axis=-2)', 'low = high = rows[..., :8, :]'),
    ('tf.broadcast_to(nonce, [shape[1]])', 'tf.zeros_like(counters)'),
  ),
  *_of(
    'tvdp_tf/learning/discrete_gaussian.py',
    _DISCRETE,
    (
      'whole = [int(share) for share in shares]',
      'whole = [int(share + 1) for share in shares]',
    ),
    (
      'return values, y * (base + base + y), first',
      'return values, y * (base + y), first',
    ),
    ('y = y - negative', 'y = tf.identity(y)'),
    (
      'negative = _shifted(words, 63)  # 0 or -1.',
      'negative = tf.zeros_like(words)',
    ),
    ('first <= _shifted(gammas,', 'first < _shifted(gammas,'),
    (
      '    tf.equal(coarse, _UNDECIDED),\n    first <=',
      '    tf.zeros_like(first, tf.bool),\n    first <=',
    ),
    ('first < whole, tf.logical_and(', 'first <= whole, tf.logical_and('),
    (
      'tf.logical_and(tf.equal(first, whole), second < part)',
      'tf.zeros_like(first, tf.bool)',
    ),
    (
      'happens = _event(gammas, index,',
      'happens = _event(gammas, tf.ones_like(index),',
    ),
    ('return values, tf.logical_not(odd)', 'return values, tf.ones_like(odd)'),
    ('filled < missing', 'tf.constant(False)'),
    ('block + blocks', 'block'),
    ('begin + count <= tf.size(self.ready, tf.int64),', 'tf.constant(True),'),
    ('surplus = 16 + size // 128 + math.isqrt(size)', 'surplus = size // 128'),
    (
      'passed = tf.logical_and(at_first, low <= second',
      'passed = tf.logical_and(at_first, low > second',
    ),
    ("side='left', out_type", "side='right', out_type"),
    (
      'return _traced_draw(noise_key, size, tf.cast(release, tf.int64))',
      'return _traced_draw(noise_key, size, tf.cast(0, tf.int64))',
    ),
  ),
  # What oneDNN's kernels mix.
  *_of(
    'tvdp_tf/learning/onednn.py',
    (f'{_LEARNING}keras3_test.py', _ONEDNN),
    ('version > _environment.LAST_WITH_ONEDNN', 'False'),
    ("for form in ('', 'Grad')", "for form in ('Grad',)"),
    ('rewriting.OFF', 'rewriting.ON'),
    ("{'remapping': False}", '{}'),
    ('races = bool(ops & RACING_OPS)', 'races = False'),
    ("['parallel_iterations'].i = 1", "['parallel_iterations'].i = 10"),
    ("and node.op == 'Identity'", 'and False'),
    ('any(map(self._may_be_convolved, self._results))', 'False'),
    ('source.op in _CONVOLUTIONS | _CALLS', 'source.op in _CALLS'),
    ('op_def_registry.get(source.op) is None', 'False'),
  ),
  *_of(
    'tvdp_tf/learning/clipping.py',
    (_ONEDNN,),
    ('_ITERATIONS_AT_ONCE = 1', '_ITERATIONS_AT_ONCE = 10'),
  ),
  *_of(
    'tvdp_tf/learning/functional.py',
    (f'{_LEARNING}keras3_test.py', _ONEDNN),
    ('onednn.require_sound()', 'pass'),
    ('node.op in onednn.RACING_OPS', 'False'),
    ("attributes['_fused'] = False", 'pass'),
    ("attributes['_fused'] = fused", 'pass'),
  ),
  *_of(
    'tvdp_tf/learning/example_independence.py',
    (f'{_LEARNING}keras3_test.py',),
    ('onednn.require_sound()', 'pass'),
  ),
  *_of(
    'tvdp_tf/runtimes/compiled/graph_function.py',
    ('tests/runtimes/compiled/graph_function_test.py',),
    ('self._turn = _ALONE', 'pass'),
    ('config_proto=onednn.CALL_OPTIONS', "config_proto=b''"),
    ('    onednn.kept_apart(definition)\n', ''),
  ),
  *_of(
    'tvdp_tf/runtimes/graph_import.py',
    ('tests/runtimes/worker/client_blocks_test.py',),
    ('by_others=True', 'by_others=False'),
  ),
  *_of(
    'tvdp_tf/runtimes/worker/client_blocks.py',
    ('tests/runtimes/worker/client_blocks_test.py',),
    ('1 if import_add_client.waits else', 'parallel_clients or'),
  ),
  *_of(
    'tvdp_tf/learning/noise.py',
    _NOISE,
    ('tf.cast(stddev, tf.float64) * standard', '0.5 * stddev * standard'),
    ('counter=tf.stack([start, key[1]])', 'counter=tf.stack([start, start])'),
    ('tf.cast(release, tf.uint64), tf', 'tf.cast(0, tf.uint64), tf'),
    (
      'tf.where(is_last, uniforms * finer(), uniforms)',
      'uniforms',
    ),
    ('tf.reduce_any(is_last)', 'tf.constant(False)'),
    ('words=3)[2]', 'words=3)[0]'),
    (
      'steps = _steps(value, noise_stddev) * (1 - 2.0**-51)',
      'steps = tf.round(_steps(value, noise_stddev))',
    ),
    (
      'math.sqrt(size) * noise_multiplier / discrete_gaussian.GRID_STDDEV',
      '0.0 * size * noise_multiplier',
    ),
    ('flat.concatenated(steps) + drawn', 'flat.concatenated(steps)'),
    ('noise_key, flat.size(steps), release', 'noise_key, flat.size(steps), 0'),
    ('tf.clip_by_value(steps, -_MOST_STEPS, _MOST_STEPS)', 'steps'),
    (
      'return np.frombuffer(secrets.token_bytes(16), np.int64)',
      'return np.array([1, 2], np.int64)',
    ),
  ),
  *_of(
    'tvdp_tf/learning/private_training.py',
    _NOISE,
    ('clip *= 1 - _share_of_grid', 'clip *= 1 + 0 * _share_of_grid'),
    ('release=index', 'release=0'),
    (' distribution=noise_distribution,', " distribution='gaussian',"),
    ('None if drawn is None else drawn[index]', 'drawn[0]'),
    (
      'tf.reshape(drawn, [num_steps, size])',
      'tf.reshape(drawn, [num_steps, size]) // 2',
    ),
    ('moved = factor * clip /', 'moved = 100 * factor * clip /'),
    (
      'factor = 2 if adjacency == sensitivity.REPLACE_ONE else 1',
      'factor = 2',
    ),
  ),
  *_of(
    'tvdp_tf/privacy/sensitivity.py',
    _SENSITIVITY,
    (
      'microbatch_size * (microbatch_size + 16) * 2.0**-24',
      'microbatch_size * 2.0**-24',
    ),
    (
      'within += MOST_MICROBATCHES**2 * microbatch_size * 2.0**-24',
      'pass',
    ),
    ('if not LEAST_CLIP <= clip <= MOST_CLIP:', 'if False:'),
    ('value=factor * clip / examples', 'value=clip / examples'),
    (
      'name=GRADIENT_SUM,\n    value=factor * clip,',
      'name=GRADIENT_SUM,\n    value=clip,',
    ),
    (
      'name=UPDATE,\n    value=factor * clip,',
      'name=UPDATE,\n    value=clip,',
    ),
    ('return within + microbatches * examples * 2.0**-52', 'return within'),
  ),
  *_of(
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
  *_of(
    'tvdp_tf/federated/bounded_value.py',
    _QUERY,
    ('limit / tf.maximum(norm, limit)', '0 * norm + 1'),
    (
      'return zero_unless(tf.math.is_finite(norm), tensors)',
      'return list(tensors)',
    ),
  ),
  *_of(
    'tvdp_tf/privacy/spending.py',
    (*_LEDGER, 'tests/privacy/spending_test.py'),
    ('return part * part', 'return part'),
    ('part = part * count', 'part = part * 1'),
    ('fits = after * (1 + 2.0**-50) <= 1 - _NEAR', 'fits = after <= 1 + 1e-3'),
    (
      'fits[i] = self._epsilon(releases) <= self.target_epsilon',
      'fits[i] = True',
    ),
    (
      'self._spent[clients] = (self._spent[clients] + cost) * (1 + 2.0**-50)',
      'self._spent[clients] = cost',
    ),
    (
      'if 0.0 in releases:\n      return math.inf\n    mu',
      'if 0.0 in releases:\n      return 0.0\n    mu',
    ),
    ('return total <= 1 << _FIXED_POINT_BITS', 'return True'),
    ('np.isnan(part), np.inf,', 'np.isnan(part), 0.0,'),
    (
      'return epsilon if epsilon >= total else math.nextafter(epsilon,'
      ' math.inf)',
      'return epsilon',
    ),
    ('+= count * amounts**-2.0', '+= amounts**-2.0'),
    ('spent = self.squared_mu * ROUNDED_UP', 'spent = self.squared_mu'),
    ('+= count * _round_moment(amount, rate, order)', '+= 0'),
    ('total += _round_moment(multiplier, self._rate, order)', 'total += 0'),
    ('more, max(rate, self._rate))', 'more, rate)'),
  ),
  *_of(
    'tvdp_tf/privacy/_ledger_state.py',
    _LEDGER,
    ('if fits.all():', 'if True:'),
    ('self.spending.charge(*release)', 'pass'),
    ('self._run_spendings[record.run].charge(*release)', 'pass'),
    (
      'if _release_at(record, i) != _release_at(earlier, then):',
      'if False:',
    ),
    ('self._records.add(record, fresh)', 'pass'),
    (
      'if len(set(record.noise_digests)) != len(record.noise_digests):',
      'if False:',
    ),
    ('if record.attempt != expected:', 'if False:'),
  ),
  *_of(
    'tvdp_tf/privacy/_released.py',
    (*_LEDGER, 'tests/privacy/released_test.py'),
    ('self._counts[last[same]] += count', 'pass'),
    ('self._counts[at] < 2**62', 'self._counts[at] > 0'),
    ('self._before[entries] = last[new]', 'self._before[entries] = -1'),
    ('self._recent[digest] = number', 'pass'),
    ('if self._kept[number].has(digests[i]):', 'if False:'),
    ('self._keys.append(keys)', 'self._keys = [keys]'),
  ),
  *_of(
    'tvdp_tf/mechanisms/contract.py',
    _PLANS,
    (
      'self.spending.record(rate=self._sampling_rate, **self.entry(releases))',
      'pass',
    ),
    ('if self.as_planned or not self.header.enforced:', 'if True:'),
    ('if not self._reaches_far_enough:', 'if False:'),
    (
      'if self.settings.seed is not None:\n      return False, (',
      'if False:\n      return False, (',
    ),
  ),
  *_of(
    'tvdp_tf/federated/distributed_noise.py',
    _SHARES,
    (
      'noise.truncated if self._truncates else noise.nearest',
      'noise.nearest',
    ),
    ('if self._divisor is None:', 'if True:'),
  ),
  *_of(
    'tvdp_tf/mechanisms/distributed.py',
    _SHARES,
    (
      'return self.settings.users_per_round - self._missing',
      'return self.settings.users_per_round',
    ),
    ('left = max(0, len(clients) - self._missing)', 'left = len(clients)'),
    ('self.l2_norm_clip * (1 - _GRID_ROUNDING)', 'self.l2_norm_clip'),
    ('update_rule(l2_norm_clip, adjacency)', 'update_rule(l2_norm_clip / 2)'),
    (
      'if (share > _GRID_ROUNDING * self._sensitivity).any():',
      'if False:',
    ),
  ),
  *_of(
    'tvdp_tf/privacy/noise_distance.py',
    _SHARES,
    ('(sensitivity / math.sqrt(shares))', '(sensitivity / shares)'),
  ),
  *_of(
    'tvdp_tf/privacy/noise_distance.py',
    _SENSITIVITY,
    ('math.nextafter(delta - share, 0.0)', 'delta'),
  ),
  *_of(
    'tvdp_tf/training/plain_process.py',
    ('tests/training/plain_process_test.py',),
    ('self._made_for != _guarantees(plan)', 'False'),
  ),
  *_of(
    'tvdp_tf/training/results.py',
    ('tests/training/resume_test.py',),
    ('self._ledger.reread()', 'pass'),
    ('self._plan.retake(self._recorder.charged())', 'pass'),
  ),
]
