"""Puts the checkout, whose folders the programs use, on the import path."""

import pathlib
import sys

sys.path.insert(1, str(pathlib.Path(__file__).resolve().parents[1]))
