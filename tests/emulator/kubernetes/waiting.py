"""Waiting for what a cluster does by itself."""

import time

PATIENCE_S = 180


def until(happened):
    """Return what a function returns, once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found
