"""When another node counts as silent, and when as gone: by this node's own clock (docs/failures/nodes.md)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from airflow_provider_ocidist.agent.join import peer_reports
from airflow_provider_ocidist.agent.join.peer_reports import (
    GONE_AFTER,
    SILENT_AFTER,
    Beats,
    PeerLiveness,
    furthest_step,
    is_first_with_newest,
    read_others,
    read_report,
    read_reports,
    steps_behind,
)
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import ALL_DAMAGED, NodeReport, Phase, Progress, Restart
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore

LOST = Restart(cause=Cause.NODE, message="m", members=(0, 2))


def a_report(rank: int = 1, beat: float = 1.0, phase: Phase = Phase.TRAINING) -> NodeReport:
    return NodeReport(rank=rank, phase=phase, address="", started_at=0.0, heartbeat_at=beat)


class Clock:
    """This node's clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(peer_reports, "time", found)
    return found


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def write(store: LocalStore, report: NodeReport) -> None:
    store.write(report_of(report.rank), report.to_json())


def test_these_limits_are_documented() -> None:
    assert (SILENT_AFTER, GONE_AFTER) == (15.0, 60.0)
    ended = [phase for phase in Phase if a_report(phase=phase).program_has_ended]
    assert ended == [Phase.SAVING, Phase.DONE]


def test_silence_is_counted_from_the_look_that_found_the_last_heartbeat(clock: Clock) -> None:
    beats = Beats()
    found = []
    for beat, rank in ((1.0, 1), (1.0, 1), (1.0, 2), (2.0, 1), (2.0, 1), (1.0, 1), (1.0, 1), (1.0, 2)):
        found.append(beats.silent_for(a_report(rank, beat)))
        clock.now += 5
    assert found == [0.0, 5.0, 0.0, 0.0, 5.0, 0.0, 5.0, 25.0]
    beats.forget(1)
    beats.forget(3)
    assert (beats.silent_for(a_report(1)), beats.silent_for(a_report(2))) == (0.0, 30.0)


@pytest.mark.parametrize("patient", [True, False])
def test_a_node_counts_as_gone_after_a_minute_unless_it_may_hold_a_finished_model(
    clock: Clock, store: LocalStore, patient: bool
) -> None:
    liveness = PeerLiveness(store, patient=lambda: patient)
    write(store, a_report())
    for seconds, is_silent, is_gone in (
        (0.0, False, False),
        (15.0, False, False),
        (15.5, True, False),
        (60.0, True, False),
        (60.5, True, True),
    ):
        clock.now = 1000.0 + seconds
        assert liveness.ended(1) is (is_gone and not patient)
        assert liveness.is_waited_for(1) is (is_silent and patient)
    write(store, a_report(beat=2.0))
    assert not liveness.ended(1)
    assert not liveness.is_waited_for(1)


def test_nobody_is_patient_unless_it_is_asked_for(clock: Clock, store: LocalStore) -> None:
    liveness = PeerLiveness(store)
    write(store, a_report())
    assert not liveness.ended(1)
    clock.now += 60.5
    assert liveness.ended(1)
    assert not liveness.is_waited_for(1)


def test_a_node_whose_report_cannot_be_read_has_not_ended_and_its_silence_begins_anew(
    clock: Clock, store: LocalStore
) -> None:
    liveness = PeerLiveness(store, patient=lambda: True)
    assert not liveness.ended(1)
    assert liveness.is_waited_for(1)
    impatient = PeerLiveness(store)
    write(store, a_report())
    assert not impatient.ended(1)
    clock.now += 50
    store.delete(report_of(1))
    assert not impatient.ended(1)
    write(store, a_report())
    clock.now += 50
    assert not impatient.ended(1)
    clock.now += 60.5
    assert impatient.ended(1)


def test_a_read_that_waits_for_the_store_says_nothing_of_the_others_silence(
    clock: Clock, tmp_path: Path
) -> None:
    takes = [0.0]

    class Slow(LocalStore):
        def read(self, name: str) -> bytes:
            clock.now += takes[0]
            return super().read(name)

    store = Slow(tmp_path)
    liveness = PeerLiveness(store)
    write(store, a_report())
    assert not liveness.ended(1)
    # As retries of a store that does not answer; the other node could write nothing either.
    takes[0] = 90.0
    assert not liveness.ended(1)
    takes[0] = 1.0
    clock.now += 58.0
    assert not liveness.ended(1)
    clock.now += 2.0
    assert liveness.ended(1)


