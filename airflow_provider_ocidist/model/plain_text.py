"""Plain text: what programs print and others write, as databases and readers of JSON take it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_REFUSED = re.compile("[\0\ud800-\udfff]")
"""Characters that PostgreSQL's JSON (NUL), or UTF-8 (one half of a surrogate pair) cannot hold."""
_REPLACEMENT = "\ufffd"


def plain_text(text: str) -> str:
    """Return a text with U+FFFD in place of each NUL and each half of a surrogate pair."""
    return _REFUSED.sub(_REPLACEMENT, text)


def plain_texts(value: Any) -> Any:
    """Return a JSON value with plain texts only."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, Mapping):
        return {plain_texts(key): plain_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_texts(item) for item in value]
    return value


def strict_json(value: Any) -> Any:
    """Return a JSON value as the standard has it: plain texts, and null for numbers that are none (NaN, Infinity)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain_texts(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    return plain_texts(value)
