"""The recorded calls, as the page shows them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from airflow_provider_ocidist.emulator.recorded_calls import RecordedCall

MAX_ROWS = 1000
"""Most calls of one answer: as many as the page keeps (`calls.js`), so that none is missing between two of its rows."""
SECONDS = 60
"""Number of the last seconds whose calls `rate` counts, each by itself."""


def since(
    calls: Sequence[RecordedCall], last: str | None, *, limit: int, search: str, errors_only: bool
) -> dict[str, Any]:
    """Return the newest calls, back to one that the page has; the newest first."""
    newest: list[dict[str, Any]] = []
    for call in reversed(calls):
        if key(call) == last or len(newest) >= limit:
            break
        if _wanted(call, search, errors_only=errors_only):
            newest.append(call_body(call))
    return {"calls": newest, "last": key(calls[-1]) if calls else None, "total": len(calls)}


def key(call: RecordedCall) -> str:
    """Return the identity of this call."""
    return f"{call.time:.6f}-{call.duration_s:.9f}-{call.request_id}"


def _wanted(call: RecordedCall, search: str, *, errors_only: bool) -> bool:
    if errors_only and not _is_error(call):
        return False
    return search.lower() in f"{call.method} {call.path} {call.status}".lower()


def _is_absence(call: RecordedCall) -> bool:
    """Whether a client has asked for what is not there (yet), as those do that wait for a file."""
    return call.status == 404 and call.method in ("GET", "HEAD")


def _is_error(call: RecordedCall) -> bool:
    return (call.status == 0 or call.status >= 400) and not _is_absence(call)


def call_body(call: RecordedCall) -> dict[str, Any]:
    return {
        "key": key(call),
        "time": call.time,
        "method": call.method,
        "host": call.host,
        "path": call.path,
        "status": call.status,
        "error": _is_error(call),
        "ms": round(call.duration_s * 1000, 2),
        "request": call.request_id,
    }


def rate(calls: Sequence[RecordedCall]) -> dict[str, list[int]]:
    """Return how many calls each of the last seconds saw, how many errors, and how many for what is not there; the
    oldest first.
    """
    now = time.time()
    seen, errors, absent = [0] * SECONDS, [0] * SECONDS, [0] * SECONDS
    for call in takewhile(lambda call: call.time >= now - SECONDS, reversed(calls)):
        place = SECONDS - 1 - min(max(int(now - call.time), 0), SECONDS - 1)
        seen[place] += 1
        errors[place] += _is_error(call)
        absent[place] += _is_absence(call)
    return {"calls": seen, "errors": errors, "absent": absent}
