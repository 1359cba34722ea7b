"""The log lines of gangs: which runs write to which log, and what its entries are as lines of nodes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.base import LogLine, LogPart
from airflow_provider_ocidist.backends.oci_data_science.answers import log_line
from airflow_provider_ocidist.backends.oci_data_science.log_searches import LogSearches, Searched
from airflow_provider_ocidist.model.run import RunRef

log = logging.getLogger(__name__)


def log_parts(
    searches: LogSearches,
    place_of: Callable[[RunRef], str],
    wanted: Sequence[tuple[RunRef, Sequence[float]]],
    pages: int | None,
) -> list[LogPart]:
    """Return the lines of gangs since these times by rank, in as few searches as their logs allow.

    `place_of`: returns where a gang's log lies.
    """
    place_by_job: dict[str, str] = {}
    places: dict[str, dict[str, float]] = {}
    for ref, since in wanted:
        for run_id, ranks in _logging_runs(ref).items():
            # A log is read on from its newest line, of any node.
            start = max((since[rank] for rank in ranks if since[rank] < math.inf), default=None)
            if start is None:
                continue
            if ref.job_id not in place_by_job:
                place_by_job[ref.job_id] = place_of(ref)
            starts = places.setdefault(place_by_job[ref.job_id], {})
            starts[run_id] = min(start, starts.get(run_id, start))
    found = {place: searches.lines_of(place, starts, pages) for place, starts in places.items()}
    return [_log_part(ref, found.get(place_by_job.get(ref.job_id, ""))) for ref, _ in wanted]


def _logging_runs(ref: RunRef) -> dict[str, list[int]]:
    """Return the ranks of the nodes of each run of a gang, which write to its log."""
    ranks: dict[str, list[int]] = {}
    if ref.log_group_id is not None:
        for rank, run_id in enumerate(ref.run_ids):
            ranks.setdefault(run_id, []).append(rank)
    return ranks


def _lines_in(entries: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> Iterator[LogLine]:
    for entry in entries:
        try:
            yield log_line(ranks, entry)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            log.warning("an entry of the log is not a line of a node: %s: %s", type(error).__name__, error)


def _log_part(ref: RunRef, found: Searched | None) -> LogPart:
    if found is None:
        return LogPart()
    runs = _logging_runs(ref)
    lines = [
        line for run_id, ranks in runs.items() for line in _lines_in(found.entries.get(run_id, ()), ranks)
    ]
    return LogPart(
        lines=sorted(lines, key=lambda line: line.time),
        unread_from={
            rank: found.unread_from[run_id]
            for run_id, ranks in runs.items()
            for rank in ranks
            if run_id in found.unread_from
        },
    )
