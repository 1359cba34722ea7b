"""Times: RFC 3339 in what clients send and get, milliseconds since 1970 in between."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

from airflow_provider_ocidist.emulator.errors import invalid

_FRACTION = re.compile(r"\.(\d+)")
LAST_MS = 253402300799_999
"""The last millisecond of the year 9999, which can be written."""


def parsed(text: str) -> datetime:
    """Return a time as RFC 3339 has it; before Python 3.11 the library knows neither Z nor any length of a fraction."""
    return datetime.fromisoformat(
        _FRACTION.sub(lambda found: f".{found[1]:0<6.6}", text.replace("Z", "+00:00"))
    )


def read_time(text: Any, name: str) -> int:
    """Return a time in milliseconds; one without an offset is UTC. Raises 400 that names the field."""
    try:
        moment = parsed(text)
        # In UTC too it must be in a year that can be written.
        moment = moment.replace(tzinfo=moment.tzinfo or timezone.utc).astimezone(timezone.utc)
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid(f"{name} {text!r} is not an RFC 3339 time.") from error
    return min(round(moment.timestamp() * 1000), LAST_MS)


def rfc3339(time_ms: int) -> str:
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{_seconds(seconds)}.{milliseconds:03}Z"


@lru_cache
def _seconds(seconds: int) -> str:
    """Return the time as a text; many log entries of a page have the same second."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")
