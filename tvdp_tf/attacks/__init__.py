"""Attacks on what clients release: what a server could learn from it."""
