"""Checkpoints and outputs: what is whole goes to the store."""
