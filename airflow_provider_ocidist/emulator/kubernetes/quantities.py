"""Quantities: amounts as Kubernetes writes them, such as `500m`, `16Gi`, `8`."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_WHOLE = 10**40
"""Least whole number that is no quantity: it has 41 digits."""
SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
QUANTITY = re.compile(r"([+-]?[0-9]{0,40}\.?[0-9]{0,40}(?:[eE][+-]?[0-9]{1,2})?)([numkKMGTPE]?i?)")
"""Pattern of a quantity whose length is soon computed; Kubernetes' own have 64 bits."""


def amount(value: str | float) -> Fraction:
    """Return a quantity as a number. Raises ValueError for what is none."""
    wrong = ValueError(f"quantities must match the regular expression '{QUANTITY.pattern}': {value!r:.100}")
    # Of a number in JSON with thousands of digits even the text takes long.
    if isinstance(value, int) and abs(value) >= MAX_WHOLE:
        raise wrong
    match = QUANTITY.fullmatch(str(value))
    if match is None or match[2] not in SUFFIXES:
        raise wrong
    try:
        return Fraction(match[1]) * SUFFIXES[match[2]]
    except ValueError as error:
        raise wrong from error
