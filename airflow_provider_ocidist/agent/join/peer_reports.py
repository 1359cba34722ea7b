"""Peer reports: what other nodes report, and for how long they have been silent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from airflow_provider_ocidist.agent.join.silence import GONE_AFTER, SILENT_AFTER
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.members import others_of
from airflow_provider_ocidist.model.report import ALL_DAMAGED, NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.storage.stores.base import Store

REPORTED_WITHIN = 3.0
"""Seconds within which others can read a step: a heartbeat comes every two."""
FASTEST_STEP = 0.01
"""Seconds, at least, that a step counts as taking."""

Found = TypeVar("Found")


def load_report(store: Store, rank: int) -> NodeReport | None:
    """Return a node's report; None when there is none.

    Raises OcidistError or OSError when it cannot be read now, ValueError or TypeError when it is damaged.
    """
    try:
        return NodeReport.from_json(store.read(report_of(rank)))
    except FileNotFoundError:
        return None


def read_report(store: Store, rank: int) -> NodeReport | None:
    """Return a node's report; None when there is none, or it cannot be read now."""
    try:
        return load_report(store, rank)
    except (OcidistError, OSError, ValueError, TypeError):
        return None


def read_reports(store: Store, ranks: Iterable[int]) -> list[NodeReport | None]:
    """Return the reports of these nodes, in this order; None for those that cannot be read now."""
    return _side_by_side(lambda rank: read_report(store, rank), ranks)


def reports_and_unreachable(store: Store, ranks: Sequence[int]) -> tuple[list[NodeReport | None], list[int]]:
    """Return what `read_reports` does, and the ranks whose report the store did not return.

    A damaged report, and one that is not there, is no report, and the store has answered.
    """

    def read(rank: int) -> tuple[NodeReport | None, bool]:
        try:
            return load_report(store, rank), True
        except (OcidistError, OSError):
            return None, False
        except (ValueError, TypeError):
            return None, True

    found = _side_by_side(read, ranks)
    unreachable = [rank for rank, (_, is_answered) in zip(ranks, found) if not is_answered]
    return [report for report, _ in found], unreachable


def _side_by_side(read: Callable[[int], Found], ranks: Iterable[int]) -> list[Found]:
    ranks = list(ranks)
    if len(ranks) < 2:
        return list(map(read, ranks))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(16, len(ranks))) as pool:
        return list(pool.map(read, ranks))


def read_others(store: Store, own: NodeReport, nodes: int) -> list[NodeReport | None]:
    """Return the reports of all others that take part in the launch of the node that has this report, by rank."""
    return read_reports(store, others_of(own.rank, own.restarts, nodes))


def awaits_admission(report: NodeReport, launch: int) -> bool:
    """Whether a node waits for the launch that names it, while the others are in the one of this number, from 0."""
    return report.phase is Phase.JOINING and len(report.restarts) == launch and not report.leaves


def furthest_step(reports: Iterable[NodeReport | None], launch: int) -> int | None:
    """Return the last step that any of these nodes has reported in a launch; None: none has."""
    steps = [
        report.progress.step
        for report in reports
        if report and len(report.restarts) == launch and report.progress and report.progress.step is not None
    ]
    return max(steps, default=None)


def is_first_with_newest(own: NodeReport, others: Iterable[NodeReport | None]) -> bool:
    """Whether this node goes on from the newest checkpoint of all, and none of a lower rank from the same content."""
    found = [
        (report.checkpoint.order, report)
        for report in (own, *others)
        if report and report.checkpoint and report.starts_from not in (None, "", ALL_DAMAGED)
    ]
    newest = max((order for order, _ in found), default=None)
    ranks: dict[str | None, int] = {}
    for order, report in found:
        if order == newest:
            ranks[report.starts_from] = min(report.rank, ranks.get(report.starts_from, report.rank))
    return own.rank in ranks.values()


def steps_behind(reports: Iterable[NodeReport | None], launch: int) -> int:
    """Return how many steps the training may be further than `furthest_step`; 0 where no node has reported its pace.

    Steps that are read many at once have no pace of their own: none counts as faster than 100 a second.
    """
    paces = [
        report.progress.step_time
        for report in reports
        if report and len(report.restarts) == launch and report.progress and report.progress.step_time
    ]
    return math.ceil(REPORTED_WITHIN / max(min(paces), FASTEST_STEP)) if paces else 0


class Beats:
    """When the last heartbeat of each other node was new, by this node's own clock."""

    def __init__(self) -> None:
        self._heard: dict[int, tuple[float, float]] = {}
        """Last heartbeat of each node, by rank, and the time at which this node first saw it."""

    def silent_for(self, report: NodeReport) -> float:
        """Return the seconds since the heartbeat of a report was new."""
        now = time.monotonic()
        beat, since = self._heard.get(report.rank, (None, now))
        since = since if beat == report.heartbeat_at else now
        self._heard[report.rank] = (report.heartbeat_at, since)
        return now - since

    def forget(self, rank: int) -> None:
        self._heard.pop(rank, None)


class PeerLiveness:
    """Whether other nodes can still answer, by their reports."""

    def __init__(
        self, store: Store, *, patient: Callable[[], bool] = lambda: False, launch: int | None = None
    ) -> None:
        """`patient`: whether to wait for a silent node, which may hold its part of a finished model, out of reach of
        the store. Whether it is dead, the waiting task learns from the service. `launch`: the one in which others are
        asked; who has gone back for a later one, or came in the place of a lost node, has nothing of it left to send.
        """
        self.store = store
        self._patient = patient
        self._launch = launch
        self._beats = Beats()
        self._silent: set[int] = set()

    def ended(self, rank: int) -> bool:
        began = time.monotonic()
        report = read_report(self.store, rank)
        if time.monotonic() - began > SILENT_AFTER:
            # The store was waited for, and the other may have waited for it too.
            self._beats.forget(rank)
        self._silent.discard(rank)
        if report is None:
            # No report can be read: the store may be out of reach.
            self._beats.forget(rank)
            self._silent.add(rank)
            return False
        silent_for = self._beats.silent_for(report)
        is_later = self._launch is not None and len(report.restarts) > self._launch
        if report.phase is Phase.DONE or is_later:
            return True
        if silent_for > SILENT_AFTER:
            self._silent.add(rank)
        return silent_for > GONE_AFTER and not self._patient()

    def is_waited_for(self, rank: int) -> bool:
        """Whether a node was silent at the last look, and is still waited for."""
        return rank in self._silent and self._patient()
