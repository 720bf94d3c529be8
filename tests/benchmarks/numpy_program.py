"""The mlp's work in NumPy, as a program of the benchmark; and bad programs.

Forms: `same` does the work, `short` leaves out a local step, `data` works on
other data, `garbage` answers with no JSON, `dead` dies in its first round,
`silent` says nothing, `child` does the work and keeps a child.
"""

import subprocess
import sys
import time

import numpy as np

from benchmarks.harness import program as program_lib
from benchmarks.harness import work as work_lib


def gradients(weights, features, labels):
  """Of the mean cross-entropy of a linear network of two layers."""
  first, first_bias, second, second_bias = weights
  hidden = features @ first + first_bias
  logits = hidden @ second + second_bias
  errors = np.exp(logits - logits.max(axis=1, keepdims=True))
  errors /= errors.sum(axis=1, keepdims=True)
  errors[np.arange(len(labels)), labels] -= 1
  errors /= len(labels)
  back = errors @ second.T
  return [features.T @ back, back.sum(0), hidden.T @ errors, errors.sum(0)]


class NumpyProgram(program_lib.Program):
  """In float64."""

  def __init__(self, server: program_lib.Server):
    self._work, self._form = server.work, server.form
    self._features = server.features.astype(np.float64)
    self._labels = server.labels
    self._rng = np.random.default_rng(0)

  def reset(self, noise_stddev):
    self._noise_stddev = noise_stddev
    self._weights = self._work.initial_weights()

  def _client(self, user):
    work, weights = self._work, self._weights
    for _ in range(work.local_steps - (self._form == 'short')):
      steps = gradients(weights, self._features[user], self._labels[user])
      weights = [
        w - work.learning_rate * step
        for w, step in zip(weights, steps, strict=True)
      ]
      norm = max(work_lib.norm(weights), work.l2_norm_clip)
      weights = [w * (work.l2_norm_clip / norm) for w in weights]
    return [
      w + self._rng.normal(0, 1, w.shape) * self._noise_stddev for w in weights
    ]

  def round(self, round_number):
    if self._form == 'dead':
      sys.exit('it has had enough')
    uploads = list(map(self._client, self._work.cohort(round_number)))
    self._weights = [
      np.mean(parts, axis=0) for parts in zip(*uploads, strict=True)
    ]

  def weights(self):
    return self._weights


if __name__ == '__main__':
  server = program_lib.start('same')
  if server.form == 'data':
    server = program_lib.Server(
      work_lib.Work(users=12, examples_per_user=20),
      'same',
      server._commands,
      server._answers,
    )
  if server.form == 'silent':
    time.sleep(60)
  if server.form == 'garbage':
    server._answers.write('Loading data ...\n')
    server._answers.flush()
  if server.form == 'child':
    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
  server.serve(NumpyProgram(server), numpy=np.__version__)
