"""A lost node that comes back: its reports never take the place of those of the node that was made in its place."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.peer_reports import read_report
from airflow_provider_ocidist.agent.join.silence import SILENT_AFTER
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.errors import Cause, StorageError
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore

AGREED = Restart(cause=Cause.NODE, message="node 1: gone", rank=1)
SEED = int(os.environ.get("TEST_SEED", "20261126"))
LOST = replace(AGREED, lost=(1,))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def node(store: LocalStore, *restarts: Restart, incarnation: int = 0) -> Heartbeat:
    """Return a node of rank 1 that has written its report, or has come in the place of one that had."""
    report = NodeReport(
        rank=1,
        phase=Phase.TRAINING,
        address="",
        started_at=0.0,
        heartbeat_at=0.0,
        restarts=restarts,
        incarnation=incarnation,
    )
    found = Heartbeat(store, report, StopSwitch())
    assert found.write()
    return found


def ask(store: LocalStore, *restarts: Restart) -> None:
    store.write(STOP_FILE, StopRequest(cause=Cause.NODE, message="m", restarts=restarts).to_json())


def incarnation_read(store: LocalStore) -> int | None:
    report = read_report(store, 1)
    return report.incarnation if report else None


@pytest.mark.parametrize("had_begun", [True, False])
def test_it_writes_no_report_over_that_of_the_node_in_its_place_not_even_its_last(
    store: LocalStore, *, had_begun: bool
) -> None:
    # It may have read that another launch was asked for, and not reported that before it was lost.
    lost = node(store, *[AGREED] * had_begun)
    ask(store, LOST)
    new = node(store, LOST, incarnation=1)
    at_once = node(LocalStore(store.folder / "elsewhere"))
    at_once.store = at_once.quick_store = store
    for wrote in (lost._beat, lambda: lost.write(phase=Phase.SAVING), lost.finish, at_once.finish):
        wrote()
        assert incarnation_read(store) == 1
    assert lost.switch.is_lost
    with pytest.raises(Stopped, match="this node counts as lost"):
        lost.switch.check()
    new._beat()
    new.switch.check()
    assert new.write(phase=Phase.DONE)
    assert read_report(store, 1) == new.report


def test_it_writes_nothing_from_when_it_is_named_as_lost(store: LocalStore) -> None:
    lost = node(store)
    ask(store, LOST)
    before = read_report(store, 1)
    lost._beat()
    lost.finish(phase=Phase.DONE, exit_code=0)
    assert read_report(store, 1) == before


@pytest.mark.parametrize("others", [(AGREED,), (replace(AGREED, rank=0, lost=(0,)),)])
def test_a_node_that_is_not_lost_takes_part_in_the_launch_that_is_asked_for(
    store: LocalStore, others: tuple[Restart, ...]
) -> None:
    lives = node(store)
    ask(store, *others)
    lives._beat()
    assert not lives.switch.is_lost
    assert lives.switch.stop
    assert lives.switch.stop.restarts == others
    assert lives.write(phase=Phase.SAVING)


def test_that_a_node_is_lost_counts_more_than_the_reason_for_which_it_ends_already() -> None:
    switch, heard = StopSwitch(), []
    switch.listen(lambda: heard.append("once"))
    switch.ask(Stop(message="another launch", restarts=(AGREED,)))
    switch.ask(Stop(message="lost", is_lost=True))
    switch.ask(Stop(message="later"))
    assert heard == ["once"]
    with pytest.raises(Stopped, match="lost"):
        switch.rearm(1)


class CountedStore(LocalStore):
    """A run directory that records what is read of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reads: list[str] = []

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        return super().read(name)


