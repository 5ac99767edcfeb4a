"""`lockstep demo`: three live databases, one view over them, and a check of every version it had."""
