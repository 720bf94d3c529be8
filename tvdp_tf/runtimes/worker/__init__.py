"""TFF's computations in its C++ worker: of this host, or of others."""
