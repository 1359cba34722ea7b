"""The log lines of many job runs, in few searches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from airflow_provider_ocidist.backports import UTC, moment
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.work_dir.parallel import in_parallel

RUNS_AT_A_TIME = 40
"""Number of runs in one search, a query of some 5,000 characters. The service names no limit."""
SEARCHES_AT_A_TIME = 4
"""Searches that run side by side."""
LINES = 1000
"""Lines on a page, as many as the service gives."""
RECENT = 300.0
"""Seconds by which the read positions of runs in one search may differ: none is re-read from far back."""
OLDER_SEARCHES = 40
"""Number of searches in one poll for runs that were read before; the others follow in the next polls."""
CROWDED_FOR = 600.0
"""Seconds during which a log that holds many lines of others is searched run by run."""
AHEAD = 2.0
"""Seconds beyond the present up to which is searched: the present is known by answers' dates, in whole seconds."""
LONGEST = 13.9 * 86400
"""Longest range of a search in seconds; the service allows 14 days."""
SHORTEST = 0.002
"""Shortest span in seconds that is divided: a search takes a millisecond at least."""
TOO_LARGE = "search result is too large"
"""Words by which the service refuses a search that finds too much (Oracle ADS: `oci_logging.py`)."""

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Searched:
    """What searches have found, by the id of the run."""

    entries: dict[str, list[Entry]]
    unread_from: dict[str, float] = field(default_factory=dict)
    """Unix time of the first unread entry, of runs that have any."""


