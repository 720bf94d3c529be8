"""The mlp's work in NumPy, as a program of the benchmark; and bad programs.

Forms: `same` does the work, `short` leaves out a local step, `data` works on
other data, `garbage` answers with no JSON, `dead` dies in its first round,
`silent` says nothing, `child` does the work and keeps a child. Of a private
work, `loose` clips to 2 % more, `layers` each parameter by itself, `mean` the
mean in the place of each example, and `projected` projects besides.
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


def clipped(gradient, clip):
  """Scaled to a norm of at most `clip`, all parts together."""
  factor = min(1, clip / work_lib.norm(gradient))
  return [part * factor for part in gradient]


def clipped_mean(weights, features, labels, clip, form):
  """Of the gradients of the examples, each clipped; or something else."""
  if form == 'mean':
    return clipped(gradients(weights, features, labels), clip)
  if form == 'loose':
    clip *= 1.02
  total = [np.zeros(w.shape) for w in weights]
  for i in range(len(labels)):
    one = gradients(weights, features[i : i + 1], labels[i : i + 1])
    if form == 'layers':
      one = [clipped([part], clip)[0] for part in one]
    else:
      one = clipped(one, clip)
    total = [t + part for t, part in zip(total, one, strict=True)]
  return [t / len(labels) for t in total]


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

  def _noised(self, values):
    return [
      v + self._rng.normal(0, 1, v.shape) * self._noise_stddev for v in values
    ]

  def _client(self, user):
    work, weights = self._work, self._weights
    is_private = work.kind == work_lib.PRIVATE
    examples = self._features[user], self._labels[user]
    for _ in range(work.local_steps - (self._form == 'short')):
      if is_private:
        clip = work.example_l2_norm_clip
        steps = self._noised(clipped_mean(weights, *examples, clip, self._form))
      else:
        steps = gradients(weights, *examples)
      weights = [
        w - work.learning_rate * step
        for w, step in zip(weights, steps, strict=True)
      ]
      if not is_private:
        weights = clipped(weights, work.l2_norm_clip)
      elif self._form == 'projected':
        weights = clipped(weights, 5.0)
    return weights if is_private else self._noised(weights)

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
