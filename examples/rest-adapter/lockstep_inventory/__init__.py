"""A Lockstep adapter for inventories behind a REST service."""
