"""Training runs: from settings to a folder of results."""
