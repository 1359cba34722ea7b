"""Stragglers: which process or node is slower than the others."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence

from airflow_provider_ocidist.model.report import NodeReport, Phase, Slow

logger = logging.getLogger(__name__)

TIMES_THE_MEDIAN = 1.5
"""Factor of the median from which on a step time is slow."""
LEAST = 0.005
"""Least difference in seconds; a smaller one is noise of the machine."""
FEWEST_STEPS = 5
"""Number of steps from which on the pace of a process is compared."""
FIRST_LOOK, LONGEST_PAUSE = 5.0, 60.0
"""First and longest seconds between two looks; they double, as each look is a request per node."""


def find_slow(reports: Sequence[NodeReport]) -> tuple[Slow, ...]:
    """Return the nodes that take longer for a step than the others, the slowest first.

    Processes are compared where they report their own time: where each step waits for all, all seem equally slow
    from outside. Else nodes are, which train each at its own pace.
    """
    training = [report for report in reports if report.phase is Phase.TRAINING and report.progress]
    times: list[tuple[float, int | None, int]] = [
        (pace.seconds, pace.rank, report.rank)
        for report in training
        if report.progress
        for pace in report.progress.paces
        if pace.steps >= FEWEST_STEPS
    ] or [
        (report.progress.step_time, None, report.rank)
        for report in training
        if report.progress and report.progress.step_time is not None
    ]
    if len(times) < 2:
        return ()
    median = statistics.median_low([seconds for seconds, _, _ in times])
    return tuple(
        Slow(rank=rank, node=node, seconds=seconds, median=median)
        for seconds, rank, node in sorted(times, key=lambda each: -each[0])
        if seconds > max(TIMES_THE_MEDIAN * median, median + LEAST)
    )


class StragglerWatch:
    """Warns of each process or node that becomes slow, on the main node."""

    def __init__(
        self, reports: Callable[[], Sequence[NodeReport]], publish: Callable[[tuple[Slow, ...]], object]
    ) -> None:
        """`reports` returns those of all nodes that can be read."""
        self.reports = reports
        self.publish = publish
        self._known: frozenset[tuple[int | None, int]] = frozenset()
        self._pause = FIRST_LOOK
        self._look_at = time.monotonic() + FIRST_LOOK

    def look(self) -> None:
        if time.monotonic() < self._look_at:
            return
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        self._look_at = time.monotonic() + self._pause
        reports = self.reports()
        slow = find_slow(reports)
        health = {report.rank: report.health for report in reports}
        for each in slow:
            if (each.rank, each.node) not in self._known:
                logger.warning("%s; %s", each.line, _of_machine(each.node, health.get(each.node, ())))
        self._known = frozenset((each.rank, each.node) for each in slow)
        self.publish(slow)


def _of_machine(node: int, findings: Sequence[str]) -> str:
    if findings:
        return f"its machine, node {node}, is unhealthy: {'; '.join(findings)}"
    return "nothing was found wrong with its machine"
