"""The status page: what goes on in the emulator, seen in a browser."""
