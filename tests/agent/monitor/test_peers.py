"""Nodes that vanish, networks that break, and outages that are neither."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.silence import LOST_AFTER, SILENT_AFTER
from airflow_provider_ocidist.agent.monitor import peers
from airflow_provider_ocidist.agent.monitor.peers import PeerWatch, host_answers
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Gang, until


class Gangway:
    """Node 0 of three, whose clock, store and network the test moves."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(str(folder))
        now = time.time()
        self.reports = [
            NodeReport(
                rank=rank, phase=Phase.TRAINING, address=f"10.0.0.{rank}", started_at=now, heartbeat_at=0
            )
            for rank in range(3)
        ]
        self.heartbeat = Heartbeat(self.store, self.reports[0], StopSwitch())
        self.now = self.heartbeat.written_at
        self.answering = True
        self.watch = PeerWatch(
            self.heartbeat,
            self.reports,
            alone_after=60.0,
            declare=lambda _: None,
            answers=lambda _: self.answering,
        )

    def beat(self, rank: int, **changes) -> None:
        self.reports[rank] = replace(self.reports[rank], heartbeat_at=self.now, **changes)
        self.store.write(f"nodes/{rank}.json", self.reports[rank].to_json())

    def looks(self, seconds: float, *, beating: tuple[int, ...] = (), writes: bool = True) -> list[str]:
        """Let time pass, and return what the watch said."""
        said = []
        for _ in range(int(seconds)):
            self.now += 1.0
            if writes:
                self.heartbeat.written_at = self.now
            for rank in beating:
                self.beat(rank)
            said.append(self.watch.look(self.now))
        return [message for message in said if message]


@pytest.fixture
def gang(tmp_path: Path) -> Gangway:
    gang = Gangway(tmp_path)
    gang.beat(1)
    gang.beat(2)
    return gang


def test_nodes_that_report_are_left_alone(gang: Gangway) -> None:
    assert gang.looks(100, beating=(1,)) == []


def test_a_node_without_a_sign_of_life_is_lost(gang: Gangway) -> None:
    gang.answering = False
    assert gang.looks(SILENT_AFTER) == []
    assert gang.looks(3)[0].startswith("node 1 has sent no heartbeat for 16 s")


def test_a_node_whose_machine_answers_is_given_more_time(gang: Gangway) -> None:
    assert gang.looks(LOST_AFTER) == []
    assert "node 1 has sent no heartbeat" in gang.looks(3)[0]


def test_a_node_that_is_done_is_followed_by_the_next(gang: Gangway) -> None:
    gang.beat(1, phase=Phase.DONE)
    assert "node 2 has sent no heartbeat" in gang.looks(LOST_AFTER + 5)[0]
    gang.beat(2, phase=Phase.DONE)
    assert gang.looks(100) == []


def test_a_broken_network_is_noticed_though_reports_are_written(gang: Gangway) -> None:
    assert gang.looks(5, beating=(1,)) == []
    gang.answering = False
    assert gang.looks(SILENT_AFTER, beating=(1,)) == []
    assert gang.looks(3, beating=(1,))[0].startswith("node 1 at 10.0.0.1 has not answered for 16 s")


def test_a_network_that_never_answered_probes_says_nothing(gang: Gangway) -> None:
    gang.answering = False
    assert gang.looks(100, beating=(1,)) == []


def test_an_outage_of_the_store_ends_nothing(gang: Gangway) -> None:
    assert gang.looks(600, writes=False) == []
    assert gang.looks(LOST_AFTER) == [], "silence is counted anew"


@pytest.mark.parametrize("answering", [True, False])
def test_a_look_that_waits_for_the_store_counts_as_no_silence_of_the_other_node(
    gang: Gangway, monkeypatch: pytest.MonkeyPatch, answering: bool
) -> None:
    monkeypatch.setattr(peers, "OWN_TROUBLE", 0.2)
    assert gang.looks(5, beating=(1,)) == []
    # The store's own retries, in which nobody could write; the other node writes again some seconds later than this.
    monkeypatch.setattr(gang.heartbeat, "store", Waits(gang, gang.heartbeat.store, 90.0))
    gang.answering = answering
    assert gang.looks(1) == []
    monkeypatch.undo()
    assert gang.looks(SILENT_AFTER) == [], "silence is counted anew"
    assert gang.looks(LOST_AFTER)[0].startswith("node 1 has sent no heartbeat for ")


class Waits:
    """A store that answers only after so many seconds of the test's clock."""

    def __init__(self, gang: Gangway, store: Store, seconds: float) -> None:
        self.gang, self.store, self.seconds = gang, store, seconds

    def read(self, name: str) -> bytes:
        self.gang.now += self.seconds
        time.sleep(0.3)
        return self.store.read(name)


def test_a_node_that_is_cut_off_from_store_and_nodes_ends_itself(gang: Gangway) -> None:
    assert gang.looks(2, beating=(1,)) == []
    gang.answering = False
    assert gang.looks(59, writes=False) == []
    said = gang.looks(2, writes=False)[0]
    assert said == (
        "this node is cut off: its run directory could not be written for 60 s, "
        "and no other node answers (asked 10.0.0.1, 10.0.0.2)"
    )


def test_where_a_firewall_drops_probes_an_outage_of_the_store_ends_nothing(gang: Gangway) -> None:
    gang.answering = False
    assert gang.looks(10, beating=(1,)) == []
    assert gang.looks(600, writes=False) == []


def test_a_refused_connection_is_an_answer() -> None:
    assert host_answers("127.0.0.1")
    assert not host_answers("255.255.255.255")


COLLECTIVES = """
import socket, os, time
rank = int(os.environ["RANK"])
if rank == 0:
    server = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    peer, _ = server.accept()
else:
    while True:
        try:
            peer = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
            break
        except OSError:
            time.sleep(0.1)
print("connected")
if not peer.recv(1):
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
"""


def test_the_others_name_a_node_whose_agent_was_killed(tmp_path: Path) -> None:
    with Gang(tmp_path, COLLECTIVES, nodes=2) as gang:
        gang.start()
        gang.agents[0].prints("connected")
        until(lambda: gang.agents[1].report.phase is Phase.TRAINING)
        killed_at = time.monotonic()
        gang.agents[1].signal(signal.SIGKILL)
        assert gang.agents[0].wait() == 1
        assert time.monotonic() - killed_at < 10
        report = gang.agents[0].report
    assert report.cause is Cause.NODE
    assert report.message
    assert report.message.startswith("the training ended because node 1 was lost: ")
