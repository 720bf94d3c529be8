"""A TFF computation in the form that production platforms take.

A platform with its own servers and devices runs these graphs: `prepare` and
`update` at the server, `work` at each client, `accumulate` in between.

  TF_CPP_MIN_LOG_LEVEL=3 python examples/hand_over.py
"""

import tensorflow_federated as tff

import tvdp_tf
from tvdp_tf import federated, mechanisms
from tvdp_tf.learning import models

mlp = models.MODELS['mlp']
process = federated.build_learning_process(
  tvdp_tf.functional_model(mlp, mlp.build([28, 28], 10, 0)),
  mechanisms.GradientMechanism(
    tvdp_tf.calibrate(epsilon=3.0, delta=1e-5, theta=0.95, rounds=20),
    example_l2_norm_clip=1.0,
  ),
  local_steps=5,
  learning_rate=0.5,
)
print('The parts of a round, and what each of them puts out:')
with tvdp_tf.compiled_runtime():  # TFF executes `initialize` for the form.
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
    process.next
  )
  for name in ('prepare', 'work', 'zero', 'accumulate', 'merge', 'update'):
    computation = getattr(form, name)
    size = len(
      tff.framework.serialize_computation(computation).SerializeToString()
    )
    print(f'{name:10} {size:8} bytes, to {computation.type_signature.result}')
