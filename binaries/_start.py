"""Startup code of every program; each program imports it first.

Puts the checkout, whose folders the programs use, on the import path. From then
on, Ctrl-C and SIGTERM end a program with one line. TensorFlow is silent.
"""

import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))

from tvdp_tf import _environment
from tvdp_tf.cli import program

_environment.set_defaults()  # Before anything imports TensorFlow.
program.end_at_once()