def test_a_node_that_is_done_has_ended_at_once(clock: Clock, store: LocalStore) -> None:
    write(store, a_report(phase=Phase.DONE))
    assert PeerLiveness(store, patient=lambda: True).ended(1)
    write(store, a_report(phase=Phase.SAVING))
    assert not PeerLiveness(store).ended(1)
    del clock


def test_a_report_that_is_damaged_is_none(store: LocalStore) -> None:
    for text in (b"", b"{", b"[]", b'{"rank": 1}', b"\xff"):
        store.write(report_of(1), text)
        assert read_report(store, 1) is None
    write(store, a_report())
    assert read_reports(store, (0, 1, 2)) == [None, a_report(), None]


class ReadTogether(LocalStore):
    """A store that answers a read once three are under way."""

    together = threading.Barrier(3)

    def read(self, name: str) -> bytes:
        self.together.wait(20)
        return super().read(name)


def test_the_reports_of_several_nodes_are_read_at_the_same_time(store: LocalStore, tmp_path: Path) -> None:
    for rank in range(3):
        write(store, a_report(rank))
    assert read_reports(ReadTogether(str(tmp_path)), (2, 0, 1)) == [a_report(2), a_report(0), a_report(1)]


def test_only_those_that_take_part_in_ones_own_launch_are_others(store: LocalStore) -> None:
    for rank in range(4):
        write(store, a_report(rank))
    assert read_others(store, a_report(1), 4) == [a_report(0), a_report(2), a_report(3)]
    assert read_others(store, replace(a_report(0), restarts=(LOST,)), 4) == [a_report(2)]


def test_the_furthest_step_is_of_this_launch_alone() -> None:
    def at(step: int | None, launches: int = 1) -> NodeReport:
        progress = None if step is None else Progress(step=step)
        return replace(a_report(), restarts=(LOST,) * launches, progress=progress)

    assert furthest_step([at(3), at(7), at(5), None, at(None)], 1) == 7
    assert furthest_step([at(3), at(9, launches=0), at(9, launches=2)], 1) == 3
    assert furthest_step([replace(at(1), progress=Progress()), at(0)], 1) == 0
    assert furthest_step([None, at(None), replace(at(1), progress=Progress())], 1) is None
    assert furthest_step([], 0) is None


@pytest.mark.parametrize("seed", range(50))
def test_of_the_nodes_that_go_on_from_the_newest_the_first_with_each_content_stores_it_again(
    seed: int,
) -> None:
    chance = Random(seed)
    nodes = chance.randint(1, 6)
    # A newest checkpoint of which two contents were read, and older ones.
    known: list[tuple[int, str | None]]
    known = [(2, "a"), (2, "b"), (1, "c"), (0, ""), (2, ALL_DAMAGED), (0, None)]
    found = [chance.choice(known) for _ in range(nodes)]
    reports = [
        replace(
            a_report(rank),
            starts_from=content,
            checkpoint=CheckpointRef(uri="u", step=None, sequence=number) if number else None,
        )
        for rank, (number, content) in enumerate(found)
    ]
    chosen = [
        report.rank
        for report in reports
        if is_first_with_newest(report, [other for other in [None, *reports] if other is not report])
    ]
    usable = [each for each in found if each[1] in ("a", "b", "c")]
    newest = max((number for number, _ in usable), default=0)
    wanted = {found.index(each) for each in usable if each[0] == newest}
    assert chosen == sorted(wanted)


def test_the_training_may_be_further_than_its_last_report_by_what_it_does_between_two() -> None:
    def at(step_time: float | None, launches: int = 1) -> NodeReport:
        return replace(
            a_report(), restarts=(LOST,) * launches, progress=Progress(step=9, step_time=step_time)
        )

    assert steps_behind([at(0.7), at(0.5), at(None), None, at(0.01, launches=0)], 1) == 6
    assert steps_behind([at(0.7), at(9.0)], 1) == 5
    assert steps_behind([at(9.0)], 1) == 1
    assert steps_behind([a_report(), at(None), at(0.0), None], 1) == 0
