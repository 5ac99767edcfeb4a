"""What captures by difference share: a shadow of the relations beside the wrapper, and its engine."""
