"""Nodes whose clocks differ or jump, and nodes that stand still before the training: real agents, real files."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join import gathering
from airflow_provider_ocidist.agent.join.gathering import await_others_end, meet
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.monitor.hang import HangWatch, StallTime
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.monitor.watches import Watches
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import Cause, TopologyTimeout
from airflow_provider_ocidist.job import Input, Limits, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import REPOSITORY, Gang

OFF = """
import os, time
real = time.time
off = float(os.environ.get("CLOCK_IS_OFF", "0"))
time.time = lambda: real() + off
"""


@pytest.fixture
def skewed(tmp_path: Path) -> str:
    """A path for PYTHONPATH that puts a node's clock off by CLOCK_IS_OFF seconds."""
    folder = tmp_path / "skew"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(OFF)
    return f"{folder}:{REPOSITORY}"


SPEAKS = """
import os, time
for _ in range(40):
    if os.environ["RANK"] == os.environ["SPEAKER"]:
        print("still here")
    time.sleep(0.2)
"""


@pytest.mark.parametrize("seed", range(3))
def test_nodes_whose_clocks_differ_train_and_take_nobody_for_hung(
    tmp_path: Path, skewed: str, seed: int
) -> None:
    random_ = random.Random(seed)
    print("seed", seed)
    speaker = str(random_.randrange(2))
    with Gang(tmp_path, SPEAKS, nodes=2, limits=Limits(hang_timeout=6.0)) as gang:
        for rank in range(2):
            off = str(random_.choice([-130, 130, random_.uniform(-130, 130)]))
            gang.start(rank, PYTHONPATH=skewed, CLOCK_IS_OFF=off, SPEAKER=speaker)
        assert [agent.wait() for agent in gang.agents] == [0, 0]


@pytest.mark.parametrize("off", [-130, 130])
def test_a_hang_is_noticed_though_clocks_differ(tmp_path: Path, skewed: str, off: int) -> None:
    script = "import time\nprint('step 5')\ntime.sleep(60)"
    with Gang(tmp_path, script, nodes=2, limits=Limits(hang_timeout=4.0, stop_grace=1.0)) as gang:
        gang.start(0)
        gang.start(1, PYTHONPATH=skewed, CLOCK_IS_OFF=str(off))
        assert [agent.wait() for agent in gang.agents] == [75, 143]
        assert gang.agents[0].report.cause is Cause.HANG


def test_a_hang_needs_everybody_to_stand_still_by_their_own_measure(tmp_path: Path) -> None:
    meter, said = ProgressMeter(tmp_path), []
    others: list[StallTime | None] = [None, StallTime(idle=5.0)]
    watch = HangWatch(meter, 0.2, others=lambda: others, declare=said.append)
    time.sleep(0.3)
    watch.look()
    assert not said, "one report is unreadable"
    others[0] = StallTime(idle=0.1)
    watch.look()
    assert not said, "one node moved a moment ago"
    others[0] = StallTime(idle=0.3)
    watch.look()
    assert said


def a_report(rank: int, phase: Phase, beat: float = 0.0, moved: int | None = None) -> NodeReport:
    return NodeReport(
        rank=rank, phase=phase, address="10.0.0.9", started_at=0, heartbeat_at=beat, moved=moved
    )


class Beating:
    """Another node, which writes its report again and again."""

    def __init__(self, store: Store, report: NodeReport, *, moves: bool) -> None:
        self.store, self.report, self.moves = store, report, moves
        self.ends = threading.Event()
        self.joins = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        random_ = random.Random(self.report.rank)
        while True:
            phase = Phase.JOINING if self.joins.is_set() else self.report.phase
            # Its clock jumps as it likes.
            self.report = replace(self.report, phase=phase, heartbeat_at=random_.uniform(-1e9, 1e9))
            if self.moves:
                self.report = replace(self.report, moved=(self.report.moved or 0) + 1)
            self.store.write(f"nodes/{self.report.rank}.json", self.report.to_json())
            if self.ends.wait(0.05):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ends.set()
        self._thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "run"))


def test_a_node_that_fetches_and_gets_further_is_waited_for_beyond_the_timeout(store: Store) -> None:
    heartbeat = Heartbeat(store, a_report(0, Phase.JOINING), StopSwitch())
    with Beating(store, a_report(1, Phase.FETCHING, moved=1), moves=True) as other:
        threading.Timer(2.5, other.joins.set).start()
        reports = meet(store, heartbeat, nodes=2, timeout=1.0)
    assert [report.rank for report in reports] == [0, 1]


