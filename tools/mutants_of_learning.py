"""Mutants of `tvdp_tf/learning`; `tools.mutant_cases` has the others.

They concern the code that isolates examples, that bounds their gradients, and
that draws the noise as it is accounted for.
"""

# (file, tests of which one should fail, changes: (text before, after)).
Case = tuple[str, tuple[str, ...], *tuple[tuple[str, str], ...]]

LEARNING = 'tests/learning/'
CLIPPING = (
  f'{LEARNING}private_training_test.py',
  f'{LEARNING}discrete_noise_test.py',
  f'{LEARNING}hostile_models_test.py',
  f'{LEARNING}clipping_arithmetic_test.py',
)
# Quick tests first, because the first failure ends the run.
LIST = (f'{LEARNING}ghost_list_test.py',)
VIEWS = f'{LEARNING}views_test.py'
_ZOO = (f'{LEARNING}hostile_models_test.py',)
_ONEDNN = f'{LEARNING}onednn_test.py'
_FAILING = (f'{LEARNING}failing_ops_test.py',)
_MODELS = (f'{LEARNING}functional_test.py',)
_NOISE = (
  f'{LEARNING}noise_test.py',
  f'{LEARNING}discrete_noise_test.py',
  f'{LEARNING}private_training_test.py',
)
_DISCRETE = (
  f'{LEARNING}discrete_gaussian_parts_test.py',
  f'{LEARNING}discrete_gaussian_test.py',
)

