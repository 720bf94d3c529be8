"""What the programs in `binaries/` share: flags and exit codes."""
