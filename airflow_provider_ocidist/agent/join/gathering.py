"""Gathering: the wait until the other nodes have met, have saved, or have ended."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.peer_reports import (
    Beats,
    load_report,
    read_others,
    read_reports,
    reports_and_unreachable,
)
from airflow_provider_ocidist.agent.join.silence import GONE_AFTER, LOST_AFTER, OWN_TROUBLE, SILENT_AFTER
from airflow_provider_ocidist.errors import OcidistError, TopologyTimeout
from airflow_provider_ocidist.model.members import in_words, members_of, others_of
from airflow_provider_ocidist.model.pauses import pause_after
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import NODES_FOLDER, report_of
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger(__name__)

FIRST_LOOK, LAST_LOOK, LONGEST_PAUSE = 0.1, 0.4, 2.0
"""Seconds between two looks: the first, the usual, and the longest of a long wait. A gang that is complete waits for
the next look, so they are small beside the time that it has waited."""
SAY_INTERVAL = 30.0
"""Seconds between two lines of the log that name the missing nodes."""
JOINED = (Phase.JOINING, Phase.TRAINING, Phase.SAVING, Phase.DONE)


def meet(store: Store, heartbeat: Heartbeat, *, nodes: int, timeout: float) -> list[NodeReport]:
    """Return the members' reports, by rank, once every one is ready for this launch of the training.

    Raises LateNodes, naming the missing ones; a known node that still fetches is waited for as long as it
    sends heartbeats, and makes progress at least once in `timeout` seconds. While the reports of this node do not
    arrive, or it cannot read those of others, the store may be at fault: none counts as silent.
    """
    own = heartbeat.report
    gathering = Gathering(
        store, others_of(own.rank, own.restarts, nodes), len(own.restarts), quick_store=heartbeat.quick_store
    )
    began = time.monotonic()
    deadline = (began if heartbeat.launch else heartbeat.began_at) + timeout
    pause, say_at = FIRST_LOOK, began + SAY_INTERVAL
    while not gathering.look():
        now = time.monotonic()
        if now - heartbeat.written_at > OWN_TROUBLE:
            gathering.sighted_since = now
        if now > deadline and gathering.overdue(timeout):
            raise LateNodes(
                f"{gathering.missing()} not here after {timeout:.0f} s{gathering.standstill(timeout)}",
                gathering.late(timeout),
            )
        if now > say_at:
            logger.info("waiting for the others: %s not here yet", gathering.missing())
            say_at += SAY_INTERVAL
        heartbeat.switch.pause(pause)
        pause = _next_pause(pause, now - began)
    return [
        heartbeat.report if rank == own.rank else gathering.ready[rank]
        for rank in members_of(own.restarts, nodes)
    ]


class LateNodes(TopologyTimeout):
    """Some nodes have not come to the meeting in time, though the others wait no longer for them."""

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class SucceededBefore(Exception):
    """A node has succeeded while another one failed: no other launch is possible."""


class Gathering:
    """The other nodes of one launch: those that are ready, and those that are waited for."""

    def __init__(
        self, store: Store, others: Sequence[int], launch: int = 0, *, quick_store: Store | None = None
    ) -> None:
        """`quick_store`: the same store without retries and with a short timeout."""
        self.store = store
        self.quick_store = quick_store or store
        self.launch = launch
        self.awaited = set(others)
        self.nodes = len(others) + 1
        self.ready: dict[int, NodeReport] = {}
        self.fetching: dict[int, NodeReport] = {}
        self.seen_at: dict[int, float] = {}
        """Time of the newest heartbeat of each node, by rank, on this node's clock."""
        self.moved_at: dict[int, float] = {}
        """Time of the newest progress of each node, by rank, on this node's clock."""
        self.sighted_since = time.monotonic()
        """Time since which the run directory can be read and written; silence is counted from then."""

    def look(self) -> bool:
        """Read what is new; return whether all are ready."""
        if self.awaited:
            began = time.monotonic()
            present = sorted(self.awaited & self._present())
            reports = read_reports(self.store, present)
            for report in filter(None, reports):
                self._take(report)
            unread = [rank for rank, report in zip(present, reports) if report is None]
            # In a look that took long, the store was waited for, and the others may have waited for it too.
            is_long = time.monotonic() - began > SILENT_AFTER
            if is_long or not all(map(self._take_again, unread)):
                self.sighted_since = time.monotonic()
        return not self.awaited

    def overdue(self, timeout: float) -> bool:
        """Whether the others wait no longer for a missing node."""
        return bool(self.late(timeout))

    def late(self, timeout: float) -> list[int]:
        """Return the missing nodes that have made no progress for `timeout` seconds, or sent no heartbeat for a minute,
        or for `timeout` if that is less.
        """
        latest, stuck = time.monotonic() - min(timeout, GONE_AFTER), self.stuck(timeout)
        return [
            rank
            for rank in sorted(self.awaited)
            if rank in stuck or max(self.seen_at.get(rank, -math.inf), self.sighted_since) < latest
        ]

    def stuck(self, timeout: float) -> list[int]:
        """Return the known nodes whose progress could be read for `timeout`, and that have made none."""
        latest = time.monotonic() - timeout
        return [
            rank
            for rank in sorted(self.awaited)
            if max(self.moved_at.get(rank, math.inf), self.sighted_since) < latest
        ]

    def missing(self) -> str:
        names = ", ".join(map(str, sorted(self.awaited)))
        kind = "node" if len(self.awaited) == 1 else "nodes"
        fetching = sorted(self.awaited & set(self.fetching))
        note = f" (still fetching: {', '.join(map(str, fetching))})" if fetching else ""
        return f"{kind} {names} of {self.nodes}{note}"

    def standstill(self, timeout: float) -> str:
        """Return which known nodes have made no progress for `timeout`, and for how long; empty for none."""
        return "".join(
            f"; node {rank} made no progress for {time.monotonic() - self.moved_at[rank]:.0f} s "
            "(code, packages, data or checkpoint: its log says which)"
            for rank in self.stuck(timeout)
        )

    def _take(self, report: NodeReport) -> None:
        if report.phase is Phase.DONE and len(report.restarts) < self.launch:
            raise TopologyTimeout(f"node {report.rank} has exited, so the training cannot be launched again")
        if report.phase in JOINED and len(report.restarts) >= self.launch:
            self.ready[report.rank] = report
            self.awaited.discard(report.rank)
            return
        known, now = self.fetching.get(report.rank), time.monotonic()
        if known is None or known.heartbeat_at != report.heartbeat_at:
            self.seen_at[report.rank] = now
        if report.moved is not None and (known is None or known.moved != report.moved):
            self.moved_at[report.rank] = now
        self.fetching[report.rank] = report

    def _take_again(self, rank: int) -> bool:
        """Read once more what could not be read; return whether the store has answered."""
        try:
            report = load_report(self.quick_store, rank)
        except (OcidistError, OSError) as error:
            logger.debug("report of node %d not readable: %s", rank, error)
            return False
        except (ValueError, TypeError):
            # A damaged report, for example one that was half written as its machine died, is no heartbeat.
            return True
        if report:
            self._take(report)
        return True

    def _present(self) -> set[int]:
        try:
            entries = self.store.list(f"{NODES_FOLDER}/")
        except (OcidistError, OSError) as error:
            logger.debug("run directory not readable: %s", error)
            self.sighted_since = time.monotonic()
            return set()
        names = {entry.name for entry in entries}
        return {rank for rank in self.awaited if report_of(rank) in names}


