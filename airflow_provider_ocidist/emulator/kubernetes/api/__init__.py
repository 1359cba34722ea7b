"""The API server of the cluster: requests become reads and writes of its objects."""
