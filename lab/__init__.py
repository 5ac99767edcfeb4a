"""Experiments: the deterministic lab of maintenance algorithms, and the benchmark."""