def await_others_end(store: Store, rank: int, nodes: int, limit: float, signalled: threading.Event) -> None:
    """Return when no other node is active any more, at a signal, or after `limit` seconds.

    One whose report cannot be read now may be active, and its silence is counted anew.

    Where all nodes are one run of the service, a failed node's exit ends the run for all, and the others would lose
    what they are still saving. A signal means that the run is being ended already.
    """
    began = time.monotonic()
    beats = Beats()
    others = [other for other in range(nodes) if other != rank]
    while _any_at_work(store, others, beats):
        waited = time.monotonic() - began
        if waited > limit or signalled.wait(pause_after(waited, LAST_LOOK, LONGEST_PAUSE)):
            return


def await_others_saved(
    heartbeat: Heartbeat,
    *,
    nodes: int,
    timeout: float,
    patience: float = 0.0,
    on_look: Callable[[], object] = lambda: None,
    on_reports: Callable[[Sequence[NodeReport]], object] = lambda _: None,
) -> list[NodeReport]:
    """Return the other nodes' reports once all have saved what the launch before has left.

    Then all restore the same checkpoint. `on_look` is called at each look, since a wait within its limits is no fetch
    that stands still; `on_reports` takes the reports that it could read.

    A node that saves is waited for as long as it beats. Raises SucceededBefore for one that has succeeded,
    TopologyTimeout for one that has ended otherwise or is silent for `patience` seconds, in which another may take its
    place, or whose report cannot be read for `timeout` seconds. Silence is counted anew where this node could not read
    the reports, or write its own.
    """
    beats, missed_since = Beats(), dict[int, float]()
    began = read_at = time.monotonic()
    pause = FIRST_LOOK
    while True:
        on_look()
        looked_at = time.monotonic()
        others = read_others(heartbeat.store, heartbeat.report, nodes)
        known = [report for report in others if report]
        on_reports(known)
        behind = [report for report in known if len(report.restarts) < heartbeat.launch]
        if len(known) == len(others):
            read_at = time.monotonic()
            if not behind:
                return known
        for report in behind:
            if report.has_succeeded:
                raise SucceededBefore(f"node {report.rank} has ended already")
        now = time.monotonic()
        ranks = others_of(heartbeat.report.rank, heartbeat.report.restarts, nodes)
        unread = [rank for rank, report in zip(ranks, others) if report is None]
        is_away = now - looked_at > SILENT_AFTER or now - heartbeat.written_at > OWN_TROUBLE
        _start_over(beats, ranks if is_away else unread)
        lost = [report.rank for report in behind if not _at_work(report, beats)]
        # Each for itself: one may be lost while another is being replaced.
        missed_since = {rank: missed_since.get(rank, now) for rank in lost}
        given_up = [rank for rank, since in missed_since.items() if now - since >= patience]
        if given_up or now - read_at > timeout:
            why = (
                f"{in_words(given_up)}: exited or silent"
                if given_up
                else f"{in_words(unread)}: the report cannot be read"
            )
            raise TopologyTimeout(f"{why}, so the training cannot be launched again")
        heartbeat.switch.pause(pause)
        pause = _next_pause(pause, now - began)


def _any_at_work(store: Store, ranks: Sequence[int], beats: Beats) -> bool:
    began = time.monotonic()
    reports, unreachable = reports_and_unreachable(store, ranks)
    unread = [rank for rank, report in zip(ranks, reports) if report is None]
    _start_over(beats, ranks if time.monotonic() - began > SILENT_AFTER else unread)
    return any(_at_work(report, beats) for report in reports) or bool(unreachable)


def _start_over(beats: Beats, ranks: Iterable[int]) -> None:
    """Count the silence of these nodes anew: the store was waited for, and they may have waited for it too."""
    for rank in ranks:
        beats.forget(rank)


def _next_pause(pause: float, waited: float) -> float:
    """Return the seconds until the look after the next, after a pause of so many and a wait of so many in all."""
    return pause_after(waited, min(LAST_LOOK, pause * 1.5), LONGEST_PAUSE)


def _at_work(report: NodeReport | None, beats: Beats) -> bool:
    return report is not None and report.phase is not Phase.DONE and beats.silent_for(report) < LOST_AFTER
