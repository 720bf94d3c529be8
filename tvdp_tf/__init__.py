"""Federated learning under differential privacy with time-varying noise."""

__version__ = '0.1.0'
