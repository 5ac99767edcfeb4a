"""The `lockstep` protocol packages."""