def test_a_node_that_fetches_and_stands_still_is_named_after_the_timeout(store: Store) -> None:
    heartbeat = Heartbeat(store, a_report(0, Phase.JOINING), StopSwitch())
    with (
        Beating(store, a_report(1, Phase.FETCHING, moved=1), moves=False),
        Beating(store, a_report(2, Phase.FETCHING, moved=1), moves=True),
        pytest.raises(TopologyTimeout, match=r"of 3 .*fetching.*; node 1 made no progress for \d+ s"),
    ):
        meet(store, heartbeat, nodes=3, timeout=1.0)


def test_the_wait_for_others_is_no_matter_of_this_nodes_clock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = random.Random(7)
    monkeypatch.setattr(gathering.time, "time", lambda: random_.uniform(-1e9, 1e9))
    heartbeat = Heartbeat(store, a_report(0, Phase.JOINING), StopSwitch())
    began = time.monotonic()
    with pytest.raises(TopologyTimeout, match="node 1 of 2"):
        meet(store, heartbeat, nodes=2, timeout=0.5)
    assert time.monotonic() - began >= 0.4


@pytest.mark.parametrize("off", [-130.0, 0.0, 130.0])
def test_a_node_that_failed_stays_for_those_at_work_whatever_their_clocks_say(
    store: Store, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    monkeypatch.setattr(gathering, "LOST_AFTER", 0.4)
    store.write("nodes/1.json", a_report(1, Phase.SAVING, beat=time.time() + off).to_json())
    began = time.monotonic()
    await_others_end(store, 0, 2, 60.0, threading.Event())
    assert 0.4 <= time.monotonic() - began < 50, (
        "a silent one is left after a while, as this node measured it"
    )
    # Longer than a beat takes on a busy machine.
    monkeypatch.setattr(gathering, "LOST_AFTER", 3.0)
    with Beating(store, a_report(1, Phase.SAVING), moves=False):
        began = time.monotonic()
        await_others_end(store, 0, 2, 4.0, threading.Event())
        assert time.monotonic() - began >= 4.0, "one that beats is at work"


@pytest.fixture
def silent_server() -> Iterator[int]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_node_that_is_stuck_fetching_does_not_hold_the_gang_past_its_limit(
    tmp_path: Path, silent_server: int
) -> None:
    stuck = (Input(source=f"http://127.0.0.1:{silent_server}/data.bin", target="data/"),)
    limits = Limits(join_timeout=4.0, stop_grace=1.0)
    with Gang(tmp_path, "print('trains')", nodes=2, limits=limits) as gang:
        gang.start(0)
        gang.config = replace(gang.config, inputs=stuck)
        gang.start(1)
        assert gang.agents[0].wait() == 69
        message = gang.agents[0].report.message or ""
        assert "node 1" in message
        assert "fetching" in message
        assert gang.agents[1].wait() == 143


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_that_is_stuck_fetching_and_hears_of_no_other_ends_by_itself(
    tmp_path: Path, silent_server: int, nodes: int
) -> None:
    stuck = (Input(source=f"http://127.0.0.1:{silent_server}/data.bin", target="data/"),)
    limits = Limits(join_timeout=4.0 / nodes, stop_grace=1.0)
    with Gang(tmp_path, "print('trains')", nodes=nodes, limits=limits) as gang:
        gang.config = replace(gang.config, inputs=stuck)
        gang.start(0)
        assert gang.agents[0].wait() == 69
        message = gang.agents[0].report.message or ""
        assert "data or checkpoint made no progress for" in message
        assert "limits.join_timeout" in message


@pytest.mark.parametrize("phase, hangs", [(Phase.TRAINING, True), (Phase.SAVING, False), (Phase.DONE, False)])
def test_only_a_training_hangs_and_no_node_that_saves_what_is_left(
    store: Store, tmp_path: Path, phase: Phase, hangs: bool
) -> None:
    found: list[Stop] = []
    config = AgentConfig(
        run_name="r",
        nodes=1,
        run_dir=str(tmp_path),
        program=Program(script="a"),
        limits=Limits(hang_timeout=0.05),
    )
    heartbeat = Heartbeat(store, a_report(0, phase), StopSwitch())
    meter = ProgressMeter(tmp_path)
    watches = Watches(config, heartbeat, meter, end_gang=found.append)
    watches.start((a_report(0, phase),), 0, os.getpid(), tmp_path)
    try:
        time.sleep(0.2)
        for look in heartbeat.watches:
            look()
    finally:
        watches.close()
    assert [stop.cause for stop in found] == ([Cause.HANG] if hangs else [])
