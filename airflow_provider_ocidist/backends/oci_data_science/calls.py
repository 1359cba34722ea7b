"""Calls to the service, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

PAGE = 100
"""Most resources on one page of a list."""


def pages(call: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield everything that a list operation of the SDK returns."""
    page = None
    while True:
        answer = call(*args, limit=PAGE, **kwargs, **({"page": page} if page else {}))
        yield from answer.data
        page = answer.headers.get("opc-next-page")
        if not page:
            return
