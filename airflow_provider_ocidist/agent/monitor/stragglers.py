"""Stragglers: which process or node is slower than the others."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_ocidist.model.pauses import next_pause
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
READ_LATER = 3.0
"""Seconds by which the other nodes look later than the main node, so that they read what it has just found."""
ANSWER_LIMIT = 90.0
"""Seconds for the check of a slow node's machine: until the node reads that it is slow, and while it looks."""


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


class Pauses:
    """Looks that come at longer and longer intervals."""

    def __init__(self, first: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause = FIRST_LOOK
        self._look_at = clock() + first

    def is_over(self) -> bool:
        """Whether it is time for a look; then the next pause begins."""
        now = self._clock()
        if now < self._look_at:
            return False
        self._pause = next_pause(self._pause, LONGEST_PAUSE)
        self._look_at = now + self._pause
        return True

    def shorten(self) -> None:
        """Look soon again."""
        self._look_at = min(self._look_at, self._clock() + FIRST_LOOK)


@dataclass(frozen=True)
class Asked:
    """A slow process or node, whose machine is being checked."""

    slow: Slow
    since: float
    checked_at: float | None
    """Time of the last check by then, by its own node's clock, which is compared with nothing but itself."""


class StragglerWatch:
    """Warns of each process or node that becomes slow, on the main node, once the state of its machine is known."""

    def __init__(
        self,
        reports: Callable[[], Sequence[NodeReport]],
        publish: Callable[[tuple[Slow, ...]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reports` returns those of all nodes that can be read. A node that is published as slow checks itself."""
        self.reports = reports
        self.publish = publish
        self._clock = clock
        self._known: frozenset[tuple[int | None, int]] = frozenset()
        self._asked: tuple[Asked, ...] = ()
        self._pauses = Pauses(FIRST_LOOK, clock)

    def look(self) -> None:
        if not self._pauses.is_over():
            return
        reports = {report.rank: report for report in self.reports()}
        slow = find_slow(list(reports.values()))
        self._asked += tuple(
            Asked(each, self._clock(), _checked_at(reports.get(each.node)))
            for each in slow
            if (each.rank, each.node) not in self._known
        )
        self._known = frozenset((each.rank, each.node) for each in slow)
        self.publish(slow)
        self._asked = tuple(
            each for each in self._asked if not self._has_warned(each, reports.get(each.slow.node))
        )
        if self._asked:
            self._pauses.shorten()

    def _has_warned(self, asked: Asked, report: NodeReport | None) -> bool:
        """Warn if the machine has been checked, or is not in time; return whether it was."""
        is_answered = report is not None and report.health_at != asked.checked_at
        if not is_answered and self._clock() - asked.since < ANSWER_LIMIT:
            return False
        logger.warning(
            "%s; %s", asked.slow.line, _of_machine(asked.slow.node, report, is_answered=is_answered)
        )
        return True


class SlownessWatch:
    """Has the machine of this node checked once the main node has found it slow."""

    def __init__(
        self,
        rank: int,
        main_report: Callable[[], NodeReport | None],
        ask: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`main_report` returns the report of the main node, if it can be read."""
        self.rank = rank
        self.main_report = main_report
        self.ask = ask
        self.is_slow = False
        """Whether this node, or a process on it, is slow."""
        self._pauses = Pauses(FIRST_LOOK + READ_LATER, clock)

    def look(self) -> None:
        report = self.main_report() if self._pauses.is_over() else None
        if report:
            self.heed(report.slow)

    def heed(self, slow: Sequence[Slow]) -> None:
        """Ask for a check if this node is among the slow ones, and was not before."""
        was_slow, self.is_slow = self.is_slow, any(each.node == self.rank for each in slow)
        if self.is_slow and not was_slow:
            self.ask()


def _checked_at(report: NodeReport | None) -> float | None:
    return report.health_at if report else None


def _of_machine(node: int, report: NodeReport | None, *, is_answered: bool) -> str:
    if report is None or report.health_at is None:
        return "its machine has not been checked"
    found = (
        f"its machine, node {node}, is unhealthy: {'; '.join(report.health)}"
        if report.health
        else "nothing was found wrong with its machine"
    )
    # Both times are of that node's clock.
    age = report.heartbeat_at - report.health_at
    return found if is_answered else f"{found} {age:.0f} s ago, and it has not been checked since"
