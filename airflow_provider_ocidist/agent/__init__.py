"""The program on every node; standard library only at import."""
