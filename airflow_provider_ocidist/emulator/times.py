"""Times: RFC 3339 in what clients send and get, milliseconds since 1970 in between."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from airflow_provider_ocidist.emulator.errors import invalid


def read_time(text: Any, name: str) -> int:
    """Return a time in milliseconds; one without an offset is UTC. Raises 400 that names the field."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise invalid(f"{name} {text!r} is not an RFC 3339 time.") from error
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


def rfc3339(time_ms: int) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{_seconds(seconds)}.{milliseconds:03}Z"


@lru_cache
def _seconds(seconds: int) -> str:
    """Of a page of log entries, many are of the same second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
