"""The wrapper: shows one autonomous source as one local view."""
