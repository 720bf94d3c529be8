"""Runs TFF computations in TFF's C++ worker, on this host or on others."""
