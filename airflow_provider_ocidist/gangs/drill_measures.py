"""Drill measures: how a training recovers from a fault, and how it saves, by what its nodes have recorded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_provider_ocidist.model.drill import (
    DrillJournal,
    Fault,
    FaultKind,
    InjectedFault,
    SaveSeen,
    StepSeen,
)
from airflow_provider_ocidist.model.work_dir import drill_journal_of
from airflow_provider_ocidist.storage.stores.base import Store

LAGS = 2
"""Multiple of the undisturbed training's lag that counts at most: it trained alone, and the others load the machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Try:
    """How one try of a training ended, and what its nodes recorded."""

    journals: tuple[DrillJournal, ...]
    launches: int
    failure: str | None
    """Cause and message; None for a success."""
    weights: str | None
    """Digest of the numbers in the newest checkpoint; None if there is none."""
    step: int | None
    """Last step that was reported."""
    replaced: int = 0
    """Nodes in whose place others were made."""
    is_final: bool = False
    """Whether it has failed, and Airflow would make no retry."""
    writers: tuple[int, ...] = ()
    """Ranks of the nodes whose program has written checkpoints, or parts of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillRecovery:
    """How a training went on after a fault."""

    injected: InjectedFault
    seconds: float | None
    """Seconds from the fault to the first new step; None if there was none."""
    lost_steps: int | None
    """Steps that were trained again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavePace:
    """How often a training saves, and reports its steps."""

    interval: int
    """Steps from one checkpoint to the next, at most."""
    stride: int
    """Steps from one report of a step to the next, at least."""


