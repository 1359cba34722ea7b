"""Drills: train a job with a fault on one of its nodes, try after try, and measure how it recovers."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, NodeChange, Succeed
from airflow_provider_ocidist.gangs.leases import LeaseKeeper
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.drill import (
    DRILL_VARIABLE,
    OF_NETWORKS,
    UNDISTURBED,
    DrillJournal,
    Fault,
    FaultKind,
    InjectedFault,
    SaveSeen,
    StepSeen,
    When,
    why_impossible,
)
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import RunKey, RunRecord
from airflow_provider_ocidist.model.work_dir import drill_journal_of
from airflow_provider_ocidist.storage.stores.base import Store

LOOK_INTERVAL = 1.0
"""Seconds between two looks."""
LASTING = {
    FaultKind.FREEZE_NODE: (10.0, 40.0),
    FaultKind.STARVE_NODE: (5.0, 10.0),
    FaultKind.CUT_NETWORK: (10.0, 25.0),
    FaultKind.STARVE_NETWORK: (5.0, 15.0),
    FaultKind.FULL_DISK: (5.0,),
}
"""Seconds that a fault may last in a drill that names no time, the most last: of a node that does not answer, less and
more than the time after which it counts as lost (`agent.join.silence`); of a starved one, so few that a program
which starts meanwhile does not seem to hang."""
LONGEST_HANG = 300.0
"""Seconds of `limits.hang_timeout` up to which a frozen process is among the usual faults."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Drilled:
    """The outcome of a training with a fault, or without one: the undisturbed training."""

    fault: Fault | None
    tries: int
    launches: int
    """Number of launches in all tries."""
    seconds: float
    """Seconds of all tries together."""
    failure: str | None
    weights: str | None
    step: int | None
    recovery: DrillRecovery | None
    """Recovery from the fault; None if it did not happen, as where the training was over before its moment."""
    replaced: int = 0
    """Nodes in whose place others were made, in all tries."""
    pace: SavePace | None = None
    """Pace of the checkpoints in the undisturbed training; None: it has published none while it trained."""
    lag: int = 0
    """Steps, at most, that were trained while a checkpoint was on its way to the store."""
    writers: tuple[int, ...] = ()
    """Ranks of the nodes whose program has written checkpoints, or parts of them."""


class DrillStopped(Exception):
    """A drill was ended from outside, and its nodes with it."""


def carry_out(
    backend: Backend,
    job: TrainingJob,
    run_id: str,
    fault: Fault | None,
    log: TaskLog,
    *,
    tries: int,
    stop: threading.Event | None = None,
) -> Drilled:
    """Train the job once; a failed try is followed by the next at once, where Airflow makes one after `retry_delay`.

    Raises BackendError; DrillStopped when `stop` is set. Whatever ends this function early ends the nodes too.
    """
    stop = stop or threading.Event()
    key = RunKey(dag_id=f"drill-{job.name}", run_id=run_id, task_id=str(fault or UNDISTURBED))
    env = {**job.env, DRILL_VARIABLE: str(fault or UNDISTURBED)}
    # The outputs of a real training stay as they are.
    armed = replace(job, env=env, outputs=())
    began = time.monotonic()
    done: list[Try] = []
    while not done or (done[-1].failure and not done[-1].is_final and len(done) < tries):
        done.append(_one_try(backend, armed, key, log, stop, try_number=len(done) + 1, tries=tries))
    return Drilled(
        fault=fault,
        tries=len(done),
        launches=sum(each.launches for each in done),
        seconds=time.monotonic() - began,
        failure=done[-1].failure,
        weights=done[-1].weights,
        step=done[-1].step,
        recovery=recovery_of(done) if has_happened(fault, done) else None,
        replaced=sum(each.replaced for each in done),
        pace=pace_of(done) if fault is None else None,
        lag=lag_of(done),
        writers=done[-1].writers,
    )


def _one_try(
    backend: Backend,
    job: TrainingJob,
    key: RunKey,
    log: TaskLog,
    stop: threading.Event,
    *,
    try_number: int,
    tries: int,
) -> Try:
    submitter = GangSubmitter(backend, job, log, None, stop)
    record = submitter.submit_or_end(key, try_number, tries - 1)
    watch = Watch(backend, record, log)
    # The nodes of backend `local` are processes of this machine, and have one clock.
    sightings = None if job.backend.kind == "local" else Sightings(lambda: _journals(backend, watch.record))
    try:
        failed = _ended(watch, log, stop, sightings)
    except BaseException:
        backend.cancel(watch.record.ref)
        raise
    backend.gangs.close(record.ref, End(succeeded=failed is None))
    return _seen(watch, failed, sightings)


def _ended(watch: Watch, log: TaskLog, stop: threading.Event, sightings: Sightings | None) -> Fail | None:
    """Wait until a gang has ended; return why it failed, None for a success."""
    with LeaseKeeper().keeping(watch):
        while True:
            match watch.look(time.time()):
                case Succeed():
                    return None
                case Fail() as failed:
                    return failed
                case Cancel(ending):
                    watch.end(ending)
                case NodeChange() as change:
                    change_nodes(watch, change, log)
                case _:
                    pass
            if sightings is not None:
                # What cannot be read now is seen at a later look.
                with suppress(BackendError):
                    sightings.look()
            if stop.wait(watch.pause(LOOK_INTERVAL)):
                raise DrillStopped


