"""Counted relations, view definitions, decomposition and sweeps: pure, without I/O."""
