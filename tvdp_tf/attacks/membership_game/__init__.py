"""Membership inference as a game: its runs, its tables."""
