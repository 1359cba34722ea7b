"""Log search: finds lines by where, when and what, a page at a time."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.fields import required_text
from airflow_provider_ocidist.emulator.logs.catalog import Log, LogCatalog
from airflow_provider_ocidist.emulator.logs.entries import Entries, field_of_all
from airflow_provider_ocidist.emulator.logs.query import LogQuery, Scope, parse
from airflow_provider_ocidist.emulator.logs.streams import Streams
from airflow_provider_ocidist.emulator.times import LAST_MS, read_time
from airflow_provider_ocidist.emulator.wire import Call, Route, page_token, read_page_token

DAY_MS = 24 * 3600 * 1000
MAX_RANGE_MS = 14 * DAY_MS
DEFAULT_LIMIT, MAX_LIMIT = 100, 1000
LINES_AT_ONCE = 500
"""Number of lines that are looked at before other tasks get their turn."""


class Hit(NamedTuple):
    """A line that a search found, not read yet."""

    time_ms: int
    number: int
    entries: Entries


class SearchPosition(NamedTuple):
    """How far the pages of a search have come: to a millisecond, of which so many entries were sent."""

    time_ms: int | None
    sent: int


class Search:
    """Answers /search."""

    def __init__(self, catalog: LogCatalog, streams: Streams, tenancy_id: str) -> None:
        self._catalog = catalog
        self._streams = streams
        self._tenancy_id = tenancy_id

    def routes(self) -> list[Route]:
        return [Route("POST", "/20190909/search", self.search)]

    async def search(self, call: Call) -> Response:
        details = await call.json()
        query = parse(required_text(details, "searchQuery"))
        start, end = (read_time(required_text(details, name), name) for name in ("timeStart", "timeEnd"))
        _check_range(start, end)
        limit = call.number("limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
        place = _place(call.query.get("page"))
        window = _rest(start, end, place, query)
        wanted = place.sent + limit + 1
        found = [
            await self._hits_of(entries, sure, query, window, wanted)
            for entries, sure in list(self._candidates(query))
        ]
        ordered = heapq.merge(*found, key=lambda hit: hit.time_ms, reverse=query.descending)
        hits = list(islice(ordered, place.sent, wanted))
        return _answer(hits[:limit], _next_page(hits, limit, place))

    def _candidates(self, query: LogQuery) -> Iterator[tuple[Entries, bool]]:
        """Yield the streams that may hold hits, and whether all their lines are hits.

        Most searches name the run: no line of another run is looked at to be rejected.
        """
        for log in self._logs(query.scopes):
            place = self._place_of(log)
            for stream in self._streams.of_log(log.id):
                verdict = query.condition(partial(field_of_all, stream, place))
                if verdict is not False:
                    yield Entries(stream, self._streams.file(stream.id), place), verdict is True

    async def _hits_of(
        self, entries: Entries, sure: bool, query: LogQuery, window: tuple[int, int], wanted: int
    ) -> Iterable[Hit]:
        """Return a stream's hits in the order of the query, as many as are wanted."""
        file = entries.file
        numbers = file.between(*window)
        visible = self._streams.visible(file, reversed(numbers) if query.descending else numbers)
        if not sure:
            visible = iter(await _matching(entries, query, visible, wanted))
        return (Hit(file.time_of(number), number, entries) for number in islice(visible, wanted))

    def _logs(self, scopes: Iterable[Scope]) -> list[Log]:
        """Return the logs that a search names; groups and logs may be named by OCID or display name."""
        scopes = list(scopes)
        return [log for log in self._catalog.logs.values() if any(self._is_in(log, each) for each in scopes)]

    def _is_in(self, log: Log, scope: Scope) -> bool:
        group = self._catalog.group(log.log_group_id)
        return (
            scope.compartment_id == group.compartment_id
            and scope.log_group_id in (None, group.id, group.display_name)
            and scope.log_id in (None, log.id, log.display_name)
        )

    def _place_of(self, log: Log) -> dict[str, str]:
        return {
            "compartmentid": self._catalog.compartment_of(log),
            "loggroupid": log.log_group_id,
            "logid": log.id,
            "tenantid": self._tenancy_id,
        }


async def _matching(entries: Entries, query: LogQuery, numbers: Iterable[int], wanted: int) -> list[int]:
    """Return the first lines that match. There may be many to look at, so others get their turn in between."""
    found: list[int] = []
    for looked_at, number in enumerate(numbers):
        if query.condition(partial(entries.field, number)):
            found.append(number)
            if len(found) == wanted:
                break
        if looked_at % LINES_AT_ONCE == LINES_AT_ONCE - 1:
            await asyncio.sleep(0)
    return found


def _answer(hits: Sequence[Hit], headers: Mapping[str, str]) -> Response:
    results = ",".join(hit.entries.json(hit.number) for hit in hits)
    summary = f'{{"resultCount":{len(hits)},"fieldCount":0}}'
    body = f'{{"results":[{results}],"fields":[],"summary":{summary}}}'
    return Response(body, headers=dict(headers), media_type="application/json")


def _check_range(start: int, end: int) -> None:
    if end <= start:
        raise invalid("timeEnd must be at least 1 ms later than timeStart.")
    if end - start > MAX_RANGE_MS:
        raise invalid("The time range of a search may not exceed 14 days.")


def _place(token: str | None) -> SearchPosition:
    if token is None:
        return SearchPosition(None, 0)
    found = read_page_token(token)
    whole = isinstance(found, list) and [type(each) for each in found] == [int, int]
    if not whole or not all(0 <= each <= LAST_MS for each in found):
        raise invalid("page is not a token of this service.")
    return SearchPosition(*found)


def _rest(start: int, end: int, place: SearchPosition, query: LogQuery) -> tuple[int, int]:
    """Return the part of the time range that is still to be looked at."""
    if place.time_ms is None:
        return start, end
    return (start, place.time_ms + 1) if query.descending else (place.time_ms, end)


def _next_page(hits: Sequence[Hit], limit: int, place: SearchPosition) -> dict[str, str]:
    """Return the header that leads to the next page, if there is one."""
    if len(hits) <= limit:
        return {}
    last = hits[limit - 1].time_ms
    sent = sum(hit.time_ms == last for hit in hits[:limit])
    return {
        "opc-next-page": page_token(SearchPosition(last, sent + (place.sent if last == place.time_ms else 0)))
    }
