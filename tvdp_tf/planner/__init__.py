"""Plans before training, and audits after it."""
