"""Checkpoints and outputs: uploads what is complete."""
