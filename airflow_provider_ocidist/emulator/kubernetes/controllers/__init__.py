"""What changes objects by itself, as the controllers and operators of a cluster do."""
