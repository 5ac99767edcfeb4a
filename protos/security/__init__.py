"""Who may talk to a Lockstep server, how it knows them, and what it writes down about it."""
