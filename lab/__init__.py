"""Experiments: the benchmark."""
