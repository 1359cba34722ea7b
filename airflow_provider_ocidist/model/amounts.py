"""Amounts: bytes, seconds and many names as text for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BYTES = ("B", "kB", "MB", "GB", "TB")
"""Units of bytes, each 1,000 of the one before."""
TIMES = ((86400, "d"), (3600, "h"), (60, "min"))


def size_text(size: float) -> str:
    """Return a number of bytes in its largest unit, with three digits: `3 B`, `1.53 GB`."""
    unit = 0
    # What three digits would round up to 1,000 is 1 of the next unit.
    while size >= 999.5 and unit < len(BYTES) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {BYTES[unit]}" if size < 999.5 else f"{size:.0f} {BYTES[unit]}"


def time_text(seconds: float) -> str:
    """Return a time span in the largest unit of which there are two or more, rounded down: `3 d`, `90 min`, `0 s`."""
    for length, unit in TIMES:
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def names_text(names: Sequence[str], most: int = 3) -> str:
    """Return the first of these names, and how many more there are: `a, b, c and 2 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
