"""Numbers on the command line, which argparse refuses before a command begins."""

from __future__ import annotations

import argparse

LONGEST = 86_400.0
"""Most seconds of a pause."""


def seconds(text: str) -> float:
    """Return a time of more than 0 s, and at most a day."""
    value = float(text)
    # Not a number fails each comparison.
    if not 0 < value <= LONGEST:
        raise argparse.ArgumentTypeError(f"must be more than 0 and at most {LONGEST:.0f}: {text}")
    return value


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    return _at_least(1, text)


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}: {text}")
    return value
