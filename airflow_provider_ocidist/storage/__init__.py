"""Locations, parallel transfer, checkpoints."""
