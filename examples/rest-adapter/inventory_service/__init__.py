"""The REST service that the example's adapter is for; it knows nothing of Lockstep."""
