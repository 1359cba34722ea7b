"""Hang: detects that no node makes progress any more."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.report import OVER_THE_LONGEST

LOOKS = 4
"""Number of reads of the other nodes' reports within `hang_timeout`, if this node counts no steps; each takes a request
per node."""


@dataclass(frozen=True, kw_only=True)
class StallTime:
    """The seconds for which one node has shown no progress, by its own clock."""

    idle: float
    by_steps: bool = False
    """Whether the node counts steps, so that its other output is no progress."""
    longest_step: float = 0.0
    step: int | None = None
    """Newest step."""
    still: float = 0.0
    """Seconds without progress of another kind than lines of output."""


def is_hung(nodes: Sequence[StallTime], timeout: float) -> bool:
    """Return whether no node makes progress. Where some nodes count steps, the output of the others proves nothing."""
    judged = [node for node in nodes if node.by_steps] or list(nodes)
    return all(node.idle >= max(timeout, OVER_THE_LONGEST * node.longest_step) for node in judged)


class HangWatch:
    """Judges for all nodes: a single idle node is no hang while others progress."""

    def __init__(
        self,
        meter: ProgressMeter,
        timeout: float,
        *,
        others: Callable[[], Sequence[StallTime | None]],
        declare: Callable[[str], object],
        is_saving: Callable[[], bool] = lambda: False,
    ) -> None:
        """`others` returns the other nodes' stall times; None where a report is unreadable.

        `is_saving`: whether what the program has left, which has ended, still writes a checkpoint.
        """
        self.meter = meter
        self.timeout = timeout
        self.others = others
        self.declare = declare
        self.is_saving = is_saving
        self.declared = False
        self._looked_at = time.monotonic()

    def look(self) -> None:
        hung = [] if self.declared else self._hung()
        if hung:
            self.declared = True
            self.declare(_message(hung, self.timeout))

    def _hung(self) -> list[StallTime]:
        """Return all nodes where they hang."""
        if self.is_saving():
            # The guard waits longer for that than some jobs for a step.
            self.meter.touch()
        own = StallTime(
            idle=self.meter.idle,
            by_steps=self.meter.by_steps,
            longest_step=self.meter.longest_step,
            step=self.meter.step,
        )
        if not (is_hung([own], self.timeout) or self._may_be_mere_talk(own)):
            return []
        found = self.others()
        known = [own, *(each for each in found if each is not None)]
        # An unreadable report may hold progress: then no hang is declared.
        return known if len(known) == 1 + len(found) and is_hung(known, self.timeout) else []

    def _may_be_mere_talk(self, own: StallTime) -> bool:
        """Whether it is time to see if another node counts steps, while this one only prints."""
        now = time.monotonic()
        if own.by_steps or now - self._looked_at < self.timeout / LOOKS:
            return False
        self._looked_at = now
        return True


def talks_only(nodes: Sequence[StallTime], timeout: float) -> bool:
    """Return whether no node has reported a step, and for so long none has done more than print."""
    return all(node.step is None and node.still >= timeout for node in nodes)


class FirstStepWatch:
    """Judges for all nodes whether a training that prints has come to its first step in time."""

    def __init__(
        self,
        own: Callable[[], StallTime],
        timeout: float | None,
        warn_after: float | None,
        *,
        others: Callable[[], Sequence[StallTime | None]],
        declare: Callable[[str], object],
        warn: Callable[[str], object],
    ) -> None:
        """`others`: as for `HangWatch`. `timeout`: `limits.first_step_timeout`; None: it is never declared.

        `warn_after`: seconds after which the log says, once, that the training may have hung; None: never.
        """
        self._own = own
        self._timeout = timeout
        self._warn_after = warn_after
        self._others = others
        self._declare = declare
        self._warn = warn
        self._over = False
        """Whether there is nothing more to look for: a step, or a hang."""
        self._looked_at = time.monotonic()

    def look(self) -> None:
        own = self._own()
        self._over |= own.step is not None
        due = [limit for limit in (self._timeout, self._warn_after) if limit is not None]
        if self._over or not due or own.still < min(due) or not self._is_time(min(due)):
            return
        found = self._others()
        known = [own, *(each for each in found if each is not None)]
        if len(known) != 1 + len(found):
            # An unreadable report may hold a step.
            return
        if self._timeout is not None and talks_only(known, self._timeout):
            self._over = True
            self._declare(
                f"no node has reported a step, and for {self._timeout:.0f} s the program has done no more than print "
                "(limits.first_step_timeout)"
            )
        elif self._warn_after is not None and talks_only(known, self._warn_after):
            self._warn_after = None
            self._warn(_maybe(min(node.still for node in known), ended=self._timeout is not None))

    def _is_time(self, limit: float) -> bool:
        """Whether to read the other nodes' reports now: each look takes a request per node."""
        now = time.monotonic()
        if now - self._looked_at < limit / LOOKS:
            return False
        self._looked_at = now
        return True


def _maybe(seconds: float, *, ended: bool) -> str:
    remedy = (
        "limits.first_step_timeout ends it in time"
        if ended
        else "to have such a run ended, set limits.first_step_timeout"
    )
    return (
        f"no node has reported a step, and for {seconds:.0f} s the program has done no more than print: it prepares "
        f"for long, reports no steps, or hangs; {remedy}"
    )


def _message(nodes: Sequence[StallTime], timeout: float) -> str:
    step = max((node.step for node in nodes if node.step is not None), default=None)
    last = "no step was ever seen" if step is None else f"the last step was {step}"
    what = "step" if any(node.by_steps for node in nodes) else "output, progress"
    return f"no {what} or checkpoint on any node for {timeout:.0f} s; {last}"
