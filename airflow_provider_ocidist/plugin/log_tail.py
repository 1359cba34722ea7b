"""LogTail: the last lines of one node."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_ocidist.backends.base import Backend, LogLine
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.run import RunRef

LINES = 50
"""Most lines that are shown."""
FIRST_WINDOW = 20.0
"""Seconds before the end that are searched first, as a log is only read forwards, and may be long."""
WIDER = 6.0
"""Factor between the windows of two searches: wider for more lines, narrower where there are too many."""
MOST_LINES = 3000
"""Most lines read of a window, of all nodes of a run: the API server serves a page every few seconds."""
SHORTEST_WINDOW = 0.5
"""Seconds of a window that is not narrowed any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogTail:
    """The newest lines, the oldest first."""

    lines: tuple[LogLine, ...] = ()
    problem: str | None = None


def log_tail_of(backend: Backend, ref: RunRef, rank: int, until: float) -> LogTail:
    """Return the last lines that a node wrote up to a Unix time. Raises BackendError."""
    if not ref.has_log:
        return LogTail(problem=f"the nodes' output is not kept: {words_of(ref.backend).keep_log}")
    earliest = ref.submitted_at - 1

    def read(window: float) -> tuple[list[LogLine], bool]:
        since = [math.inf] * ref.nodes
        since[rank] = max(earliest, until - window)
        (part,) = backend.logs_of([(ref, since)], MOST_LINES)
        return [line for line in part.lines if line.rank == rank], rank not in part.unread_from

    lines, reached = _newest(read, until - earliest)
    if not lines and reached < until - earliest:
        return LogTail(
            problem=f"this node printed nothing in the last {reached:.0f} s, and the other nodes printed too much to "
            "search further back here: see the log of the task"
        )
    return LogTail(lines=tuple(lines[-LINES:]))


def _newest(
    read: Callable[[float], tuple[list[LogLine], bool]], longest: float
) -> tuple[list[LogLine], float]:
    """Return enough lines, if any, and the seconds searched. `read` returns whether it read all."""
    window = FIRST_WINDOW
    lines, complete = read(window)
    while not complete and window > SHORTEST_WINDOW:
        window /= WIDER
        lines, complete = read(window)
    while window >= FIRST_WINDOW and len(lines) < LINES and window < longest:
        wider, complete = read(window * WIDER)
        if not complete:
            break
        window, lines = window * WIDER, wider
    return lines, min(window, longest)