class LogSearches:
    """Searches the logs of one connection.

    A search names up to forty runs. For more runs, reading the whole log takes fewer calls, unless it holds many
    entries of others; that is tried again now and then.
    """

    def __init__(self, client: Callable[[], Any], clock: Callable[[], float] = time.time) -> None:
        """`clock`: of the service, which says when lines were written; a search ends at its present."""
        self._client = client
        self._clock = clock
        self._crowded_until: dict[str, float] = {}

    def lines_of(self, place: str, since: Mapping[str, float], pages: int | None = None) -> Searched:
        """Return the entries of each run of `since`, by its id, from its Unix time on; older ones may be among them.

        `pages` bounds what is read for recent runs, and separately for runs that were read up to an earlier time:
        one page for each search, and so many more for all searches together. Unread entries are always the newest
        of a run.
        """
        now = self._clock()
        found = Searched({run_id: [] for run_id in since})
        recent = {run_id: start for run_id, start in since.items() if start >= now - RECENT}
        older = list(_of_similar_start({run_id: since[run_id] for run_id in since.keys() - recent.keys()}))
        if not self._read_as_a_whole(place, recent, now, found):
            self._read_apart(place, list(_of_similar_start(recent)), now, pages, found)
        if pages is not None:
            found.unread_from.update(chain.from_iterable(batch.items() for batch in older[OLDER_SEARCHES:]))
            del older[OLDER_SEARCHES:]
        self._read_apart(place, older, now, pages, found)
        return found

    def _read_as_a_whole(self, place: str, recent: Mapping[str, float], now: float, found: Searched) -> bool:
        if len(recent) <= RUNS_AT_A_TIME or self._crowded_until.get(place, 0.0) >= now:
            return False
        budget = _Pages(len(recent) // RUNS_AT_A_TIME + 1)
        entries, complete = self._search(place, min(recent.values()), now, budget)
        if not complete:
            self._crowded_until[place] = now + CROWDED_FOR
            return False
        _sort_in(entries, recent, found)
        return True

    def _read_apart(
        self,
        place: str,
        batches: Sequence[Mapping[str, float]],
        now: float,
        pages: int | None,
        found: Searched,
    ) -> None:
        budget = _Pages(math.inf if pages is None else pages)
        answers = in_parallel(
            lambda batch: self._search(place, min(batch.values()), now, budget, list(batch)),
            batches,
            SEARCHES_AT_A_TIME,
        )
        for batch, (entries, complete) in zip(batches, answers, strict=True):
            _sort_in(entries, batch, found)
            if not complete:
                last = _time_of(entries[-1])
                found.unread_from.update((run_id, max(start, last)) for run_id, start in batch.items())

    def _search(
        self, place: str, start: float, now: float, budget: _Pages, run_ids: Sequence[str] = ()
    ) -> tuple[list[Entry], bool]:
        """Return the entries of a search, oldest first, and whether these are all."""
        sources = " OR ".join(f"source = '*{run_id}'" for run_id in run_ids)
        query = f'SEARCH "{place}" |{f" WHERE {sources} |" if sources else ""} SORT BY datetime ASC'
        start = max(start, now - LONGEST)

        def is_enough(entries: Sequence[Entry]) -> bool:
            # A page may be empty; and the next search, which begins at the last entry, must read further.
            return not budget.take() and bool(entries) and (not run_ids or _time_of(entries[-1]) > start)

        # A clock that is behind the service's must not make the time span end before it begins.
        spans = [(start, max(now + AHEAD, start + 1))]
        entries: list[Entry] = []
        while spans:
            begin, end = spans.pop()
            try:
                complete = self._read_span(query, begin, end, entries, is_enough)
            except BackendError as error:
                if not _is_too_large(error) or end - begin < SHORTEST:
                    raise
                # As Oracle ADS does: `oci_logging.py`, `_search_logs`.
                half = round((begin + end) / 2, 3)
                spans += [(half, end), (begin, half)]
                continue
            if not complete or (spans and is_enough(entries)):
                return entries, False
        return entries, True

    def _read_span(
        self,
        query: str,
        begin: float,
        end: float,
        entries: list[Entry],
        is_enough: Callable[[Sequence[Entry]], bool],
    ) -> bool:
        """Add the entries of a time span, oldest first; return whether these are all. Raises BackendError."""
        search = {
            "timeStart": datetime.fromtimestamp(begin, UTC),
            "timeEnd": datetime.fromtimestamp(end, UTC),
            "searchQuery": query,
            "isReturnFieldInfo": False,
        }
        known = len(entries)
        page: dict[str, str] = {}
        while True:
            try:
                with oci_errors("reading the logs"):
                    answer = self._client().search_logs(search, limit=LINES, **page)
            except BackendError:
                # The parts of the span are read from its begin.
                del entries[known:]
                raise
            entries += [result.data for result in answer.data.results or ()]
            if not answer.headers.get("opc-next-page"):
                return True
            if is_enough(entries):
                return False
            page = {"page": answer.headers["opc-next-page"]}


def _is_too_large(error: BackendError) -> bool:
    return error.status_code == 400 and TOO_LARGE in str(error).lower()


class _Pages:
    """Pages that searches side by side may read beyond each one's first."""

    def __init__(self, left: float) -> None:
        self._left = left

    def take(self) -> bool:
        """Return whether one more may be read. Two threads may take the same one: the bound is no exact one."""
        self._left -= 1
        return self._left >= 0


def _of_similar_start(since: Mapping[str, float]) -> Iterator[dict[str, float]]:
    """Yield runs that may share a search, oldest first: none is read again from long before it was read to."""
    batch: dict[str, float] = {}
    for run_id, start in sorted(since.items(), key=lambda item: item[1]):
        if batch and (len(batch) == RUNS_AT_A_TIME or start - min(batch.values()) > RECENT):
            yield batch
            batch = {}
        batch[run_id] = start
    if batch:
        yield batch


def _time_of(entry: Entry) -> float:
    """Return when an entry was written, in whole milliseconds, as the service searches for it. Unix time."""
    written = moment(entry["logContent"]["time"]).timestamp()
    return math.floor(written * 1000) / 1000


def _sort_in(entries: Sequence[Entry], run_ids: Mapping[str, float], found: Searched) -> None:
    """Add entries to those of their runs; those of runs that were not searched for are left out.

    A source is only known to end in the run's OCID, so searches put a `*` before it.
    """
    by_end = {run_id.rpartition(".")[2]: run_id for run_id in run_ids}
    for entry in entries:
        # Other programs may write to the log, in other forms.
        content = entry.get("logContent") if isinstance(entry, Mapping) else None
        source = content.get("source") if isinstance(content, Mapping) else None
        run_id = by_end.get(str(source or "").rpartition(".")[2])
        if run_id is not None:
            found.entries[run_id].append(entry)
