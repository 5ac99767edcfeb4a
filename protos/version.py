"""The version of the protocol that this code speaks."""

PROTOCOL_VERSION = 3
"""Both ends of a connection must have the same one. It counts changes that an older peer would misread."""
