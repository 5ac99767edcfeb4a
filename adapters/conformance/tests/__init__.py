"""Tests of the conformance kit: broken adapters that it must catch."""
