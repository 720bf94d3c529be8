"""Curves are drawn by another process, and always drawn."""

import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import absltest

_HEAD = """
import multiprocessing, os, pathlib, signal, sys, time
from tvdp_tf.output import drawing_process

folder = pathlib.Path(sys.argv[1])
drawing_process.start()
(helper,) = multiprocessing.active_children()
"""
_DRAW = """
COLUMNS = 'round,test_loss,test_accuracy,noise_stddev,delivered_epsilon'

def wanted(name, title='a title'):
  return folder / f'{name}.csv', folder / f'{name}.png', title

def write(name):
  wanted(name)[0].write_text(COLUMNS + '\\n1,2.0,0.1,0.5,1.5\\n2,1.0,0.2,0.5,2')

def is_drawn(name):
  path = wanted(name)[1]
  found = path.exists() and path.read_bytes().startswith(b'\\x89PNG')
  path.unlink(missing_ok=True)
  return found

write('good')
drawing_process.begin(*wanted('good'))
drawing_process.draw(*wanted('good'))
assert is_drawn('good')
assert 'matplotlib' not in sys.modules

# As often as one likes.
drawing_process.begin(*wanted('good'))
drawing_process.draw(*wanted('good'))
assert is_drawn('good')
assert 'matplotlib' not in sys.modules

# What was not begun, or is another one.
drawing_process.draw(*wanted('good'))
assert is_drawn('good')
assert 'matplotlib' in sys.modules
write('other')
drawing_process.begin(*wanted('good'))
drawing_process.draw(*wanted('other'))
assert is_drawn('other')

# What the process cannot draw.
drawing_process.begin(*wanted('late'))
drawing_process._pipes[0].poll(30)
write('late')
drawing_process.draw(*wanted('late'))
assert is_drawn('late')
helper.join(10)
assert helper.exitcode == 0

# It may end at any time.
for when in ('before', 'after'):
  drawing_process.start()
  (helper,) = multiprocessing.active_children()
  if when == 'after':
    os.kill(helper.pid, signal.SIGSTOP)
    drawing_process.begin(*wanted('good'))
  helper.kill()
  helper.join()
  if when == 'before':
    drawing_process.begin(*wanted('good'))
  drawing_process.draw(*wanted('good'))
  assert is_drawn('good')

# Or never answer.
drawing_process._PATIENCE_S = 0.1
drawing_process._forget()
drawing_process.start()
(helper,) = multiprocessing.active_children()
os.kill(helper.pid, signal.SIGSTOP)
drawing_process.begin(*wanted('good'))
drawing_process.draw(*wanted('good'))
assert is_drawn('good')
os.kill(helper.pid, signal.SIGCONT)

try:
  drawing_process.draw(*wanted('missing'))
except OSError:
  print('as without it')
"""
_DIE = """
print(helper.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class DrawingProcessTest(absltest.TestCase):
  def _run(self, script):
    return subprocess.run(
      [sys.executable, '-c', script, self.create_tempdir().full_path],
      capture_output=True,
      check=False,
      text=True,
      timeout=60,
    )

  def test_a_picture_is_drawn_whatever_happens(self):
    done = self._run(_HEAD + _DRAW)
    self.assertEqual(done.stderr, '')
    self.assertEqual(done.stdout, 'as without it\n')

  def test_it_ends_when_nobody_is_there(self):
    done = self._run(_HEAD + _DIE)
    self.assertEqual(done.returncode, -signal.SIGKILL)
    helper = pathlib.Path('/proc') / done.stdout.strip()
    deadline = time.monotonic() + 20
    while (helper / 'exe').exists() and time.monotonic() < deadline:
      time.sleep(0.05)
    self.assertFalse((helper / 'exe').exists())


if __name__ == '__main__':
  absltest.main()
