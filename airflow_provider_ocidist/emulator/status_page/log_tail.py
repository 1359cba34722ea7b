"""The lines of some job runs: the newest, those before, and those that came since."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.emulator.data_science.job_runs import JobRun
from airflow_provider_ocidist.emulator.errors import ApiError, invalid
from airflow_provider_ocidist.emulator.logs.search import MAX_RANGE_MS
from airflow_provider_ocidist.emulator.status_page.inside import Inside
from airflow_provider_ocidist.emulator.times import LAST_MS, read_time, rfc3339
from airflow_provider_ocidist.emulator.wire import page_token, read_page_token

LINES = 500
"""Most lines of one answer."""
WHERE_LEVELS_ARE = 80
"""Characters at the beginning of a line in which loggers write the level."""
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|\[E\d|^E\d{4} |^Traceback \(|^[\w.]*(?:Error|Exception|Interrupt)\b(?::|$)"
    r"|^(?:fatal|error): ",
)
_WARNING = re.compile(r"\b(?:WARN|WARNING)\b|^W\d{4} |^(?:\S*: )?\w*Warning: ")
GROUPS = "/20200531/logGroups"


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, of which some pages may have been read: `start <= time < end` in ms since 1970."""

    start: int
    end: int
    page: str | None = None

    def token(self) -> str:
        return page_token([self.start, self.end, self.page])


def read_window(token: str) -> Window:
    """Return the window of a `Window.token`. Raises 400."""
    found = read_page_token(token)
    whole = isinstance(found, list) and [type(each) for each in found[:2]] == [int, int] and len(found) == 3
    if not whole or not all(0 <= each <= LAST_MS for each in found[:2]):
        raise invalid("The position in the log is not one that this page has returned.")
    return Window(found[0], found[1], None if found[2] is None else str(found[2]))


class LastLines:
    """Searches the logs as every client does, but returns exactly which part was read."""

    def __init__(self, inside: Inside, lag_s: float) -> None:
        self._inside = inside
        self._lag_ms = round(lag_s * 1000)

    def _end(self) -> int:
        """Return the time before which no line can be added any more."""
        return time.time_ns() // 1_000_000 - self._lag_ms

    async def newest(self, runs: Sequence[JobRun]) -> dict[str, Any]:
        """Return the last lines, and where to go on from them in both directions."""
        end = self._end()
        accepted = (read_time(run.time_created, "timeAccepted") for run in runs)
        start = max(min(accepted, default=end), end - MAX_RANGE_MS)
        answer = await self._before(runs, Window(start, end))
        return {**answer, "after": Window(end, end).token()}

    async def before(self, runs: Sequence[JobRun], token: str) -> dict[str, Any]:
        """Return the lines before those already given."""
        return await self._before(runs, read_window(token))

    async def _before(self, runs: Sequence[JobRun], window: Window) -> dict[str, Any]:
        lines, page = await self._search(runs, window, "DESC")
        earlier = Window(window.start, window.end, page).token() if page else None
        return {"lines": lines[::-1], "before": earlier}

    async def after(self, runs: Sequence[JobRun], token: str) -> dict[str, Any]:
        """Return the lines that came since, as many as fit; asked again, it goes on where it stopped."""
        window = read_window(token)
        if window.page is None:
            window = Window(window.end, max(self._end(), window.end))
        lines, page = await self._search(runs, window, "ASC")
        return {"lines": lines, "after": Window(window.start, window.end, page).token(), "more": bool(page)}

    async def _search(
        self, runs: Sequence[JobRun], window: Window, order: str
    ) -> tuple[list[dict[str, Any]], str | None]:
        places = await self._places(runs)
        if not places or window.end <= window.start:
            return [], None
        body = {
            "searchQuery": query(places, runs, order),
            "timeStart": rfc3339(window.start),
            "timeEnd": rfc3339(window.end),
        }
        page = {"page": window.page} if window.page else {}
        answer = await self._inside.send("POST", "/20190909/search", {"limit": LINES, **page}, body=body)
        found = json.loads(bytes(answer.body))["results"]
        return [_line(each["data"]) for each in found], answer.headers.get("opc-next-page")

    async def _places(self, runs: Sequence[JobRun]) -> list[str]:
        """Return the logs that the runs write to, with their groups and the compartments of these."""
        logs = {(run.log_details["logGroupId"], run.log_details["logId"]) for run in runs if run.log_details}
        found = []
        for group, log in sorted(logs):
            # A log may be deleted while its runs are still there.
            with suppress(ApiError):
                compartment = (await self._inside.get(f"{GROUPS}/{group}"))["compartmentId"]
                found.append(f"{compartment}/{group}/{log}")
        return found


def query(places: Sequence[str], runs: Sequence[JobRun], order: str) -> str:
    """Return a search for all lines of some runs."""
    scopes = ", ".join(f'"{place}"' for place in places)
    sources = " OR ".join(f"source = '*{run.id}'" for run in runs)
    return f"SEARCH {scopes} | WHERE {sources} | SORT BY datetime {order}"


def level_of(text: str) -> str:
    """Return `error` or `warning` for a line that says so itself, else nothing: loggers write all levels to stderr."""
    start = text[:WHERE_LEVELS_ARE]
    if _ERROR.search(start):
        return "error"
    return "warning" if _WARNING.search(start) else ""


def _line(data: Mapping[str, Any]) -> dict[str, Any]:
    content = data["logContent"]
    text = content["data"]["message"]
    return {
        "time": data["datetime"],
        "run": content["source"],
        "node": content.get("subject") or "",
        "error": content["type"].endswith(".stderr"),
        "level": level_of(text),
        "text": text,
    }
