"""Apple's pfl on PyTorch.

Forms: `process`, one process on all cores; `workers`, one process per core,
connected by torch.distributed, as pfl does it.
"""

import os
import socket
import subprocess
import sys

# When it is imported, pfl joins the process group that these define.
ADDRESSES = 'PFL_WORKER_ADDRESSES'
RANK = 'PFL_WORKER_RANK'


def free_addresses(count):
  """Returns `count` addresses of this machine, for the variable above."""
  sockets = [socket.create_server(('localhost', 0)) for _ in range(count)]
  ports = [s.getsockname()[1] for s in sockets]
  for held in sockets:
    held.close()
  return ','.join(f'localhost:{port}' for port in ports)


def start_workers():
  """Makes this process the first worker, and starts the others."""
  count = len(os.sched_getaffinity(0))
  os.environ[ADDRESSES] = free_addresses(count)
  os.environ[RANK] = '0'
  for rank in range(1, count):
    subprocess.Popen(
      [sys.executable, '-m', __spec__.name, *sys.argv[1:]],
      env={**os.environ, RANK: str(rank)},
      stdin=subprocess.DEVNULL,
    )


if __name__ == '__main__':
  if '--form=workers' in sys.argv and ADDRESSES not in os.environ:
    start_workers()
  from benchmarks.peers.pfl import simulation

  simulation.main(
    has_workers=ADDRESSES in os.environ,
    is_first=os.environ.get(RANK, '0') == '0',
  )
