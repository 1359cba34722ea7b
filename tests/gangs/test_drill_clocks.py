"""How long a training took to come back is measured by one clock, whatever those of its nodes show."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.gangs.drill_measures import Sightings, Try, recovery_of
from airflow_provider_ocidist.model.drill import DrillJournal, FaultKind, InjectedFault, StepSeen
from airflow_provider_ocidist.model.work_dir import drill_journal_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.gangs.records import record

SEED = int(os.environ.get("TEST_SEED", "20261126"))
LOOK_EVERY = 1.0
Event = tuple[float, int, InjectedFault | StepSeen]
"""When something happens, on which node, and what that node records with the time of its own clock."""


def a_try(*journals: DrillJournal) -> Try:
    return Try(journals=journals, launches=1, failure=None, weights=None, step=None)


def training(draw: random.Random, off: list[float], away: float) -> tuple[list[Event], float]:
    """Return a training of two nodes with a fault, and when that happens: node 0 reports, node 1 is hit."""
    each = draw.uniform(0.5, 3.0)
    reached, saved = draw.randint(4, 9), draw.randint(0, 3)
    at, events = 10.0, list[Event]()
    for step in range(1, reached + 1):
        events.append((at, 0, StepSeen(at=at + off[0], launch=0, step=step)))
        at += each
    struck = at - each * draw.uniform(0.1, 0.9)
    fault = InjectedFault(
        kind=FaultKind.KILL_NODE, node=1, step=reached, launch=0, at=struck + off[1], message="m"
    )
    events.append((struck, 1, fault))
    at = struck + away
    # The machine in the place of the lost one, or of its gang, has a clock of its own.
    for step in range(saved + 1, reached + 2):
        events.append((at, 0, StepSeen(at=at + off[2], launch=1, step=step)))
        at += each
    return events, struck


@pytest.mark.parametrize("number", range(40))
def test_the_clocks_of_the_nodes_do_not_count(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    off, away = [draw.uniform(-130, 130) for _ in range(3)], draw.uniform(5, 60)
    events, _ = training(draw, off, away)
    run_dirs, known = RunDirStores(open_store), replace(record().ref, run_dir=str(tmp_path))
    directories, store, now = RunDirectories(run_dirs, run_dirs), open_store(str(tmp_path)), 0.0

    def journals() -> dict[int, DrillJournal]:
        found = {rank: directories.drill_journal(known, rank) for rank in range(2)}
        return {rank: journal for rank, journal in found.items() if journal}

    sightings = Sightings(journals, clock=lambda: now)
    while now < events[-1][0] + LOOK_EVERY:
        happened = [event for event in events if event[0] <= now]
        for rank in range(2):
            own = [what for _, node, what in happened if node == rank]
            injected = tuple(each for each in own if isinstance(each, InjectedFault))
            steps = tuple(each for each in own if isinstance(each, StepSeen))
            store.write(drill_journal_of(rank), DrillJournal(injected=injected, steps=steps).to_json())
        sightings.look()
        now += LOOK_EVERY
    recovery = recovery_of([a_try(*sightings.dated().values())])
    by_their_own = recovery_of([a_try(*journals().values())])
    assert recovery is not None
    assert by_their_own is not None
    assert recovery.seconds == pytest.approx(away, abs=LOOK_EVERY)
    assert recovery.lost_steps == by_their_own.lost_steps
    # Their clocks would have shown something else.
    assert by_their_own.seconds == pytest.approx(away + off[2] - off[1])


def test_what_is_seen_once_keeps_its_time_and_what_is_new_at_the_end_has_that_of_the_end() -> None:
    first, last = StepSeen(at=5.0, launch=0, step=1), StepSeen(at=1.0, launch=1, step=1)
    found, now = {3: DrillJournal(steps=(first,))}, 100.0
    sightings = Sightings(lambda: found, clock=lambda: now)
    sightings.look()
    found, now = {3: DrillJournal(steps=(first, last), damaged=("its uri",))}, 107.0
    (journal,) = sightings.dated().values()
    assert [seen.at for seen in journal.steps] == [100.0, 107.0]
    assert journal.damaged == ("its uri",)
