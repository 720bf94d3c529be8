"""Has moved to `mechanisms`, `planner` and `training`: see `tvdp_tf._moved`."""
