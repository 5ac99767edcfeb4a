"""Messages and services of `lockstep.v1`."""
