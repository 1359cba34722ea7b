"""Who watches whom, and when a silence counts: docs/failures/nodes.md, on a clock that the test moves."""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.monitor import peers
from airflow_provider_ocidist.agent.monitor.peers import PeerWatch, host_answers, silent_nodes
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.storage.stores.opening import open_store

SEED = random.randrange(1_000_000)


class Watched:
    """A gang as one of its nodes sees it. Time passes by the test's will."""

    def __init__(self, folder: Path, nodes: int, own: int, **options: Any) -> None:
        self.folder = folder / "nodes"
        self.folder.mkdir(parents=True)
        self.store = open_store(str(folder))
        self.reports = [
            NodeReport(
                rank=rank, phase=Phase.TRAINING, address=f"10.0.0.{rank}", started_at=0.0, heartbeat_at=1.0
            )
            for rank in range(nodes)
        ]
        self.heartbeat = Heartbeat(self.store, self.reports[own], StopSwitch())
        self.now = self.heartbeat.written_at = 5000.0
        self.silent_machines: set[int] = set()
        self.asked: list[int] = []
        self.declared: list[str] = []
        chosen = {"alone_after": 60.0, "declare": self.declared.append, "answers": self._answers, **options}
        self.watch = PeerWatch(self.heartbeat, self.reports, **chosen)
        for rank in range(nodes):
            self.beat(rank)

    def _answers(self, address: str) -> bool:
        rank = int(address.rpartition(".")[2])
        self.asked.append(rank)
        return rank not in self.silent_machines

    def beat(self, rank: int, **changes: Any) -> None:
        beat_at = self.reports[rank].heartbeat_at + 1
        self.reports[rank] = replace(self.reports[rank], heartbeat_at=beat_at, **changes)
        self.write(rank)

    def write(self, rank: int) -> None:
        # Not by the store, which waits for the disk each time.
        (self.folder / f"{rank}.json").write_bytes(self.reports[rank].to_json())

    def look(self, seconds: float = 1.0, *, beating: tuple[int, ...] = (), writes: bool = True) -> str | None:
        self.now += seconds
        if writes:
            self.heartbeat.written_at = self.now
        for rank in beating:
            self.beat(rank)
        return self.watch.look(self.now)

    def looks(self, times: int, **options: Any) -> list[str]:
        return [said for _ in range(times) if (said := self.look(**options)) is not None]


def everybody(gang: Watched, *but: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(len(gang.reports)) if rank not in but)


# A ring: every node is watched by one other


@pytest.mark.parametrize("nodes", [2, 3, 4, 7])
def test_every_node_is_watched_by_the_one_before_it(tmp_path: Path, nodes: int) -> None:
    watched: dict[int, list[int]] = {}
    for own in range(nodes):
        gang = Watched(tmp_path / str(own), nodes, own)
        gang.look(beating=everybody(gang))
        watched[own] = gang.asked
    assert watched == {own: [(own + 1) % nodes] for own in range(nodes)}


@pytest.mark.parametrize("nodes", [2, 3, 5])
@pytest.mark.parametrize("machine_gone", [True, False])
def test_whichever_node_vanishes_another_names_it(tmp_path: Path, nodes: int, machine_gone: bool) -> None:
    for lost in range(nodes):
        gang = Watched(tmp_path / str(lost), nodes, (lost - 1) % nodes)
        assert gang.look(beating=everybody(gang)) is None
        gang.silent_machines = {lost} if machine_gone else set()
        limit = 15 if machine_gone else 30
        assert gang.looks(limit, beating=everybody(gang, lost)) == []
        said = gang.look(beating=everybody(gang, lost))
        assert said == (
            f"node {lost} has sent no heartbeat for {limit + 1} s: its agent or its machine is gone"
        )


def test_a_single_node_watches_nobody(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 1, 0)
    assert gang.looks(100) == []
    assert gang.asked == []


@pytest.mark.parametrize("own", range(4))
def test_nodes_that_are_done_are_passed_over_and_those_behind_them_are_watched(
    tmp_path: Path, own: int
) -> None:
    gang = Watched(tmp_path, 4, own)
    order = [(own + step) % 4 for step in (1, 2, 3)]
    for done in order:
        gang.look(beating=everybody(gang))
        assert gang.asked[-1] == done
        gang.beat(done, phase=Phase.DONE)
        assert gang.look() is None
    gang.asked.clear()
    assert gang.looks(100) == []
    assert gang.asked == []


