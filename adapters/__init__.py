"""The source contract, its registry and one adapter per kind of source."""
