"""Admission: the main node finds nodes that came late, and has the training launched again with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from airflow_provider_ocidist.agent.join.peer_reports import Beats, awaits_admission, read_reports
from airflow_provider_ocidist.agent.join.silence import SILENT_AFTER
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.model.report import Phase, Progress


class Admission:
    """Looks, at each beat of the main node, for nodes that wait to take part."""

    def __init__(self, context: NodeContext, admit: Callable[[Sequence[int]], object]) -> None:
        self._context = context
        self._admit = admit
        self._beats = Beats()
        self._first: dict[int, float] = {}
        """First heartbeat that was seen of each node that waits, by rank: the last one of a lost node stays."""
        self._seen: tuple[str | None] | None = None
        """URI of the newest checkpoint when a node was first seen to wait; None: none waits."""
        self._asking: threading.Thread | None = None

    def look(self) -> None:
        context = self._context
        present = (context.rank, *context.others)
        absent = [rank for rank in range(context.config.nodes) if rank not in present]
        # First what most beats decide by: each look at a report that has changed makes a new one.
        if not absent or not context.is_main:
            return
        report = context.heartbeat.report
        if report.phase is not Phase.TRAINING:
            return
        if _is_at_its_end(report.progress):
            # Its last checkpoint is no reason to begin again: another node may just have succeeded.
            return
        waiting = self._waiting(absent)
        if not waiting:
            self._seen = None
        elif self._may_launch() and not (self._asking and self._asking.is_alive()):
            self._seen = None
            # Beside the heartbeat: a slow store would delay it, and this node would count as lost.
            self._asking = threading.Thread(
                target=self._admit, args=(waiting,), name="admission", daemon=True
            )
            self._asking.start()

    def _waiting(self, absent: Sequence[int]) -> list[int]:
        """Return which of these nodes wait for the launch that names them, and live: their reports go on."""
        launch = self._context.heartbeat.launch
        joining = [
            report
            for report in read_reports(self._context.heartbeat.quick_store, absent)
            if report and awaits_admission(report, launch)
        ]
        self._first = {each.rank: self._first.get(each.rank, each.heartbeat_at) for each in joining}
        return [
            each.rank
            for each in joining
            if self._beats.silent_for(each) <= SILENT_AFTER and each.heartbeat_at != self._first[each.rank]
        ]

    def _may_launch(self) -> bool:
        """Whether a launch loses no step: a checkpoint was published since a node waits, or there are none."""
        checkpoint, settings = self._context.heartbeat.report.checkpoint, self._context.config.checkpoints
        newest = (checkpoint.uri if checkpoint else None,)
        self._seen = self._seen or newest
        return settings is None or settings.uri is None or self._seen != newest


def _is_at_its_end(progress: Progress | None) -> bool:
    """Whether the program reports that nothing is left to train."""
    if progress is None:
        return False
    return progress.complete or (progress.steps is not None and (progress.step or 0) >= progress.steps)
