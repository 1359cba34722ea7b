"""Sharing: what every node needs whole is read from the store once, and passed on from node to node."""
