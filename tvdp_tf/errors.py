"""Errors that a user can act on; their text is one clear line."""


class TvdpError(Exception):
  """A run cannot start or continue, through no fault of the code."""


class UsageError(TvdpError):
  """The request cannot be met: a setting, a flag or a path is wrong."""


class DatasetUnavailableError(TvdpError):
  """A data set can be neither found nor downloaded."""


class TrainingFailedError(TvdpError):
  """Training cannot continue; what was done so far is in the run's folder."""
