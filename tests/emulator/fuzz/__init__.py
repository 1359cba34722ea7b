"""Requests that nobody should send, by the thousand: `make fuzz-emulator`."""
