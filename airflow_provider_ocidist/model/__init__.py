"""The data that all packages and the nodes share; standard library only."""
