"""Audits the user's own model through the process that trains it."""
