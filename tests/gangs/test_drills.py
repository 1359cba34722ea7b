"""What a drill measures, and which faults it draws."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.agent.drill import due
from airflow_provider_ocidist.gangs.drill_faults import drawn_faults, usual_faults
from airflow_provider_ocidist.gangs.drill_measures import (
    SavePace,
    Try,
    has_happened,
    lag_of,
    most_lost,
    pace_of,
    recovery_of,
)
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.drill import (
    OF_NETWORKS,
    DrillJournal,
    Fault,
    FaultKind,
    InjectedFault,
    SaveSeen,
    StepSeen,
    When,
    prelude_of,
    why_impossible,
)
from tests.training_jobs import PROGRAMS

SEED = int(os.environ.get("TEST_SEED", "20261123"))


def a_job(nodes: int = 3, *, checkpoints: bool = True, **changes: object) -> TrainingJob:
    given = {"checkpoints": {}} if checkpoints else {}
    program = {"source": str(PROGRAMS), "script": "steps.py"}
    return parsing.build(
        {"name": "a", "nodes": nodes, "program": program, "backend": {"kind": "local"}, **given, **changes}
    )


def a_try(*journals: DrillJournal, failure: str | None = None) -> Try:
    return Try(journals=journals, launches=1, failure=failure, weights=None, step=None)


def steps(launch: int, numbers: range, at: float, each: float) -> list[StepSeen]:
    return [StepSeen(at=at + index * each, launch=launch, step=step) for index, step in enumerate(numbers)]


@pytest.mark.parametrize("number", range(100))
def test_a_recovery_is_the_time_to_the_first_step_of_the_next_launch_and_what_it_trained_again(
    number: int,
) -> None:
    print(f"seed {SEED}.{number}")
    chance = random.Random(f"{SEED}.{number}")
    stride = chance.choice([1, 5, 10])
    saved_at = stride * chance.randint(0, 10)
    reached = saved_at + stride * chance.randint(1, 10)
    each, away = chance.uniform(0.01, 1.0), chance.uniform(0.5, 300)
    before = steps(0, range(stride, reached + 1, stride), 1000.0, each)
    struck_at = before[-1].at + chance.uniform(0.0, each / 2)
    injected = InjectedFault(
        kind=FaultKind.KILL_RANK, node=1, step=reached, launch=0, at=struck_at, message="m"
    )
    in_same_try = chance.random() < 0.5
    after = steps(
        1 if in_same_try else 0,
        range(saved_at + stride, reached + 3 * stride, stride),
        struck_at + away,
        each,
    )
    injecting = DrillJournal(injected=(injected,))
    if in_same_try:
        tries = [a_try(DrillJournal(steps=(*before, *after)), injecting)]
    else:
        tries = [
            a_try(DrillJournal(steps=tuple(before)), injecting, failure="NODE: m"),
            a_try(DrillJournal(steps=tuple(after))),
        ]
    recovery = recovery_of(tries)
    assert recovery is not None
    assert recovery.injected == injected
    assert recovery.seconds == pytest.approx(away)
    assert recovery.lost_steps == reached - saved_at


def test_a_training_that_only_paused_has_lost_no_step() -> None:
    injected = InjectedFault(kind=FaultKind.FREEZE_NODE, node=0, step=3, launch=0, at=1002.5, message="m")
    seen = (*steps(0, range(1, 4), 1000.0, 1.0), *steps(0, range(4, 9), 1022.5, 1.0))
    recovery = recovery_of([a_try(DrillJournal(injected=(injected,), steps=seen))])
    assert recovery is not None
    assert (recovery.seconds, recovery.lost_steps) == (20.0, 0)


def test_a_training_that_never_came_back_has_no_time_of_recovery() -> None:
    injected = InjectedFault(kind=FaultKind.KILL_NODE, node=0, step=3, launch=0, at=1002.5, message="m")
    recovery = recovery_of(
        [a_try(DrillJournal(injected=(injected,), steps=tuple(steps(0, range(1, 4), 1000.0, 1.0))))]
    )
    assert recovery is not None
    assert recovery.seconds is None
    assert recovery.lost_steps is None


def test_a_fault_that_did_not_happen_is_no_recovery() -> None:
    assert recovery_of([a_try(DrillJournal(steps=tuple(steps(0, range(1, 4), 1000.0, 1.0))))]) is None


@pytest.mark.parametrize("number", range(20))
def test_the_kill_before_a_restore_is_not_the_fault_of_the_restore(number: int) -> None:
    print(f"seed {SEED}.{number}")
    chance = random.Random(f"{SEED}.{number}")
    kinds = [FaultKind.KILL_AGENT, FaultKind.FREEZE_NODE, FaultKind.FULL_DISK, FaultKind.CORRUPT_CHECKPOINT]
    kind = chance.choice(kinds)
    fault = Fault(kind=kind, when=When.RESTORING, node=chance.randrange(3), step=chance.randint(1, 9))
    assert why_impossible(fault, a_job()) is None
    struck: list[InjectedFault] = []
    happens = chance.random() < 0.5
    for launch in range(1 + happens):
        wanted = due(fault, attempt=1, launch=launch, struck=struck, restarts=True)
        assert wanted is not None
        struck.append(
            InjectedFault(kind=wanted.kind, node=fault.node, step=1, launch=launch, at=1.0, message="m")
        )
    before, after = steps(0, range(1, 5), 0.0, 1.0), steps(1, range(3, 9), 10.0, 1.0)
    tries = [a_try(DrillJournal(injected=tuple(struck), steps=(*before, *after), damaged=("its uri",)))]
    assert recovery_of(tries) is not None
    assert has_happened(fault, tries) is happens
    assert not has_happened(None, tries)


def test_a_damaged_checkpoint_that_no_node_has_read_is_no_fault_that_happened() -> None:
    fault = Fault(kind=FaultKind.CORRUPT_CHECKPOINT, node=1, step=4)
    injected = InjectedFault(kind=fault.kind, node=1, step=4, launch=0, at=1.0, message="m")
    struck = DrillJournal(injected=(injected,))
    assert not has_happened(fault, [a_try(struck, failure="NODE: m"), a_try(DrillJournal())])
    assert has_happened(fault, [a_try(struck, failure="NODE: m"), a_try(DrillJournal(damaged=("its uri",)))])


def test_of_two_faults_the_second_is_measured() -> None:
    first = InjectedFault(kind=FaultKind.KILL_RANK, node=0, step=4, launch=0, at=1004.0, message="m")
    second = InjectedFault(kind=FaultKind.KILL_NODE, node=0, step=None, launch=1, at=1006.0, message="m")
    before = steps(0, range(1, 5), 1000.0, 1.0)
    after = steps(0, range(3, 9), 1010.0, 1.0)
    recovery = recovery_of(
        [
            a_try(DrillJournal(injected=(first, second), steps=tuple(before)), failure="NODE: m"),
            a_try(DrillJournal(steps=tuple(after))),
        ]
    )
    assert recovery is not None
    assert recovery.injected == second
    assert (recovery.seconds, recovery.lost_steps) == (4.0, 2)


def test_a_fault_of_a_restore_that_ends_nothing_counts_what_its_prelude_has_lost() -> None:
    prelude = InjectedFault(kind=FaultKind.KILL_NODE, node=0, step=4, launch=0, at=1004.0, message="m")
    fault = InjectedFault(kind=FaultKind.FULL_DISK, node=0, step=None, launch=1, at=1006.0, message="m")
    seen = (*steps(0, range(1, 5), 1000.0, 1.0), *steps(1, range(3, 9), 1010.0, 1.0))
    recovery = recovery_of([a_try(DrillJournal(injected=(prelude, fault), steps=seen))])
    assert recovery is not None
    assert (recovery.seconds, recovery.lost_steps) == (4.0, 2)


@pytest.mark.parametrize("number", range(30))
def test_a_training_that_had_reported_nothing_before_a_fault_has_lost_nothing_and_one_that_had_has(
    number: int,
) -> None:
    print(f"seed {SEED}.none.{number}")
    chance = random.Random(f"{SEED}.none.{number}")
    launch, reached = chance.randrange(2), chance.choice([None, chance.randint(4, 9)])
    # The journal of the node that was killed may lack its last steps; what it was at when it was hit is known.
    prelude = InjectedFault(kind=FaultKind.KILL_RANK, node=1, step=reached, launch=0, at=1.0, message="m")
    fault = InjectedFault(kind=FaultKind.KILL_NODE, node=1, step=None, launch=launch, at=2.0, message="m")
    injected = (fault,) if launch == 0 else (prelude, fault)
    after = steps(launch + 1, range(4, 9), 10.0, 1.0)
    recovery = recovery_of([a_try(DrillJournal(injected=injected), DrillJournal(steps=tuple(after)))])
    assert recovery is not None
    assert recovery.lost_steps == (0 if launch == 0 or reached is None else reached - 3)


# How much may be lost


@pytest.mark.parametrize("number", range(30))
def test_the_undisturbed_training_shows_how_often_it_saves_and_how_far_it_gets_meanwhile(number: int) -> None:
    print(f"seed {SEED}.pace.{number}")
    chance = random.Random(f"{SEED}.pace.{number}")
    interval, stride = chance.randint(2, 50), chance.choice([1, 1, 5, 10])
    count, lags = chance.randint(1, 6), [chance.randint(0, 30) for _ in range(6)]
    saves = [
        SaveSeen(launch=0, step=step, reached=step + lag)
        for step, lag in zip(range(interval, interval * count + 1, interval), lags, strict=False)
    ]
    unknown = SaveSeen(launch=0, step=interval, reached=None)
    seen = steps(0, range(stride, 900, stride), 0.0, 1.0)
    journals = (DrillJournal(saves=(*saves, unknown)), DrillJournal(steps=tuple(seen)))
    assert pace_of([a_try(*journals)]) == SavePace(interval=interval, stride=stride)
    assert lag_of([a_try(*journals)]) == max(lags[:count])
    assert pace_of([a_try(journals[1])]) is None
    assert lag_of([a_try(journals[1])]) == 0


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_fault_costs_what_is_not_stored_and_a_damaged_checkpoint_one_interval_more(kind: FaultKind) -> None:
    pace = SavePace(interval=40, stride=5)
    intervals = 2 if kind is FaultKind.CORRUPT_CHECKPOINT else 1
    assert most_lost(Fault(kind=kind), pace, 7) == intervals * 40 + 7 + 4


# Which faults


@pytest.mark.parametrize("number", range(50))
def test_whatever_is_drawn_can_happen_to_the_job_can_be_named_and_is_drawn_again_from_its_seed(
    number: int,
) -> None:
    print(f"seed {SEED}.{number}")
    chance = random.Random(f"{SEED}.{number}")
    job = a_job(chance.randint(1, 5), checkpoints=chance.random() < 0.7, limits={"hang_timeout": "20s"})
    faults = drawn_faults(job, chance.randint(1, 300), 20, number)
    assert len(faults) == 20
    for fault in [*faults, *usual_faults(job, 40)]:
        assert why_impossible(fault, job) is None, fault
        assert Fault.parse(str(fault)) == fault
        if fault.seconds is not None:
            long = replace(fault, seconds=float(chance.randint(1, 10**9)))
            assert Fault.parse(str(long)) == long


def test_the_same_seed_draws_the_same_faults() -> None:
    job = a_job()
    assert drawn_faults(job, 100, 30, 7) == drawn_faults(job, 100, 30, 7)
    assert drawn_faults(job, 100, 30, 7) != drawn_faults(job, 100, 30, 8)
    assert drawn_faults(job, 100, 50, 7)[:30] == drawn_faults(job, 100, 30, 7)


def test_each_possible_pair_of_fault_and_moment_is_drawn_before_any_is_drawn_again() -> None:
    job = a_job(2, limits={"hang_timeout": "20s"})
    possible = {
        (kind, when)
        for kind in FaultKind
        for when in When
        if why_impossible(Fault(kind=kind, when=when, seconds=5.0), job) is None
    }
    assert len(possible) == len(FaultKind) * len(When) - 3
    drawn = [(fault.kind, fault.when) for fault in drawn_faults(job, 100, 2 * len(possible), 7)]
    assert set(drawn[: len(possible)]) == set(drawn[len(possible) :]) == possible
    assert drawn[: len(possible)] != drawn[len(possible) :]


@pytest.mark.parametrize("writers", [(0,), (1, 3), (0, 1, 2, 3)])
def test_saves_are_disturbed_on_every_node_that_writes_and_on_no_other(writers: tuple[int, ...]) -> None:
    faults = drawn_faults(a_job(4, limits={"hang_timeout": "20s"}), 100, 400, 7, writers=writers)
    saving = (When.SAVING, When.UPLOADING)
    assert {fault.node for fault in faults if fault.when in saving} == set(writers)
    assert {fault.node for fault in faults if fault.when not in saving} == set(range(4))


def test_what_cannot_be_done_here_is_left_out_and_nothing_else() -> None:
    job, left_out = a_job(2, limits={"hang_timeout": "20s"}), set(OF_NETWORKS)
    for faults in (
        drawn_faults(job, 100, 200, 7, without=left_out),
        usual_faults(job, 100, without=left_out),
    ):
        assert {fault.kind for fault in faults} == set(FaultKind) - left_out
    assert {fault.kind for fault in usual_faults(job, 100)} == set(FaultKind)
    alone = a_job(1, limits={"hang_timeout": "20s"})
    assert not left_out & {fault.kind for fault in drawn_faults(alone, 100, 200, 7)}


@pytest.mark.parametrize(
    "text, says",
    [
        ("kill-everything", "kill-rank, kill-agent"),
        ("kill-rank@noon", "rendezvous, training"),
        ("kill-rank@training:rank=1", "node, step and seconds are known"),
        ("kill-rank@training:node=one", "is not a whole number"),
        ("", "kill-rank"),
    ],
)
def test_a_fault_that_cannot_be_read_is_named_with_what_can(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Fault.parse(text)


@pytest.mark.parametrize(
    "text, says",
    [
        ("kill-rank@training:node=3", "3 nodes"),
        ("kill-rank@restoring", "kill-node"),
        ("freeze-rank@training", "hang_timeout"),
        ("cut-network@training", "name seconds"),
        ("starve-network@training", "name seconds"),
        ("corrupt-checkpoint@rendezvous", "corrupt-checkpoint@training"),
    ],
)
def test_a_fault_that_cannot_happen_to_a_job_is_refused_with_the_reason(text: str, says: str) -> None:
    job = a_job(limits={"hang_timeout": None})
    assert says in str(why_impossible(Fault.parse(text), job))


@pytest.mark.parametrize("option", [{"host_network": True}, {"preset": "BM.GPU.H100.8"}])
@pytest.mark.parametrize("kind", list(OF_NETWORKS))
def test_the_network_of_machines_that_others_use_too_is_neither_cut_nor_starved(
    kind: FaultKind, option: dict[str, object]
) -> None:
    fault = Fault(kind=kind, node=1, seconds=5.0)
    backend = {"kind": "pytorchjob", "namespace": "team"}
    assert why_impossible(fault, a_job(image="an:image", backend=backend)) is None
    job = a_job(image="an:image", backend={**backend, **option})
    assert "the network of their machines" in str(why_impossible(fault, job))


NO_PROCESSES = {FaultKind.KILL_RANK, FaultKind.FREEZE_RANK}
NOTHING_STORED = {FaultKind.CORRUPT_CHECKPOINT}


@pytest.mark.parametrize("when", list(When))
def test_each_fault_can_happen_at_each_moment_at_which_there_is_something_to_break(when: When) -> None:
    job = a_job(limits={"hang_timeout": "20s"})
    impossible = {kind for kind in FaultKind if why_impossible(Fault(kind=kind, when=when, seconds=5.0), job)}
    nothing = {When.RENDEZVOUS: NOTHING_STORED, When.RESTORING: NO_PROCESSES}
    assert impossible == nothing.get(when, set())


def test_a_fault_of_a_checkpoint_is_refused_where_the_job_has_none() -> None:
    job = a_job(checkpoints=False)
    for text in ("kill-rank@saving", "kill-node@uploading", "kill-node@restoring", "corrupt-checkpoint"):
        assert "checkpoints" in str(why_impossible(Fault.parse(text), job))


# How often


@pytest.mark.parametrize("number", range(100))
def test_however_a_training_goes_on_its_fault_happens_once(number: int) -> None:
    print(f"seed {SEED}.{number}")
    chance = random.Random(f"{SEED}.{number}")
    kind = chance.choice([FaultKind.KILL_NODE, FaultKind.CORRUPT_CHECKPOINT])
    fault, restarts = Fault(kind=kind, when=chance.choice(list(When))), chance.random() < 0.5
    done: list[tuple[int, int, Fault]] = []
    for attempt in range(1, chance.randint(3, 6)):
        struck: list[InjectedFault] = []
        for launch in range(chance.randint(2, 5) if restarts else 1):
            # A node may be asked many times, and a new machine may take its place in between.
            for _ in range(3):
                wanted = due(fault, attempt=attempt, launch=launch, struck=struck, restarts=restarts)
                if wanted is None:
                    continue
                done.append((attempt, launch, wanted))
                struck.append(
                    InjectedFault(kind=wanted.kind, node=0, step=1, launch=launch, at=0.0, message="m")
                )
    if fault.when is not When.RESTORING:
        assert done == [(1, 0, fault)]
        return
    (*first, prelude), (*second, restoring) = done
    assert prelude == prelude_of(fault)
    assert (first, prelude.when) == ([1, 0], When.TRAINING)
    assert restoring == fault
    assert second == ([1, 1] if restarts else [2, 0])
