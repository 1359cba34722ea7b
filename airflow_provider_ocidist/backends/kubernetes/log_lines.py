"""The lines of a pod's log, as the API server returns them with their times. Pure."""

from __future__ import annotations

from datetime import datetime, timezone

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.backports import moment


def lines_of(content: bytes, pod: str, rank: int, since: float, *, cut: bool) -> list[LogLine]:
    """Return the lines of a part of a log that begins with a whole second; those since a Unix time.

    A line that is read again in another part has the same id: its time, and which of that time it is. `cut`: the last
    line may be incomplete, and is left out.
    """
    found: list[LogLine] = []
    same: dict[str, int] = {}
    rows = content.decode(errors="replace").split("\n")
    for row in rows[:-1] if cut else rows:
        stamp, _, text = row.partition(" ")
        at = _time(stamp)
        if at is None:
            continue
        number = same[stamp] = same.get(stamp, -1) + 1
        if at >= since:
            found.append(LogLine(id=f"{pod} {stamp} {number}", time=at, rank=rank, text=text))
    return found


def last_time(content: bytes) -> float | None:
    """Return the time of the last line of a part of a log, also of one that is incomplete; None where none has one."""
    rows = content.split(b"\n")
    # Of the last one, even the time may be incomplete.
    stamps = (row.partition(b" ") for row in reversed(rows[-2:]))
    times = (_time(stamp.decode(errors="replace")) for stamp, blank, _ in stamps if blank)
    return next((each for each in times if each is not None), None)


def _time(stamp: str) -> float | None:
    try:
        return moment(stamp).timestamp()
    except ValueError:
        return None


def since_time(since: float) -> str | None:
    """Return a Unix time as the API takes it, to the second; None: from the beginning."""
    if since < 1:
        return None
    return datetime.fromtimestamp(int(since), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
