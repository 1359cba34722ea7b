"""Before the training: code, packages and inputs come to the node."""
