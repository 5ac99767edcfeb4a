"""Tests of the memory adapter."""
