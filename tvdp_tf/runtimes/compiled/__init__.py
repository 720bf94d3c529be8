"""TFF's computations, compiled into this process."""
