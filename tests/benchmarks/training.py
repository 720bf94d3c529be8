"""A whole training that trains nothing; and bad ones.

Forms: `same` does all that is asked, `half` leaves out rounds, `unsaved` leaves
no checkpoint, `dead` dies, `other` is not accurate, `child` leaves a child that
would live for a minute.
"""

import subprocess
import sys

from benchmarks.harness import training as training_lib

if __name__ == '__main__':
  training = training_lib.start()
  form = training.form
  if form == 'dead':
    sys.exit('it has had enough')
  if form == 'child':
    child = subprocess.Popen(
      [sys.executable, '-c', 'import time; time.sleep(60)'],
      stdout=subprocess.DEVNULL,
      start_new_session=True,
    )
    print('child', child.pid)
  labels = training.test()[1]
  last = training.rounds // 2 if form == 'half' else training.rounds
  for number in range(1, last + 1):
    accuracy = 0.5 if form == 'other' else number / training.rounds
    training.record(number, 1.0 / len(labels), accuracy)
    if form != 'unsaved':
      training.checkpoint(number).touch()