def _seen(watch: Watch, failed: Fail | None, sightings: Sightings | None) -> Try:
    record, status = watch.record, watch.status
    progress = status.progress if status else None
    checkpoint = status.checkpoint if status else None
    journals = sightings.dated() if sightings else _journals(watch.backend, record)
    return Try(
        journals=tuple(journals.values()),
        launches=1 + (len(status.restarts) if status else 0),
        failure=f"{failed.cause}: {failed.message}" if failed else None,
        weights=watch.backend.directories.weights_of(checkpoint.uri) if checkpoint and not failed else None,
        step=progress.step if progress else None,
        replaced=len(record.ref.replaced),
        is_final=failed is not None and MEANINGS[failed.cause].retry.hopeless,
        writers=tuple(rank for rank, journal in journals.items() if journal.writes),
    )


def _journals(backend: Backend, record: RunRecord) -> dict[int, DrillJournal]:
    """Return what the nodes have recorded, by rank. Raises BackendError."""
    found = {rank: backend.directories.drill_journal(record.ref, rank) for rank in range(record.ref.nodes)}
    return {rank: journal for rank, journal in found.items() if journal is not None}


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


# What the journals say


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


# Which faults


def usual_faults(job: TrainingJob, steps: int, *, without: Collection[FaultKind] = ()) -> list[Fault]:
    """Return the faults of a drill that names none; `steps`: number of steps of the undisturbed training."""
    last, half = job.nodes - 1, max(1, steps // 2)
    found = [
        *(Fault(kind=FaultKind.KILL_RANK, node=rank, step=half) for rank in sorted({0, last})),
        Fault(kind=FaultKind.KILL_RANK, when=When.RENDEZVOUS, node=last),
        *(Fault(kind=FaultKind.KILL_NODE, node=rank, step=half) for rank in sorted({0, last})),
        Fault(kind=FaultKind.KILL_AGENT, node=last, step=half),
        _at_most(Fault(kind=FaultKind.FREEZE_NODE, node=last, step=half)),
        _at_most(Fault(kind=FaultKind.STARVE_NODE, node=last, step=half)),
        _at_most(Fault(kind=FaultKind.CUT_NETWORK, node=last, step=half)),
        _at_most(Fault(kind=FaultKind.STARVE_NETWORK, node=last, step=half)),
        Fault(kind=FaultKind.FREEZE_RANK, node=last, step=half),
        Fault(kind=FaultKind.KILL_RANK, when=When.SAVING, step=half),
        Fault(kind=FaultKind.KILL_NODE, when=When.UPLOADING, step=half),
        Fault(kind=FaultKind.KILL_NODE, when=When.RESTORING, node=last, step=half),
        _at_most(Fault(kind=FaultKind.FULL_DISK, step=half)),
        Fault(kind=FaultKind.CORRUPT_CHECKPOINT, step=half),
    ]
    return [fault for fault in found if fault.kind not in without and _fits(fault, job)]


def drawn_faults(
    job: TrainingJob,
    steps: int,
    count: int,
    seed: int,
    *,
    without: Collection[FaultKind] = (),
    writers: Sequence[int] = (0,),
) -> list[Fault]:
    """Return so many random faults; the same for the same seed.

    `writers`: ranks of the nodes on which the program writes checkpoints; those alone save and upload. Each possible
    pair of kind and moment is drawn once before any is drawn again; nodes and steps are drawn for each.
    """
    chance = random.Random(seed)
    possible = [
        (kind, when)
        for kind in FaultKind
        for when in When
        if kind not in without and _fits(_at_most(Fault(kind=kind, when=when)), job)
    ]
    return [
        _drawn(
            chance, *pair, writers if pair[1] in (When.SAVING, When.UPLOADING) else range(job.nodes), steps
        )
        for pair in itertools.islice(_rounds(chance, possible), count)
    ]


def _rounds(
    chance: random.Random, pairs: Sequence[tuple[FaultKind, When]]
) -> Iterator[tuple[FaultKind, When]]:
    """Yield all pairs in random order, again and again."""
    while True:
        yield from chance.sample(pairs, len(pairs))


def _fits(fault: Fault, job: TrainingJob) -> bool:
    """Whether a fault can happen to the job, does something to it, and is noticed within minutes."""
    hang = job.limits.hang_timeout
    if fault.kind is FaultKind.FREEZE_RANK and (hang is None or hang > LONGEST_HANG):
        return False
    # A single node needs the network only for the store, if that is not on its disk.
    if fault.kind in OF_NETWORKS and job.nodes == 1:
        return False
    return why_impossible(fault, job) is None


def _at_most(fault: Fault) -> Fault:
    return replace(fault, seconds=LASTING[fault.kind][-1] if fault.kind in LASTING else None)


def _drawn(chance: random.Random, kind: FaultKind, when: When, nodes: Sequence[int], steps: int) -> Fault:
    return Fault(
        kind=kind,
        when=when,
        node=chance.choice(nodes),
        step=chance.randint(1, max(1, steps * 3 // 4)),
        seconds=chance.choice(LASTING[kind]) if kind in LASTING else None,
    )
