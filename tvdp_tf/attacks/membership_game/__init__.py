"""Membership inference as a game: runs and reports."""
