"""The logs of pods, in parts that a look has room for: the API server returns them from a second on, whole."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_ocidist.backends.base import LogLine, LogPart
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.log_lines import last_time, lines_of, since_time
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.amounts import size_text
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.work_dir.parallel import PARALLEL, in_parallel

log = logging.getLogger(__name__)

BYTES_OF_A_LINE = 200
"""Assumed bytes of a line, to turn a number of lines into a limit that the API server takes."""
LEAST_BYTES = 65_536
"""Bytes that are asked for of one pod's log, at least."""
MOST_BYTES = 16 << 20
"""Most bytes read of one second of one pod; what it wrote beyond that is left out."""
WIDER = 4
"""Factor by which more bytes are asked for where a part ends in the second that it begins in."""
FEW_PODS = 64
"""Number of logs up to which all are read at each look, however many gangs they are of."""
READS_PER_S, MOST_AT_ONCE = 10.0, 100.0
"""Logs that are read of more pods than that: per second, and at most per look."""
READS_AT_A_TIME = 8
"""Logs that are read side by side where many gangs wait in one process."""
UNREADABLE_STATUSES = (400, 404)
"""Statuses for the log of a container that has not started, and of a pod that is deleted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PodLog:
    """The part of one node's log that is to be read."""

    namespace: str
    pod: str
    rank: int
    since: float
    """Unix time of the first line to read; infinity: none."""
    container: str | None = None
    """Name of the container; None: the only one."""
    previous: bool = False
    """Whether to read the log of the container's start before this one."""


@dataclass(frozen=True, slots=True)
class PodLines:
    """The lines that were read of one node's log."""

    lines: tuple[LogLine, ...] = ()
    unread_from: float | None = None
    """Unix time of the first unread line; None: all were read."""

    @classmethod
    def later(cls, since: float) -> Self:
        """Return no lines: the next look reads the log."""
        return cls(unread_from=None if since == math.inf else since)


class Turns:
    """Divides the reading of logs among the looks: each pod's log takes a request of its own. Safe to share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._saved, self._at = MOST_AT_ONCE, clock()
        self._read_at: dict[Hashable, float] = {}

    def of(self, pods: Sequence[Hashable], gangs: int) -> Collection[Hashable]:
        """Return the pods to read now: all of one gang, or if they are few; else those that have waited longest."""
        with self._lock:
            now = self._clock()
            self._saved = min(MOST_AT_ONCE, self._saved + READS_PER_S * (now - self._at))
            self._at = now
            if gangs == 1 or len(pods) <= FEW_PODS:
                return set(pods)
            due = sorted(pods, key=lambda pod: self._read_at.get(pod, -math.inf))[: int(self._saved)]
            self._saved -= len(due)
            before = self._read_at
            self._read_at = {**{pod: before[pod] for pod in pods if pod in before}, **dict.fromkeys(due, now)}
            return set(due)


def in_turn(
    gangs: Sequence[tuple[RunRef, Sequence[float]]],
    read_node: Callable[[RunRef, int, float, int], PodLines],
    turns: Turns,
    most: int,
) -> list[LogPart]:
    """Return the lines of gangs since these Unix times by rank, of the nodes whose turn it is.

    A machine that is lost takes only the logs of its own pods along: those are for a later look. Raises BackendError
    where no log can be read.

    `read_node`: reads the log of a node since a Unix time, about so many bytes of it. `most`: about how many lines of
    all are wanted.
    """
    nodes = [(ref, rank, since[rank]) for ref, since in gangs for rank in range(ref.nodes)]
    turn = turns.of([(ref.job_id, rank) for ref, rank, _ in nodes], gangs=len(gangs))
    limit = _bytes_of(most, len(turn))
    due = [node for node in nodes if (node[0].job_id, node[1]) in turn]

    def read_one(node: tuple[RunRef, int, float]) -> PodLines | BackendError:
        try:
            return read_node(*node, limit)
        except BackendError as error:
            return error

    read_now = in_parallel(read_one, due, _at_a_time(len(gangs)))
    failed = [each for each in read_now if isinstance(each, BackendError)]
    if failed and len(failed) == len(due):
        raise failed[0]
    found = {
        (ref.job_id, rank): PodLines.later(since) if isinstance(lines, BackendError) else lines
        for (ref, rank, since), lines in zip(due, read_now, strict=True)
    }
    return [
        _part_of(
            (rank, found.get((ref.job_id, rank), PodLines.later(since[rank]))) for rank in range(ref.nodes)
        )
        for ref, since in gangs
    ]


def _at_a_time(gangs: int) -> int:
    """Return how many logs are read side by side: a loop that waits for many gangs shares their interpreter."""
    return PARALLEL if gangs == 1 else READS_AT_A_TIME


def _bytes_of(lines: int, pods: int) -> int:
    """Return how many bytes are read of each pod, where about so many lines of all are wanted."""
    return max(LEAST_BYTES, lines * BYTES_OF_A_LINE // max(1, pods))


def read(api: Api, wanted: PodLog, limit: int) -> PodLines:
    """Return the oldest lines, about `limit` bytes of them. Raises BackendError."""
    if wanted.since == math.inf:
        return PodLines()
    while True:
        content = _content(api, wanted, limit)
        cut = len(content) >= limit
        lines = tuple(lines_of(content, wanted.pod, wanted.rank, wanted.since, cut=cut))
        if not cut:
            return PodLines(lines)
        reached = last_time(content)
        if reached is not None and int(reached) > int(wanted.since):
            return PodLines(lines, reached)
        # The next part would begin at the same second, and so be the same.
        if limit >= MOST_BYTES:
            log.warning(
                "%s has written more than %s in a second: the rest is left out", wanted.pod, size_text(limit)
            )
            return PodLines(lines, int(wanted.since) + 1.0)
        limit = min(WIDER * limit, MOST_BYTES)


def read_each_start(api: Api, wanted: PodLog, limit: int) -> PodLines:
    """Return the lines of the start of a container before this one, then those of this one. Raises BackendError."""
    before = read(api, replace(wanted, previous=True), limit)
    if before.unread_from is not None:
        return before
    found = read(api, wanted, limit)
    return replace(found, lines=(*before.lines, *found.lines))


def _content(api: Api, wanted: PodLog, limit: int) -> bytes:
    try:
        return api.text(
            f"/api/v1/namespaces/{wanted.namespace}/pods/{wanted.pod}/log",
            container=wanted.container,
            timestamps="true",
            sinceTime=since_time(wanted.since),
            limitBytes=limit,
            previous="true" if wanted.previous else None,
        )
    except BackendError as error:
        if error.status_code in UNREADABLE_STATUSES:
            return b""
        raise


def _part_of(read_of: Iterable[tuple[int, PodLines]]) -> LogPart:
    """Return what was read of the nodes of one gang, by rank."""
    found = list(read_of)
    lines = [line for _, part in found for line in part.lines]
    unread = {rank: part.unread_from for rank, part in found if part.unread_from is not None}
    return LogPart(lines=sorted(lines, key=lambda line: line.time), unread_from=unread)
