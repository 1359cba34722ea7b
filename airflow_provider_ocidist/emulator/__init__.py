"""A local OCI that really runs the nodes; imports nothing of the rest of the package."""