@pytest.mark.parametrize("number", range(20))
def test_a_beat_reads_the_request_alone_however_often_the_training_was_launched_again(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    counted, incarnation = CountedStore(tmp_path), draw.randint(0, 2)
    ranks = [1] * incarnation + [draw.choice([0, 2]) for _ in range(draw.randint(0, 3))]
    draw.shuffle(ranks)
    restarts = tuple(replace(AGREED, rank=rank, lost=(rank,) * draw.randint(0, 1)) for rank in ranks)
    lives = node(counted, *restarts, incarnation=incarnation)
    if restarts:
        ask(counted, *restarts)
    counted.reads.clear()
    beats = draw.randint(1, 5)
    for _ in range(beats):
        lives._beat()
    assert counted.reads == [STOP_FILE] * beats
    assert not lives.switch.is_lost


@pytest.mark.parametrize("writes", ["_beat", "finish"])
def test_a_node_that_could_not_write_for_long_looks_whether_another_has_its_place(
    store: LocalStore, writes: str
) -> None:
    lost = node(store, AGREED)
    # It is named as lost in a request that it has not read, and a later one does not repeat the name.
    later = replace(AGREED, rank=0)
    ask(store, AGREED, later)
    node(store, AGREED, later, incarnation=1)
    lost.written_at -= SILENT_AFTER + 1
    write: Callable[[], object] = getattr(lost, writes)
    write()
    assert lost.switch.is_lost
    assert incarnation_read(store) == 1


class StoreThatComesBack(LocalStore):
    """A run directory behind a network that was cut: the first reads are not answered yet, and writes are."""

    unanswered = 0

    def read(self, name: str) -> bytes:
        if self.unanswered:
            self.unanswered -= 1
            raise StorageError("no answer")
        return super().read(name)


@pytest.mark.parametrize("number", range(12))
def test_a_node_that_was_silent_for_long_writes_nothing_before_it_knows_whether_it_was_replaced(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    store, is_replaced = StoreThatComesBack(tmp_path), draw.random() < 0.5
    silent = node(store)
    if is_replaced:
        ask(store, LOST)
        node(store, LOST, incarnation=1)
    silent.written_at -= SILENT_AFTER + 1
    store.unanswered = unanswered = draw.randint(1, 3)
    writes: list[Callable[[], object]] = [silent._beat, lambda: silent.write(phase=Phase.SAVING)]
    for _ in range(unanswered):
        before = report_of_rank_1(tmp_path)
        draw.choice(writes)()
        assert report_of_rank_1(tmp_path) == before
    draw.choice([*writes, silent.finish])()
    assert silent.switch.is_lost is is_replaced
    assert incarnation_read(store) == is_replaced
    assert (report_of_rank_1(tmp_path) == before) is is_replaced


def report_of_rank_1(folder: Path) -> bytes:
    return LocalStore(folder).read(report_of(1))


def test_a_silent_node_whose_stop_request_is_damaged_reports_again(store: LocalStore) -> None:
    lives = node(store)
    store.write(STOP_FILE, b"{")
    lives.written_at -= SILENT_AFTER + 1
    assert lives.write(phase=Phase.SAVING)


def test_a_node_that_was_silent_and_ends_looks_again_until_it_may_write_its_last_report(
    tmp_path: Path,
) -> None:
    store = StoreThatComesBack(tmp_path)
    silent = node(store)
    silent.written_at -= SILENT_AFTER + 1
    store.unanswered = 2
    silent.finish(phase=Phase.DONE, exit_code=0)
    assert read_report(store, 1) == silent.report


class StoreWithoutSomeReads(LocalStore):
    """A run directory of which the next reads of some names are not answered."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.unanswered: dict[str, int] = {}
        self.reads: list[str] = []

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        if self.unanswered.get(name):
            self.unanswered[name] -= 1
            raise StorageError("no answer")
        return super().read(name)


def silent_by_monotonic(node: Heartbeat) -> None:
    node.written_at -= SILENT_AFTER + 1


def silent_by_wall_clock(node: Heartbeat) -> None:
    # As after a pause of the hypervisor, which the other clock does not count.
    node.written_unix -= SILENT_AFTER + 1


def requests(draw: random.Random) -> list[tuple[Restart, ...] | None]:
    """Return what a node may find where its name is not read any more: an end of the run, a later launch, nothing."""
    later = replace(AGREED, rank=0)
    return [None, (), (AGREED, later), (AGREED,) * draw.randint(1, 2)]


@pytest.mark.parametrize("number", range(60))
def test_a_node_that_was_frozen_looks_for_another_in_its_place_whatever_is_asked_for(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.frozen.{number}")
    store, is_replaced = StoreWithoutSomeReads(tmp_path), draw.random() < 0.6
    asked, freeze = draw.choice(requests(draw)), draw.choice([silent_by_monotonic, silent_by_wall_clock])
    unanswered = draw.randint(0, 3)
    print(f"seed {SEED}.frozen.{number}: {asked}, {freeze.__name__}, {unanswered=}, {is_replaced=}")
    frozen = node(store, AGREED)
    if asked is not None:
        ask(store, *asked)
    if is_replaced:
        node(store, AGREED, incarnation=1)
    freeze(frozen)
    store.unanswered = {report_of(1): unanswered}
    before = LocalStore(tmp_path).read(report_of(1))
    writes: list[Callable[[], object]] = [frozen._beat, lambda: frozen.write(phase=Phase.SAVING)]
    for _ in range(unanswered):
        draw.choice(writes)()
        assert LocalStore(tmp_path).read(report_of(1)) == before, "it cannot know yet whose place it is"
    draw.choice([*writes, frozen.finish])()
    assert frozen.switch.is_lost is is_replaced
    assert (LocalStore(tmp_path).read(report_of(1)) == before) is is_replaced


@pytest.mark.parametrize("number", range(30))
def test_whatever_the_clocks_say_a_node_looks_once_for_another_in_its_place_before_a_later_launch(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.clocks.{number}")
    print(f"seed {SEED}.clocks.{number}")
    store, is_replaced = StoreWithoutSomeReads(tmp_path), draw.random() < 0.5
    began, unanswered = draw.randint(0, 2), draw.randint(0, 2)
    # The name of the lost node is in none of them.
    restarts = (AGREED,) * (began + draw.randint(1, 2))
    frozen = node(store, *restarts[:began])
    ask(store, *restarts)
    if is_replaced:
        node(store, *restarts, incarnation=1)
    store.reads.clear()
    store.unanswered = {report_of(1): unanswered}
    before = LocalStore(tmp_path).read(report_of(1))
    for _ in range(unanswered):
        frozen._beat()
        assert LocalStore(tmp_path).read(report_of(1)) == before
    beats = draw.randint(1, 4)
    for _ in range(beats):
        frozen._beat()
    assert frozen.switch.is_lost is is_replaced
    assert (LocalStore(tmp_path).read(report_of(1)) == before) is is_replaced
    assert store.reads.count(report_of(1)) == unanswered + 1


def test_a_silent_node_whose_own_report_is_damaged_reports_again(store: LocalStore) -> None:
    lives = node(store)
    store.write(report_of(1), b"{")
    silent_by_monotonic(lives)
    assert lives.write(phase=Phase.SAVING)
    assert read_report(store, 1) == lives.report
