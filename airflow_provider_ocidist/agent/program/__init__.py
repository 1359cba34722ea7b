"""A folder for PYTHONPATH of the training: what every Python in it runs at its start."""