@pytest.mark.parametrize("seed", range(8))
def test_a_node_that_saves_a_finished_model_is_given_up_by_no_other_and_gives_up_none(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    nodes = dice.randint(2, 4)
    own = dice.randrange(nodes)
    gang = Watched(tmp_path, nodes, own)
    gang.looks(3, beating=everybody(gang))
    saving = own if dice.random() < 0.5 else (own + 1) % nodes
    gang.beat(saving, phase=Phase.SAVING)
    gang.heartbeat.update(phase=gang.reports[own].phase)
    others = everybody(gang) if saving == own else everybody(gang, saving)
    # Nobody who can be silent writes: who saves gives nobody up, and who saves is given up by nobody.
    silent = dice.random() < 0.5
    gang.silent_machines = set(range(nodes)) if silent and saving == own else {saving} if silent else set()
    beating = () if saving == own else others
    assert gang.looks(100, beating=beating, writes=saving != own or dice.random() < 0.5) == []
    if saving != own and nodes > 2:
        behind = (own + 2) % nodes
        assert gang.looks(40, beating=everybody(gang, saving, behind)) != [], "the one behind is watched"


def test_the_silence_of_the_next_is_counted_from_when_it_is_watched(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 3, 0)
    assert gang.looks(25, beating=(1,)) == []
    gang.beat(1, phase=Phase.DONE)
    assert gang.looks(32) == []
    assert gang.look() == "node 2 has sent no heartbeat for 31 s: its agent or its machine is gone"


def test_a_node_that_is_done_may_stop_to_answer(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0)
    gang.look(beating=(1,))
    gang.beat(1, phase=Phase.DONE)
    gang.silent_machines = {1}
    assert gang.looks(100) == []


def test_any_new_report_is_a_sign_of_life_also_one_with_an_older_time(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0)
    gang.silent_machines = {1}
    for time_there in range(100, 0, -1):
        gang.reports[1] = replace(gang.reports[1], heartbeat_at=float(time_there))
        gang.write(1)
        assert gang.look(10) is None


@pytest.mark.parametrize("gone", ["missing", "cut"])
def test_a_report_that_is_not_there_says_nothing(tmp_path: Path, gone: str) -> None:
    gang = Watched(tmp_path, 2, 0)
    gang.look(beating=(1,))
    gang.store.delete("nodes/1.json")
    assert gang.looks(60) == []
    gang.beat(1)
    assert gang.looks(31) == []
    assert "for 31 s" in str(gang.look())


# The network between the nodes


def test_a_machine_that_had_answered_and_does_not_any_more_is_named_after_15_s(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 3, 2)
    assert gang.looks(5, beating=(0,)) == []
    gang.silent_machines = {0}
    assert gang.looks(15, beating=(0,)) == []
    assert gang.look(beating=(0,)) == (
        "node 0 at 10.0.0.0 has not answered for 16 s, though it writes its reports: "
        "the network between the nodes is broken"
    )


def test_a_machine_that_answers_now_and_then_is_left_alone(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0)
    for second in range(100):
        gang.silent_machines = set() if second % 15 == 0 else {1}
        assert gang.look(beating=(1,)) is None


def test_that_another_machine_had_answered_says_nothing_of_this_one(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 3, 0)
    gang.silent_machines = {2}
    assert gang.looks(5, beating=(1, 2)) == []
    gang.beat(1, phase=Phase.DONE)
    assert gang.looks(100, beating=(2,)) == []


# One's own trouble


def test_who_cannot_write_its_own_report_says_nothing_of_others(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0)
    gang.look(beating=(1,))
    assert gang.looks(28) == []
    assert gang.look(7, writes=False) is None  # 35 s without a sign of node 1
    assert gang.looks(31) == [], "silence is counted anew"
    assert "node 1 has sent no heartbeat for 31 s" in str(gang.look())


def test_trouble_of_its_own_begins_after_six_seconds(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0)
    gang.look(beating=(1,))
    gang.looks(30)
    assert "no heartbeat for 36 s" in str(gang.look(6, writes=False))


def cut_off(gang: Watched, seconds: int) -> list[str]:
    return gang.looks(seconds, writes=False)


def test_a_node_that_reaches_neither_store_nor_nodes_ends_itself(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 7, 5)
    gang.look(beating=everybody(gang))
    gang.silent_machines = set(range(7))
    assert cut_off(gang, 59) == []
    gang.asked.clear()
    assert gang.look(writes=False) == (
        "this node is cut off: its run directory could not be written for 60 s, "
        "and no other node answers (asked 10.0.0.6, 10.0.0.0, 10.0.0.1, 10.0.0.2)"
    )
    assert gang.asked == [6, 0, 1, 2]


def test_a_node_is_not_cut_off_because_those_that_have_trained_are_gone(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0)
    gang.look(beating=(1,))
    gang.beat(1, phase=Phase.DONE)
    gang.look()
    gang.silent_machines = {1}
    assert cut_off(gang, 300) == []


@pytest.mark.parametrize("known", ["before the outage", "by what can still be read"])
def test_those_that_have_trained_and_are_gone_are_not_asked_wherever_they_stand(
    tmp_path: Path, known: str
) -> None:
    gang = Watched(tmp_path, 7, 0)
    gang.look(beating=everybody(gang))
    for rank in (2, 3, 4):
        gang.beat(rank, phase=Phase.DONE)
    if known == "before the outage":
        # Each of the others was looked at in turn.
        assert gang.looks(7, beating=(1, 5, 6)) == []
        for rank in range(7):
            gang.store.delete(f"nodes/{rank}.json")
    gang.silent_machines = {1, 2, 3, 4}
    assert cut_off(gang, 300) == []
    gang.silent_machines = set(range(7))
    assert "no other node answers (asked 10.0.0.1, 10.0.0.5, 10.0.0.6)" in cut_off(gang, 1)[0]


@pytest.mark.parametrize("reached", [6, 0, 1, 2])
def test_a_node_that_reaches_another_is_not_cut_off(tmp_path: Path, reached: int) -> None:
    gang = Watched(tmp_path, 7, 5)
    gang.look(beating=everybody(gang))
    gang.silent_machines = set(range(7)) - {reached}
    assert cut_off(gang, 300) == []


def test_where_nobody_ever_answered_a_node_does_not_take_itself_for_cut_off(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 3, 0)
    gang.silent_machines = {1, 2}
    gang.looks(5, beating=(1, 2))
    assert cut_off(gang, 300) == []


@pytest.mark.parametrize("number", range(12))
def test_a_gang_in_which_all_write_is_left_alone_whatever_the_store_and_the_network_do(
    tmp_path: Path, number: int
) -> None:
    seed = SEED + number
    chance = random.Random(seed)
    nodes = chance.randint(2, 6)
    gang = Watched(tmp_path, nodes, chance.randrange(nodes))
    silent = 0
    for _ in range(150):
        # No silence of a machine, and no pause of a report, is as long as the limits.
        silent = 0 if silent >= 12 or chance.random() < 0.3 else silent + 1
        gang.silent_machines = set() if silent == 0 else set(range(nodes))
        beating = everybody(gang) if silent in (0, 5, 10) else ()
        assert gang.look(beating=beating, writes=chance.random() < 0.8) is None, f"seed {seed}"


# The thread that looks


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LOOK_INTERVAL", 0.01)


def running(watch: PeerWatch, look: Callable[[float], str | None]) -> threading.Thread:
    watch.look = look
    before = set(threading.enumerate())
    watch.start()
    (thread,) = [each for each in set(threading.enumerate()) - before if each.name == "peers"]
    assert thread.daemon
    return thread


def test_what_is_wrong_is_declared_once(tmp_path: Path, quick: None) -> None:
    gang = Watched(tmp_path, 2, 0)
    times: list[float] = []

    def look(now: float) -> str | None:
        times.append(now)
        return "node 1 is gone" if len(times) > 2 else None

    running(gang.watch, look).join(30)
    assert gang.declared == ["node 1 is gone"]
    assert len(times) == 3
    assert abs(times[-1] - time.monotonic()) < 30


def test_a_look_that_fails_is_logged_and_the_next_is_made(
    tmp_path: Path, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    gang = Watched(tmp_path, 2, 0)
    looks: list[float] = []

    def look(now: float) -> str | None:
        looks.append(now)
        if len(looks) < 3:
            raise StorageError("the store is down")
        return "node 1 is gone"

    with caplog.at_level(logging.WARNING):
        running(gang.watch, look).join(30)
    assert caplog.messages.count("StorageError: the store is down") == 2
    assert gang.declared == ["node 1 is gone"]


def test_a_watch_that_is_closed_declares_nothing(tmp_path: Path, quick: None) -> None:
    gang = Watched(tmp_path, 2, 0)

    def look(_: float) -> str | None:
        gang.watch.close()
        return "node 1 is gone"

    running(gang.watch, look).join(30)
    assert gang.declared == []
    quiet = Watched(tmp_path / "quiet", 2, 0)
    thread = running(quiet.watch, lambda _: None)
    quiet.watch.close()
    thread.join(30)
    assert not thread.is_alive()


# Two looks at all


def report(rank: int, beat: float, phase: Phase = Phase.TRAINING) -> NodeReport:
    return NodeReport(rank=rank, phase=phase, address="a", started_at=0.0, heartbeat_at=beat)


def test_who_has_not_written_between_two_looks_is_silent_unless_it_is_done() -> None:
    before = [report(0, 1), report(1, 1), report(2, 1), None, report(4, 1), report(5, 1)]
    after = [report(0, 2), report(1, 1), report(2, 1, Phase.DONE), report(3, 1), None, report(5, 1)]
    assert silent_nodes(before, after) == [1, 5]
    with pytest.raises(ValueError, match="the later look is shorter than the earlier"):
        silent_nodes(before, after[:-1])
    with pytest.raises(ValueError, match="the later look is longer than the earlier"):
        silent_nodes(before[:-1], after)


# Asking a machine


def test_a_machine_answers_by_refusing_or_by_accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(peers, "PROBED_PORT", server.getsockname()[1])
        assert host_answers("127.0.0.1") is True
        monkeypatch.undo()
    assert host_answers("127.0.0.1") is True
    assert host_answers("255.255.255.255") is False
    assert host_answers("no.such.host.invalid") is False


def test_a_machine_that_says_nothing_is_waited_for_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def silent(place: Any, limit: float) -> None:
        asked.append((place, limit))
        raise TimeoutError

    monkeypatch.setattr(peers.socket, "create_connection", silent)
    assert host_answers("10.0.0.1") is False
    assert asked == [(("10.0.0.1", 9), 3.0)]


def test_by_default_machines_are_asked(tmp_path: Path) -> None:
    gang = Watched(tmp_path, 2, 0, answers=None)
    assert gang.watch.answers is host_answers
