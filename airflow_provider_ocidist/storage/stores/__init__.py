"""A store for each kind of place."""