CASES: list[Case] = [
  (
    'tvdp_tf/learning/clipping.py',
    CLIPPING,
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
  (
    'tvdp_tf/learning/clipping.py',
    (f'{LEARNING}clipping_arithmetic_test.py',),
    ('normal = factors >= _LEAST_FACTOR', 'normal = factors >= 0'),
  ),
  (
    'tvdp_tf/learning/clipping.py',
    (f'{LEARNING}full_precision_test.py',),
    (
      'enable_tensor_float_32_execution(False)',
      'enable_tensor_float_32_execution(True)',
    ),
    ('.upper() not in allowed', '.upper() in ()'),
    ("name.startswith('auto_mixed_precision') and value", 'False'),
    ('if _clusters_by_xla(flags) or jit:', 'if jit:'),
    ('if _clusters_by_xla(flags) or jit:', 'if _clusters_by_xla(flags):'),
  ),
  (
    'tvdp_tf/learning/view_gradients.py',
    (VIEWS,),
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
  (
    'tvdp_tf/learning/views.py',
    (VIEWS,),
    ('len(input_shape) != 3', 'False'),
  ),
  (
    'tvdp_tf/learning/example_independence.py',
    LIST + _ZOO,
    ('if not _same_outputs(predict, weights, features):', 'if False:'),
    ('if gap > _TOLERANCE * clip * len(labels):', 'if False:'),
  ),
  (
    'tvdp_tf/learning/functional.py',
    (f'{LEARNING}functional_test.py', *_ZOO),
    ('definition is None or definition.is_stateful', 'False'),
    ('if node.op in _OTHER_OPS:', 'if False:'),
    ('if types & _HALF_TYPES:', 'if False:'),
    (
      'policy is not None and not _is_taken(policy.compute_dtype)',
      'False',
    ),
    (
      'tf.as_dtype(weight.dtype) not in (tf.float32, tf.float64)',
      'False',
    ),
    ('if model.non_trainable_weights:', 'if False:'),
    (', 0, layer.input_dim - 1)', ', -(2**30), 2**30)'),
  ),
  (
    'tvdp_tf/learning/chacha20.py',
    (f'{LEARNING}chacha20_test.py',),
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
  (
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
  # Data that oneDNN's kernels mix.
  (
    'tvdp_tf/learning/onednn.py',
    (f'{LEARNING}keras3_test.py', _ONEDNN),
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
  (
    'tvdp_tf/learning/clipping.py',
    (_ONEDNN,),
    ('_ITERATIONS_AT_ONCE = 1', '_ITERATIONS_AT_ONCE = 10'),
  ),
  (
    'tvdp_tf/learning/functional.py',
    (f'{LEARNING}keras3_test.py', _ONEDNN),
    ('onednn.require_sound()', 'pass'),
    ('node.op in onednn.RACING_OPS', 'False'),
    ('setattr(kind, name, _Off(name))', 'pass'),
  ),
  (
    'tvdp_tf/learning/functional.py',
    (f'{LEARNING}functional_test.py',),
    ('delattr(kind, name)', 'pass'),
    (
      'for kind, name in () if _OPEN else _FUSING:\n        delattr',
      'for kind, name in _FUSING:\n        delattr',
    ),
    ('node._flat_arguments = arguments', 'pass'),
  ),
  (
    'tvdp_tf/learning/example_independence.py',
    (f'{LEARNING}keras3_test.py',),
    ('onednn.require_sound()', 'pass'),
  ),
  (
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
    ('flat.concatenated(steps) + drawn', 'flat.concatenated(steps)'),
    ('noise_key, flat.size(steps), release', 'noise_key, flat.size(steps), 0'),
    ('tf.clip_by_value(steps, -_MOST_STEPS, _MOST_STEPS)', 'steps'),
    (
      'return np.frombuffer(secrets.token_bytes(16), np.int64)',
      'return np.array([1, 2], np.int64)',
    ),
  ),
  (
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
  # Failures, or mixing, that depend on the content of an example.
  (
    'tvdp_tf/learning/failing_ops.py',
    _FAILING,
    # Bounds of integers.
    (
      'kept and target.min <= low <= high <= target.max else _ANY',
      'kept else _ANY',
    ),
    (
      'kept and target.min <= low <= high <= target.max else _ANY',
      'kept else (0, math.inf)',
    ),
    ('max(one.high for one in operands)', 'min(one.high for one in operands)'),
    ('min(one.low for one in operands)', 'max(one.low for one in operands)'),
    (
      '(0, divisor.high - 1) if divisor.low > 0 else _ANY',
      '(0, divisor.high - 1)',
    ),
    ('(0, divisor.high - 1)', '(0, divisor.low - 1)'),
    ('size = shape[int(axis.low)]', 'size = shape[0]'),
    ('size = shape[int(axis.low)]', 'size = 1'),
    ('(0, 0) if operands[0].low >= operands[1].high else _ANY', '(0, 0)'),
    ('choices[1:] if condition.high == 0 else choices', 'choices[1:]'),
    (
      'min(value.low for value in values)',
      'max(value.low for value in values)',
    ),
    # What depends on an example, and how it is used.
    (
      'private = private and node.op not in _OF_SHAPES',
      'private = False',
    ),
    ("*('TensorListLength', 'ZerosLike'),", "*('Cast', 'ZerosLike'),"),
    ('values[int(place[-1]) if place', 'values[0 if place'),
    (
      'chosen, *arguments = operands',
      'chosen, *arguments = _Value(False), *operands[1:]',
    ),
    (
      'BRANCHING | LOOPS and any(one.private for one in operands)',
      'BRANCHING | LOOPS and False',
    ),
    ('if going_on.private:', 'if False:'),
    ('if new == values:', 'if new == values or repeated > _WIDENED_AFTER:'),
    (
      'one._replace(low=-math.inf, high=math.inf)',
      'one._replace(low=old.low, high=old.high)',
    ),
    # What is refused.
    ('index = operands[place]', 'index = operands[place]._replace(low=0.0)'),
    ('index.high <= rows - 1', 'index.high <= rows'),
    ('axis = int(operands[2].low)', 'axis = 0'),
    ('if any(one.private for one in operands[2:]):', 'if False:'),
    ('if operands[place].private:', 'if False:'),
    ('if _is_integer(node) and divisor.private:', 'if False:'),
    (
      "if op == 'Pow' else divisor.low > 0",
      "if op == 'Pow' else divisor.low >= 0",
    ),
    ("_OF_TOP_K.search(node.name) and op == 'ScatterNd'", "op == 'ScatterNd'"),
    ('elif op not in _TOTAL:', 'elif False:'),
  ),
  (
    'tvdp_tf/learning/example_independence.py',
    _FAILING,
    ('traced.graph.inputs[-2:]', 'traced.graph.inputs[-1:]'),
    ('traced.graph.inputs[-2:]', 'traced.graph.inputs[-2:-1]'),
    ('if reached & _IN_A_LOOP:', 'if False:'),
    ('failing_ops.BRANCHING\n  | failing_ops.LOOPS', 'failing_ops.LOOPS'),
    ('failing_ops.BRANCHING\n  | failing_ops.LOOPS', 'failing_ops.BRANCHING'),
    ("'ScatterNd', ", ''),
    ('loss = models.any_label(loss)', 'pass'),
  ),
  (
    'tvdp_tf/learning/functional.py',
    _FAILING,
    ("failing_ops.check('model', call.graph, [features])", 'pass'),
    ('call.graph.inputs[len(self.initial_weights)]', 'call.graph.inputs[0]'),
    (
      'isinstance(layer, _EMBEDDING)',
      'type(module) is tf.keras.layers.Embedding',
    ),
  ),
  (
    'tvdp_tf/learning/functional.py',
    _MODELS,
    ("if node.attr['seed'].i or node.attr['seed2'].i:", 'if False:'),
    ("node.attr['seed'].i or node.attr['seed2'].i", "node.attr['seed'].i"),
    ('          unseeded(),\n', ''),
    ("check_captures('model', self._calls[True].graph)", 'pass'),
    ('inner.dtype not in (tf.resource, tf.variant)', 'False'),
  ),
  (
    'tvdp_tf/learning/own_arrays.py',
    (f'{LEARNING}own_data_test.py',),
    ('if not kept.all():', 'if False:'),
    (
      "np.isfinite(copy) if dtype.kind == 'f' else copy == array",
      'copy == copy',
    ),
    ('if np.ma.is_masked(value):', 'if False:'),
  ),
  (
    'tvdp_tf/learning/on_disk.py',
    (f'{LEARNING}on_disk_test.py',),
    ('found.min() < least or found.max() > most', 'found.min() < least'),
  ),
  (
    'tvdp_tf/learning/own_data.py',
    (f'{LEARNING}own_data_test.py',),
    ('wrong |= np.ma.getmaskarray(ids)', 'pass'),
    ("None if hasattr(user_ids, 'dtype') else object", 'None'),
    ('isinstance(one, bool) or not', 'not'),
    ('if not isinstance(x, (list, tuple)) or not len(x):', 'if False:'),
    ('not known[0].equals(known[1])', 'False'),
    ("ids.dtype.kind not in 'iuUS'", 'False'),
    ('found[counts == 1]', 'found'),
    ('.mean() > 0.5', '.mean() == 1.0'),
    ('np.uint8 if flat.itemsize % 4 else np.uint32', 'np.uint32'),
    ('_check_index(y, *part)', 'pass'),
    ('not isinstance(one, kinds) for one in ids', 'False for one in ids'),
  ),
  (
    'tvdp_tf/learning/own_model.py',
    (f'{LEARNING}own_model_test.py',),
    ('if weight.dtype != np.float32:', 'if False:'),
  ),
  (
    'tvdp_tf/learning/features.py',
    (f'{LEARNING}features_test.py',),
    ('if found.shape == tuple(shape):', 'if True:'),
    ('contextlib.suppress(Exception)', 'contextlib.suppress(ValueError)'),
    ('if node.op not in _READING_OPS:', 'if False:'),
    ('features.function.check(probes[0])', 'pass'),
    ('lambda examples: _of_any(features, examples, shape),', ''),
  ),
  (
    'tvdp_tf/learning/models.py',
    _FAILING,
    ('tf.clip_by_value(labels, 0, scores.shape[-1] - 1)', 'labels'),
    (
      'if type(loss) is tf.keras.losses.SparseCategoricalCrossentropy:',
      'if False:',
    ),
    ("object.__setattr__(self, 'loss', any_label(self.loss))", 'pass'),
  ),
  (
    'tvdp_tf/learning/failing_ops.py',
    _FAILING,
    ('      if going_on.private:\n', '      if False:\n'),
    ('    if chosen.private:\n', '    if False:\n'),
    ('self.reached.add(ANY_SEGMENT)', 'pass'),
    ('size is None or size - 1 > largest', 'size is None'),
  ),
  (
    'tvdp_tf/learning/example_independence.py',
    _FAILING,
    ("*('Roll', 'ScatterNd',", "*('ScatterNd',"),
    (
      "failing_ops.check('model with its loss', traced.graph, held)",
      'pass',
    ),
    (
      'held = traced.graph.inputs[: len(initial_weights) + 2]',
      'held = traced.graph.inputs[len(initial_weights) :]',
    ),
    ('_COUNTS = (1, 7, 8, 9, 11, 65, 257)', '_COUNTS = ()'),
    ('9, 11, 65, 257)', '9, 11)'),
    (
      "loss', traced.graph.as_graph_def())\n  held",
      "loss', tf.Graph().as_graph_def())\n  held",
    ),
    (
      'labels_spec.shape[1:], labels_spec.dtype),\n    )\n  except',
      'labels_spec.shape[1:], tf.int32),\n    )\n  except',
    ),
  ),
]
