"""Runs: settings in, a folder of results out."""
