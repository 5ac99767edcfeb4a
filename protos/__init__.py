"""Protocol definitions and their generated stubs."""
