"""Errors that a user can act on: their text is one clear line."""


class TvdpError(Exception):
  """A run cannot start or go on, through no fault of the code."""


class UsageError(TvdpError):
  """What was asked for cannot be done: a setting, a flag or a path is wrong."""


class DatasetUnavailableError(TvdpError):
  """A data set can be neither found nor downloaded."""


class TrainingFailedError(TvdpError):
  """Training cannot go on; what was done until then is in the run's folder."""
