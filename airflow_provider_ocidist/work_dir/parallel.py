"""Calls side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

PARALLEL = 32
Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], at_a_time: int = PARALLEL
) -> list[Result]:
    """Run one call for each item, side by side; every one is finished before the first error is raised."""
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(max_workers=min(at_a_time, len(items))) as pool:
        futures = [pool.submit(work, item) for item in items]
    return [future.result() for future in futures]


def both(first: Callable[[], Item], second: Callable[[], Result]) -> tuple[Item, Result]:
    """Run two calls at the same time, the second in a thread that starts before the first; return both results."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        other = pool.submit(second)
        result = first()
    return result, other.result()
