"""Calls side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

PARALLEL = 32
"""Most calls that are made side by side, unless a caller names fewer."""
STOP_EVERY = 0.05
"""Seconds between two looks whether a call is still to be waited for."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Call(Generic[Result]):
    """One call, made in any thread."""

    def __init__(self, work: Callable[..., Result], *given: Any) -> None:
        self._work, self._given = work, given
        self._result: Result | None = None
        self._error: BaseException | None = None

    def make(self) -> None:
        try:
            self._result = self._work(*self._given)
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is asked for
            self._error = error

    def raise_interrupt(self) -> None:
        """Raise what asked this thread to end, such as KeyboardInterrupt: it makes no further call."""
        if not isinstance(self._error, Exception | None):
            raise self._error

    def result(self) -> Result:
        try:
            if self._error is not None:
                raise self._error
            return self._result  # type: ignore[return-value]  # of the call, which was made
        finally:
            # The traceback of its error holds this frame.
            del self


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], at_a_time: int = PARALLEL
) -> list[Result]:
    """Run one call for each item, side by side; every one is finished before the first error is raised.

    The calling thread makes its share of them: for the two or three of most looks a pool would cost more than they do.
    """
    calls = [_Call(work, item) for item in items]
    left = iter(calls)

    def make_some() -> None:
        for call in left:
            call.make()

    others = _begun(make_some for _ in range(min(at_a_time, len(calls)) - 1))
    try:
        for call in left:
            call.make()
            call.raise_interrupt()
    finally:
        for thread in others:
            thread.join()
    return [call.result() for call in calls]


def both(first: Callable[[], Item], second: Callable[[], Result]) -> tuple[Item, Result]:
    """Run two calls at the same time, the second in a thread that starts before the first; return both results."""
    call = _Call(second)
    (thread,) = _begun([call.make])
    try:
        result = first()
    finally:
        thread.join()
    return result, call.result()


class Pending(Generic[Result]):
    """One call that is made in a thread of its own, begun at once; it goes on whether or not it is waited for."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._call, self._is_made = _Call[Result](work), threading.Event()
        _begun([self._make])

    def is_made(self, within: float) -> bool:
        """Wait for at most so many seconds; return whether the call is made."""
        return self._is_made.wait(within)

    def result(self) -> Result:
        """Wait for the call and return its result. Raises what it raises."""
        self._is_made.wait()
        return self._call.result()

    def _make(self) -> None:
        self._call.make()
        self._is_made.set()


def until_stopped(work: Callable[[], object], stop: threading.Event | None) -> None:
    """Run one call in a thread; return when it is made, or as soon as `stop` is set: then it goes on by itself.

    Raises what the call raises.
    """
    pending = Pending(work)
    while not pending.is_made(STOP_EVERY):
        if stop is not None and stop.is_set():
            return
    pending.result()


def _begun(targets: Iterable[Callable[[], None]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, name="side-by-side", daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads
