"""Benchmarks of speed and memory against other libraries on the same work."""
