"""The `lockstep` command."""
