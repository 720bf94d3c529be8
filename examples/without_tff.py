"""A private run without TFF, under Keras 2 or 3.

With a TensorFlow newer than 2.14, also set TF_ENABLE_ONEDNN_OPTS=0. Run it by
  TF_CPP_MIN_LOG_LEVEL=3 python examples/without_tff.py
"""

import hashlib
import pathlib
import secrets
import tempfile

import tvdp_tf
from tvdp_tf import mechanisms, privacy
from tvdp_tf.privacy import statement
from tvdp_tf.training import federation, plain_process, recorder, rounds

# Digits that scikit-learn brings, dealt out to ten users.
settings = tvdp_tf.TrainingSettings(
  epsilon=8.0, users_per_round=5, rounds=6, local_steps=2
)
fed = federation.assemble(settings)
plan = mechanisms.build(settings, fed)
process = plain_process.build_process(plan, fed)
run = rounds.Rounds(plan, fed, process)

path = pathlib.Path(tempfile.mkdtemp(), 'ledger.jsonl')
digest = hashlib.sha256(repr(settings).encode()).digest()
state = process.initialize()
with privacy.PrivacyLedger.create(
  path, plan.header, plan.ledger_run(digest, secrets.token_hex(16))
) as ledger:
  books = recorder.Recorder(run, ledger, digest)
  for number in range(1, settings.rounds + 1):
    releases, noise_keys, _ = books.record(state, number)  # On the disk;
    state = run.run(state, releases, noise_keys)  # only then.

model = fed.initial_model()
model.set_weights(state.global_model_weights.trainable)
scores = model.predict(fed.dataset.test_features, verbose=0)
right = (scores.argmax(axis=1) == fed.dataset.test_labels).mean()
spent = statement.format_epsilon(privacy.audit_ledger(path).worst_epsilon)
print(f'epsilon = {spent} {plan.statement().verdict}: accuracy {right:.2f}')
