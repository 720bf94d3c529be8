"""Mutants of ghost clipping; `tools.mutant_cases` has the others."""

from tools.mutants_of_learning import CLIPPING, LEARNING, LIST, VIEWS, Case

CASES: list[Case] = [
  (
    'tvdp_tf/learning/ghost_kind.py',
    LIST,
    ('any(value is one for one in known)', 'value in tuple(known)'),
  ),
  (
    'tvdp_tf/learning/ghost_clipping.py',
    LIST + CLIPPING,
    ('* (of_input + 1.0 * layer.layer.use_bias)', '* 1.0'),
    ('* (of_input + 1.0 * layer.layer.use_bias)', '* of_input'),
    ('if kinds <= ghost_list.MOVING_LAYERS:', 'if True:'),
    ('kinds <= ghost_list.MOVING_LAYERS', 'not upstream.weights'),
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
    (
      'tf.where(shaped(used, tensor), tensor, 0)',
      'tensor',
    ),
  ),
  (
    'tvdp_tf/learning/ghost_clipping.py',
    (f'{LEARNING}ghost_embedding_test.py',),
    ('(looked_up,) = kept(*parts)', '(looked_up,) = parts'),
  ),
  (
    'tvdp_tf/learning/ghost_layers.py',
    (f'{LEARNING}ghost_embedding_test.py',),
    (
      'return [tf.reshape(sums, [-1, places, delta.shape[-1]])]',
      'return [delta]',
    ),
    ('example * 2**31 + ', '0 * example + '),
    ('tf.gather(first, of_place)', 'tf.range(examples * places)'),
    (
      'indices = functional.index_in_range(self.layer, indices)',
      'indices = tf.cast(indices, tf.int32)',
    ),
  ),
  (
    'tvdp_tf/learning/ghost_convolutions.py',
    (f'{LEARNING}ghost_convolution_test.py',),
    ('(1, *sizes)[-2:]', '(*sizes, 1)[:2]'),
    ('before = missing // 2', 'before = missing - missing // 2'),
    ('before = tf.constant(reach)', 'before = tf.constant(reach) // 2'),
    (
      'left : left + self.last[1] : right',
      'left : left + self.last[1] : down',
    ),
    ('top : top + self.last[0] : down', 'top : top + self.last[0] : right'),
    ('row * below, column * beside', 'row * beside, column * below'),
    (
      'return tf.concat(products, axis=1)',
      'return tf.concat(products[::-1], axis=1)',
    ),
    ('dilations=[1, beside],', 'dilations=[1, 1],'),
    ('range(0, height * below, below)', 'range(height)'),
    ('return tf.stack(found, axis=1)', 'return tf.stack(found[::-1], axis=1)'),
    (
      'return _is_windowed(layer, cls._RANKS) and layer.groups == 1',
      'return _is_windowed(layer, cls._RANKS)',
    ),
    (
      'len(layer.input_shape) == ranks[type(layer)]',
      'True',
    ),
    ('watch(deep)', 'pass'),
  ),
  (
    'tvdp_tf/learning/ghost_kind.py',
    (
      f'{LEARNING}ghost_convolution_test.py',
      f'{LEARNING}ghost_layers_test.py',
    ),
    ('places = num_views * tensor.shape[1:-1]', 'places = tensor.shape[1:-1]'),
    (
      'return [sums(delta, num_views)] if',
      'return [0 * sums(delta, num_views)] if',
    ),
    ('watch(value)', 'pass'),
  ),
  (
    'tvdp_tf/learning/ghost_layers.py',
    (f'{LEARNING}ghost_layers_test.py',),
    ('found.append(summed(delta * normalized))', 'found.append(summed(delta))'),
    (
      'with functional.replaced(layer, plain):',
      'with functional.replaced(layer, {}):',
    ),
    ('and min(cls._axes(layer)) > 0', ''),
    ("getattr(layer.input, '_keras_mask', None) is not None", 'False'),
    ('axis=rest[1:])', 'axis=rest)'),
    ('and batch not in kernel', ''),
    ('and set(inputs) <= {*kernel, *outputs}', ''),
    ('and all(len(set(one)) == len(one) for one in match.groups())', ''),
    ('outputs[0] == batch', 'True'),
  ),
  (
    'tvdp_tf/learning/ghost_recurrent.py',
    (f'{LEARNING}ghost_recurrent_test.py',),
    ('inputs = tf.reverse(inputs, axis=[1])', 'pass'),
    ('else tf.reverse(mask, axis=[1])', 'else mask'),
    ('mask=mask,', 'mask=None,'),
    (
      'zero_output_for_mask=layer.zero_output_for_mask',
      'zero_output_for_mask=False',
    ),
    (
      'return tf.stop_gradient(self.layer.cell.recurrent_kernel)',
      'return self.layer.cell.recurrent_kernel',
    ),
    ('new * reset], axis=-1)', 'new], axis=-1)'),
    (
      'ghost_kind.sums(inner, num_views),',
      'ghost_kind.sums(delta, num_views),',
    ),
    ('not (layer.cell.dropout or layer.cell.recurrent_dropout)', 'True'),
    (
      'return super().takes(layer) and layer.reset_after',
      'return super().takes(layer)',
    ),
    (' or layer.time_major', ''),
  ),
  (
    'tvdp_tf/learning/ghost_list.py',
    (f'{LEARNING}ghost_embedding_test.py',),
    ('taken = (tf.float32,)', 'taken = _INPUT_TYPES'),
    ('_INPUT_TYPES if is_first else _INTEGERS', '_INPUT_TYPES'),
  ),
  (
    'tvdp_tf/learning/ghost_list.py',
    LIST + CLIPPING,
    ("is_one_of(getattr(layer, 'activation', None), _ACTIVATIONS)", 'True'),
    ('is_one_of(kind, _WEIGHTLESS_LAYERS)', 'True'),
    ('if type(layer) is not kind:', "if type(layer).__name__ != 'TFOpLambda':"),
    ('if len(layer.inbound_nodes) != 1:', 'if False:'),
    ("layer.dtype_policy.name == 'float32'", 'True'),
    ('layer.axis % len(outputs[0].shape) == 0', 'layer.axis == 0'),
    ('{type(layer.scale), type(layer.offset)} <= {int, float}', 'True'),
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
    ('is_one_of(type(loss), _LOSSES)', 'True'),
    ('is_one_of(kind, (of_layers, tf.keras.Sequential))', 'True'),
    ('model.ops <= OPS.union(*(kind.ops for kind in kinds))', 'True'),
  ),
  (
    'tvdp_tf/learning/ghost_list.py',
    (f'{LEARNING}ghost_layers_test.py',),
    ('and len({len(one.shape) for one in arguments}) == 1', ''),
    ('layer.symbol not in _FUNCTIONS', 'False'),
    ('if layer.symbol in _ARITHMETIC', 'if True'),
    ('all(map(_is_symbolic, arguments))', 'True'),
    ('layer._attention_axes == (1,)', 'True'),
    ('and all(len(one.shape) == 3 for one in inputs)', ''),
  ),
  (
    'tvdp_tf/learning/ghost_list.py',
    (f'{LEARNING}ghost_recurrent_test.py',),
    ('is_of_one and', ''),
    (
      "is_one_of(getattr(layer, 'recurrent_activation', None), _ACTIVATIONS)",
      'True',
    ),
  ),
  (
    'tvdp_tf/learning/ghost_clipping.py',
    (VIEWS,),
    ('sensitivity.MOST_MICROBATCHES // self._views', '16'),
    (
      'squares.append(view_gradients.squared_norms_of_sums(value, of_terms))',
      'squares.append(of_terms[0] * of_terms[2])',
    ),
  ),
  (
    'tvdp_tf/learning/ghost_clipping.py',
    (f'{LEARNING}functional_test.py',),
    ('      functional.unseeded(),\n', ''),
  ),
]
