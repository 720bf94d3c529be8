"""How every program starts; the first that it imports.

Puts the checkout, whose folders the programs use, on the import path, and has
Ctrl-C and SIGTERM end a program in one line from now on.
"""

import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

from tvdp_tf.cli import program

program.end_at_once()
