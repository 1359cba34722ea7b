"""Regular expressions that clients write, matched by RE2: in time that grows with the text only, and no faster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import re2

MAX_CHARS = 1_000
"""Most characters of one expression."""
MAX_BYTES = 1 << 17
"""Most bytes of a compiled expression; it bounds how long one text takes."""


class PatternError(Exception):
    """What is wrong with an expression, for the client that wrote it."""


class TooSlow(PatternError):
    """Expressions and texts are so many that they take too long together."""


class MatchingTime:
    """How much of a processor several matches may take together, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.thread_time() + seconds

    def check(self) -> None:
        """Raise TooSlow when it is spent."""
        if time.thread_time() > self._end:
            raise TooSlow("the expressions take too long")


@lru_cache(maxsize=1_000)
def compiled(text: str) -> Any:
    """Return the expression. Raises PatternError for what is none, or is too large."""
    if len(text) > MAX_CHARS:
        raise PatternError(f"an expression may have at most {MAX_CHARS} characters")
    options = re2.Options()
    options.max_mem = MAX_BYTES
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except (re2.error, ValueError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error, re2.error) else error
        raise PatternError(f"{text!r} is not a regular expression of RE2: {reason}") from error


def all_fit(patterns: Sequence[str], texts: Sequence[str], budget: MatchingTime | None = None) -> bool:
    """Return whether each expression fits the whole of its text. Raises TooSlow when the budget is spent."""
    if budget is not None:
        budget.check()
    return all(compiled(pattern).fullmatch(text) for pattern, text in zip(patterns, texts, strict=True))
