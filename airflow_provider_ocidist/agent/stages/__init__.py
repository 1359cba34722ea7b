"""The stages of a node's life, in the order of their steps; what they consist of is in the folders beside."""
