"""Idle: detects that no node's training uses its machine any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airflow_provider_ocidist.model.report import Usage

CORES_AT_WORK = 0.1
"""Processor cores from which on a node is at work; a waiting launcher, and a program that sleeps, take a hundredth."""
GPU_AT_WORK = 0.02
"""Share of the time with anything on the GPUs from which on a node is at work."""


def is_used(usage: Usage, *, has_gpus: bool = False) -> bool | None:
    """Whether the machine was in use since the last look; None: its GPUs may have been, and nothing says whether."""
    if (usage.cores or 0.0) >= CORES_AT_WORK or (usage.gpu or 0.0) >= GPU_AT_WORK:
        return True
    return None if has_gpus and usage.gpu is None else False


class IdleWatch:
    """Judges for all nodes: one that waits for another is not idle while that one works."""

    def __init__(
        self,
        limit: float,
        *,
        own: Callable[[], float | None],
        others: Callable[[], Iterable[float | None]],
        declare: Callable[[str], object],
    ) -> None:
        """`own` and `others` return for how many seconds this node, and each other, was not in use; None: not known."""
        self._limit = limit
        self._own = own
        self._others = others
        self._declare = declare
        self._declared = False

    def look(self) -> None:
        own = self._own()
        if self._declared or own is None or own < self._limit:
            return
        idle = [own, *self._others()]
        if any(each is None or each < self._limit for each in idle):
            return
        self._declared = True
        self._declare(
            f"no node has used a GPU, or {CORES_AT_WORK:g} of a processor core, for {self._limit:.0f} s (limits.idle)"
        )
