"""Lanes: threads that work off a queue, with an adaptive number.

How many streams a link needs follows from its latency and from what one stream carries, and neither is known
beforehand: 2,000 small files at 30 ms a request want 64, a server on the same machine wants 8. So the number
doubles while that raises what is moved by a tenth, steps back when it does not, and is tried again now and
then. The size of parts stays: with enough streams it makes no difference, and it bounds memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from airflow_provider_ocidist.backports import dataclass

START_LANES = 16
"""Number of lanes that are open at the beginning."""
_PERIOD_S = 0.2
"""Seconds over which a rate is measured."""
_HOLD_PERIODS = 15
"""Number of periods until the next trial after one that was not worth it."""
_WORTH = 1.1
"""Factor of the rate before from which on twice as many lanes are worth it."""


@dataclass(frozen=True, kw_only=True)
class Width:
    """How many lanes are open, and what was learned about it."""

    lanes: int
    former: int = 0
    """Number of open lanes before the last change; 0: no trial."""
    former_rate: float = 0.0
    hold: int = 0
    """Number of periods until the next trial."""


def next_width(width: Width, rate: float, most: int) -> Width:
    """Return how many lanes to open after a period with this rate, in bytes per second."""
    if width.lanes > most:
        # Another copy now shares the budget.
        return Width(lanes=most, hold=_HOLD_PERIODS)
    if width.hold > 0:
        return replace(width, hold=width.hold - 1)
    if width.former and rate < width.former_rate * _WORTH:
        return Width(lanes=width.former, hold=_HOLD_PERIODS)
    wider = min(width.lanes * 2, most)
    if wider == width.lanes:
        return Width(lanes=width.lanes, hold=_HOLD_PERIODS)
    return Width(lanes=wider, former=width.lanes, former_rate=rate)


class Lanes:
    """Runs tasks in order of arrival; the next call of `reap` raises the first error."""

    def __init__(self, most: int) -> None:
        self.pending = 0
        self._width = Width(lanes=min(START_LANES, most))
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._ended: deque[BaseException | None] = deque()
        self._worth_a_look = threading.Event()
        self._threads: list[threading.Thread] = []
        self._may_work = threading.Condition()
        self._closed = False
        self._measured_at, self._moved = time.monotonic(), 0

    def put(self, task: Callable[[], None]) -> None:
        self.pending += 1
        self._tasks.put(task)
        if len(self._threads) < min(self._width.lanes, self.pending):
            self._start()

    def reap(self, timeout: float) -> None:
        """Wait until all have ended, one has failed, or the timeout. Raises a task's error."""
        if timeout and len(self._ended) < self.pending:
            self._await_an_end(timeout)
        while self._ended:
            error = self._ended.popleft()
            self.pending -= 1
            if error is not None:
                raise error

    def _await_an_end(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._worth_a_look.wait(max(0.0, deadline - time.monotonic())):
            self._worth_a_look.clear()
            # Otherwise the signal came late, from a task that was reaped before.
            if self._ended:
                return

    def adapt(self, moved: int, most: int) -> None:
        """Open or close lanes, `most` of them, by the bytes moved since the start."""
        elapsed = time.monotonic() - self._measured_at
        if elapsed < _PERIOD_S:
            return
        rate = (moved - self._moved) / elapsed
        self._measured_at, self._moved = time.monotonic(), moved
        before = self._width.lanes
        self._width = next_width(self._width, rate, most)
        if self._width.lanes > before:
            with self._may_work:
                self._may_work.notify_all()
        for _ in range(min(self._width.lanes - len(self._threads), self._tasks.qsize())):
            self._start()

    def close(self) -> None:
        """End all threads after their current tasks; drop the rest."""
        self._closed = True
        for _ in self._threads:
            self._tasks.put(None)
        with self._may_work:
            self._may_work.notify_all()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._work, args=(number,), name=f"copy-{number}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, number: int) -> None:
        while True:
            if number >= self._width.lanes:
                with self._may_work:
                    self._may_work.wait_for(lambda: number < self._width.lanes or self._closed)
            task = self._tasks.get()
            if task is None or self._closed:
                return
            error: BaseException | None = None
            try:
                task()
            except BaseException as raised:  # noqa: BLE001 - `reap` raises it
                error = raised
            self._ended.append(error)
            # Not for every file: waking a thread takes a tenth of a small file's copy.
            if error or len(self._ended) >= self.pending:
                self._worth_a_look.set()
