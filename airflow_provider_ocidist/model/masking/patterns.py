"""Patterns: regular expressions that are compiled at their first use. A DAG file that is only parsed masks nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache


def lazily(pattern: str, flags: int = 0) -> Callable[[], re.Pattern[str]]:
    """Return a function that returns the compiled pattern."""

    @lru_cache(maxsize=1)
    def compiled() -> re.Pattern[str]:
        return re.compile(pattern, flags)

    return compiled
