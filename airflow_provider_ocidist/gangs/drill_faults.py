"""Drill faults: which faults a drill inflicts where none is named, the usual ones or random ones. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from airflow_provider_ocidist.model.drill import OF_NETWORKS, Fault, FaultKind, When, why_impossible
from airflow_provider_ocidist.model.job import TrainingJob

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
