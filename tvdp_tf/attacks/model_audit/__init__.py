"""An audit of a model of the user's own, through the process that trains it."""