class Sightings:
    """When this process first saw each fault and each step in the nodes' journals, by its own clock.

    Two nodes have two clocks, and so have a node, the one in its place, and that of the next try.
    """

    def __init__(
        self, journals: Callable[[], Mapping[int, DrillJournal]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`journals` returns what the nodes have recorded so far, by rank."""
        self._journals = journals
        self._clock = clock
        self._first_seen: dict[tuple[int, InjectedFault | StepSeen], float] = {}

    def look(self) -> Mapping[int, DrillJournal]:
        """Note what is new in the journals, and return them; raises as `journals`."""
        found = self._journals()
        now = self._clock()
        for rank, journal in found.items():
            recorded: tuple[InjectedFault | StepSeen, ...] = (*journal.injected, *journal.steps)
            for each in recorded:
                self._first_seen.setdefault((rank, each), now)
        return found

    def dated(self) -> dict[int, DrillJournal]:
        """Return the journals with the times of this process's clock; raises as `journals`."""
        return {rank: self._dated(rank, journal) for rank, journal in self.look().items()}

    def _dated(self, rank: int, journal: DrillJournal) -> DrillJournal:
        seen = self._first_seen
        return replace(
            journal,
            injected=tuple(replace(each, at=seen[rank, each]) for each in journal.injected),
            steps=tuple(replace(each, at=seen[rank, each]) for each in journal.steps),
        )


def has_happened(fault: Fault | None, tries: Sequence[Try]) -> bool:
    """Whether a fault was inflicted; the kill that precedes a fault while restoring does not count.

    A damaged checkpoint counts once a node has read it: a newer one may have been stored before any did.
    """
    if fault is None:
        return False
    if fault.kind is FaultKind.CORRUPT_CHECKPOINT and not any(
        journal.damaged for each in tries for journal in each.journals
    ):
        return False
    return any(injected.kind is fault.kind for each in tries for injected in _injected_in(each))


def recovery_of(tries: Sequence[Try]) -> DrillRecovery | None:
    """Return how the training went on after its last fault."""
    injections = [(number, injected) for number, each in enumerate(tries) for injected in _injected_in(each)]
    if not injections:
        return None
    struck_in, injected = max(injections, key=lambda item: (item[0], item[1].at))
    steps = sorted(
        ((number, seen) for number, each in enumerate(tries) for seen in _steps(each)),
        key=lambda item: (item[0], item[1].launch, item[1].at),
    )
    again = [seen for number, seen in steps if (number, seen.launch) > (struck_in, injected.launch)]
    later = again or [
        seen
        for _, seen in steps
        if seen.at > injected.at and (injected.step is None or seen.step > injected.step)
    ]
    if not later:
        return DrillRecovery(injected=injected, seconds=None, lost_steps=None)
    first = min(later, key=lambda seen: (seen.at, seen.step))
    resumed_at = first.step - _stride(seen for _, seen in steps)
    earlier = [each.step for _, each in injections if each.step is not None]
    reached = _reached(steps, struck_in, injected, earlier, ended=bool(again))
    # A training that had reported no step before the fault has none to lose.
    lost = 0 if reached is None else max(0, reached - resumed_at)
    return DrillRecovery(injected=injected, seconds=first.at - injected.at, lost_steps=lost)


def recorded_recovery(run_dir: str, nodes: int, open_folder: Callable[[str], Store]) -> DrillRecovery | None:
    """Return how a training went on after its fault, by what its nodes have recorded and by their clocks.

    `run_dir`: of its last attempt; `open_folder` returns the store of such a folder. Raises StorageError.
    """
    task, _, attempt = run_dir.rstrip("/").rpartition("-a")
    runs = [f"{task}-a{number}" for number in range(1, int(attempt) + 1)]
    journals = [tuple(_recorded(open_folder(run), nodes)) for run in runs]
    return recovery_of(
        [Try(journals=each, launches=0, failure=None, weights=None, step=None) for each in journals]
    )


def _recorded(store: Store, nodes: int) -> Iterator[DrillJournal]:
    for rank in range(nodes):
        # A node that reports no step, and is spared by the fault, has nothing to record.
        with suppress(FileNotFoundError):
            yield DrillJournal.from_json(store.read(drill_journal_of(rank)))


def _reached(
    steps: Sequence[tuple[int, StepSeen]],
    struck_in: int,
    injected: InjectedFault,
    earlier: Sequence[int],
    *,
    ended: bool,
) -> int | None:
    """Return the last step before the recovery; None: none was reported.

    `earlier`: the steps at which this fault, and the prelude before it, were injected; `ended`: whether the fault has
    ended its launch.
    """
    if injected.step is not None and not ended:
        return injected.step
    # Other nodes may have gone on after the fault. Before one of a restore, its prelude has ended a launch.
    last = (struck_in, injected.launch if ended else injected.launch - 1)
    return max(
        [*earlier, *(seen.step for number, seen in steps if (number, seen.launch) <= last)], default=None
    )


def pace_of(tries: Sequence[Try]) -> SavePace | None:
    """Return how often a training saves; None: it has published no checkpoint while it trained."""
    saved = sorted({0, *(save.step for save in _saves(tries))})
    if len(saved) < 2:
        return None
    return SavePace(
        interval=max(later - step for step, later in itertools.pairwise(saved)),
        stride=_stride(seen for each in tries for seen in _steps(each)),
    )


def lag_of(tries: Sequence[Try]) -> int:
    """Return how many steps, at most, were trained while a checkpoint was on its way to the store."""
    return max((save.reached - save.step for save in _saves(tries) if save.reached is not None), default=0)


def counted_lag(lags: Iterable[int], undisturbed: int, pace: SavePace) -> int:
    """Return for how many steps, at most, a checkpoint may be on its way to the store.

    `lags`: of all trainings, since a lag is a matter of chance, and that of what is on its way when a fault strikes is
    not known; `undisturbed`: of one without a fault. Nothing that a fault delays excuses the steps that others lose.
    """
    return min(max(lags), max(LAGS * undisturbed, pace.interval))


def most_lost(fault: Fault, pace: SavePace, lag: int) -> int:
    """Return how many steps a fault may cost, at most: those since the newest checkpoint that was stored by then."""
    # That one is damaged, and the one before it counts.
    intervals = 2 if fault.kind is FaultKind.CORRUPT_CHECKPOINT else 1
    # The last steps before the fault, and the first ones after it, may not have been reported.
    return intervals * pace.interval + max(0, lag) + pace.stride - 1


def _saves(tries: Iterable[Try]) -> list[SaveSeen]:
    return [save for each in tries for journal in each.journals for save in journal.saves]


def _stride(steps: Iterable[StepSeen]) -> int:
    """Return how many steps lie between two reports of a step."""
    numbers = sorted({seen.step for seen in steps})
    return min((later - step for step, later in itertools.pairwise(numbers)), default=1)


def _injected_in(each: Try) -> list[InjectedFault]:
    return [injected for journal in each.journals for injected in journal.injected]


def _steps(each: Try) -> list[StepSeen]:
    return [seen for journal in each.journals for seen in journal.steps]
