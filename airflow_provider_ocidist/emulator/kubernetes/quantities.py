"""Quantities: amounts as Kubernetes writes them, such as `500m`, `16Gi`, `8`."""

from __future__ import annotations

import re
from fractions import Fraction

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkKMGTPE]?i?)")


def amount(value: str | float) -> Fraction:
    """Return a quantity as a number. Raises ValueError for what is none."""
    match = QUANTITY.fullmatch(str(value))
    if match is None or match[2] not in SUFFIXES:
        raise ValueError(f"quantities must match the regular expression '{QUANTITY.pattern}': {value!r}")
    return Fraction(match[1]) * SUFFIXES[match[2]]
