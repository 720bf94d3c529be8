"""A training run: settings in, a folder of results out."""
