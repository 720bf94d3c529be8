"""Federated learning under differential privacy with time-varying noise."""

__version__ = '0.1.0'

from tvdp_tf import _moved

_moved.install()
