"""Soak: a whole deployment of real processes under load and random faults, checked version by version."""
