"""Shared code of the programs in `binaries/`: flags and exit codes."""
