"""Recorded calls: the requests that an API of the emulator has answered, for tests that look at them."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow_provider_ocidist.emulator import patterns
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.wire import REQUEST_ID

MAX_CALLS = 20_000
MAX_PATH_CHARS = 4_096
"""Most characters of each path and host that is kept of a call."""
PAR_PATH = re.compile(r"/p/[^/?\s]+(?=/n/|[?\s]|$)")
CALL_FILTERS = ("method", "path", "host")
FILTER_S = 0.3
"""Seconds of a processor that the filters of one request may take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedCall:
    """A request that was answered, or cut off (status 0)."""

    method: str
    path: str
    status: int
    time: float
    """Unix time at the request's start."""
    duration_s: float
    request_id: str
    host: str


FIELDS = tuple(field.name for field in fields(RecordedCall))


def recorded(
    method: str, path: str, status: int, started: float, *, request_id: str = "", host: str = ""
) -> RecordedCall:
    """Return what is kept of a request: little, for a client without a key may send thousands of long ones."""
    return RecordedCall(
        method=method,
        path=path[:MAX_PATH_CHARS],
        status=status,
        time=started,
        duration_s=time.time() - started,
        request_id=request_id if REQUEST_ID.fullmatch(request_id) else "",
        host=host[:MAX_PATH_CHARS],
    )


def new_record() -> deque[RecordedCall]:
    """Return an empty record; it keeps the last calls."""
    return deque(maxlen=MAX_CALLS)


def filtered(calls: Iterable[RecordedCall], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the calls that fit the filters of a query. Raises 400 for a filter that is no expression."""
    wanted = {name: query[name] for name in CALL_FILTERS if name in query}
    budget = patterns.MatchingTime(FILTER_S)
    try:
        for pattern in wanted.values():
            patterns.compiled(pattern)
        found = [
            each
            for each in calls
            if not wanted
            or patterns.all_fit(list(wanted.values()), [getattr(each, name) for name in wanted], budget)
        ]
    except patterns.PatternError as error:
        raise invalid(f"A filter cannot be used: {error}.") from error
    # Not asdict, which takes ten times as long: all requests wait meanwhile.
    return [{name: getattr(each, name) for name in FIELDS} for each in found]


def hide_par(text: str) -> str:
    """Return a text without the secret that makes the URL of a pre-authenticated request."""
    return PAR_PATH.sub("/p/(hidden)", text)
