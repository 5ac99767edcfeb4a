"""The mediator: keeps the assembled views in step with every source transaction."""
