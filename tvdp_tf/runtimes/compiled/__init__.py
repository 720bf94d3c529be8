"""Runs TFF computations compiled in this process."""
