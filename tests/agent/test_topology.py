"""Ranks, addresses, devices, ports."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.agent.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.report import NodeReport, Phase
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.topology import (
    await_address,
    await_others_end,
    count_devices,
    master_port,
    meet,
    own_address,
    own_rank,
    topology_of,
)
from airflow_provider_ocidist.errors import AgentError, TopologyTimeout
from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.storage.stores import Store, open_store


def config(nodes: int = 4, **changes) -> AgentConfig:
    return AgentConfig(run_name="run", nodes=nodes, run_dir="/run", program=Program(script="x.py"), **changes)


def report(rank: int, address: str = "10.0.0.9", phase: Phase = Phase.JOINING) -> NodeReport:
    now = time.time()
    return NodeReport(rank=rank, phase=phase, address=address, started_at=now, heartbeat_at=now)


def write(store: Store, written: NodeReport) -> None:
    store.write(f"nodes/{written.rank}.json", written.to_json())


def test_our_own_rank_variable_wins_over_the_services() -> None:
    assert own_rank(config(), {"OCIDIST_NODE_RANK": "2", "NODE_RANK": "3"}) == 2
    assert own_rank(config(), {"NODE_RANK": "3"}) == 3
    assert own_rank(config(nodes=1), {}) == 0


@pytest.mark.parametrize("environ", [{}, {"NODE_RANK": "4"}, {"NODE_RANK": "-1"}, {"NODE_RANK": "one"}])
def test_a_rank_that_cannot_be_is_refused(environ) -> None:
    with pytest.raises(AgentError, match="0 to 3"):
        own_rank(config(), environ)


def test_the_service_says_where_a_node_is() -> None:
    assert own_address({"FQDN": "127.0.5.7"}) == "127.0.5.7"


@pytest.mark.parametrize("environ", [{}, {"FQDN": "localhost"}, {"FQDN": "no.such.name.invalid"}])
def test_a_name_that_others_cannot_use_is_replaced_by_the_outgoing_address(environ) -> None:
    assert own_address(environ) == own_address({})


@pytest.mark.parametrize(
    "text",
    ["", '[{"Rank": 0, "IPAdd', "{}", "[1]", '[{"Rank": 0, "IPAddress": "10.0.0.1"}]', '[{"Rank": 1}]'],
    ids=["empty", "half", "no list", "no node", "others only", "no address"],
)
def test_the_services_list_of_nodes_is_waited_for_until_it_names_this_one(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(text)
    looks: list[float] = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        nodes = [{"Rank": rank, "IPAddress": f"10.0.0.{rank + 1}", "FQDN": "x"} for rank in range(2)]
        file.write_text(json.dumps(nodes))

    address = await_address({"CLUSTER_NODES_METADATA_FILE": str(file), "FQDN": "127.0.9.9"}, 1, pause, 10)
    assert address == "10.0.0.2"
    assert len(looks) == 1


def test_a_node_that_the_service_never_lists_says_so(tmp_path: Path) -> None:
    environ = {"CLUSTER_NODES_METADATA_FILE": str(tmp_path / "absent.json")}
    with pytest.raises(TopologyTimeout, match=r"absent\.json.* does not name node 1 after 0 s"):
        await_address(environ, 1, lambda _: None, 0.0)


def test_where_the_service_lists_no_nodes_a_node_knows_its_address_at_once() -> None:
    assert await_address({"FQDN": "127.0.5.7"}, 0, lambda _: pytest.fail("waited"), 0.0) == "127.0.5.7"


@pytest.mark.parametrize("visible, count", [("0,1,2", 3), ("", 0), ("-1", 0), ("GPU-a,GPU-b", 2), ("3", 1)])
def test_visible_devices_are_counted(visible, count) -> None:
    assert count_devices({"CUDA_VISIBLE_DEVICES": visible}) == count


def test_gangs_that_share_a_machine_get_ports_of_their_own() -> None:
    assert master_port("10.0.0.1", "run") == 29400
    assert master_port("127.0.1.1", "a") != master_port("127.0.1.1", "b")


def test_the_topology_names_the_master_and_the_processes() -> None:
    reports = [report(0, "10.0.0.1"), report(1, "10.0.0.2")]
    told = config(nodes=2, launcher=LauncherOptions(processes_per_node=8))
    topology = topology_of(told, reports, 1, {})
    assert (topology.master_address, topology.address, topology.world_size) == ("10.0.0.1", "10.0.0.2", 16)
    assert topology.rendezvous_id == "run"


def test_processes_default_to_the_devices(tmp_path: Path) -> None:
    reports = [report(0, "10.0.0.1")]
    assert topology_of(config(nodes=1), reports, 0, {"CUDA_VISIBLE_DEVICES": "0,1"}).processes_per_node == 2
    assert topology_of(config(nodes=1), reports, 0, {"CUDA_VISIBLE_DEVICES": ""}).processes_per_node == 1


def test_a_node_that_still_fetches_is_waited_for_beyond_the_timeout(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    heartbeat = Heartbeat(store, report(0), StopSwitch())
    fetching = report(1, phase=Phase.FETCHING)
    write(store, fetching)
    looks: list[int] = []

    class Pausing(StopSwitch):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            looks.append(1)
            write(store, report(1, phase=Phase.FETCHING if len(looks) < 6 else Phase.JOINING))

    heartbeat.switch = Pausing()
    assert [found.rank for found in meet(store, heartbeat, nodes=2, timeout=1.0)] == [0, 1]
    assert len(looks) >= 6


def test_a_node_that_fetched_and_fell_silent_is_not_waited_for(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write(store, report(1, phase=Phase.FETCHING))
    heartbeat = Heartbeat(store, report(0), StopSwitch())
    with pytest.raises(TopologyTimeout, match=r"node 1 of 2 \(still fetching: 1\) not here after 1 s"):
        meet(store, heartbeat, nodes=2, timeout=1.0)


@pytest.mark.parametrize(
    "phase, silent_for, waits",
    [
        (Phase.SAVING, 0, True),
        (Phase.TRAINING, 0, True),
        (Phase.DONE, 0, False),
        (Phase.SAVING, 60, False),
        (None, 0, False),
    ],
    ids=["saving", "training", "done", "silent", "never heard of"],
)
def test_a_node_that_failed_stays_while_others_are_at_work(
    tmp_path: Path, phase: Phase | None, silent_for: float, waits: bool
) -> None:
    store = open_store(str(tmp_path))
    if phase is not None:
        write(store, replace(report(1, phase=phase), heartbeat_at=time.time() - silent_for))
    began = time.monotonic()
    await_others_end(store, 0, 2, 0.3, threading.Event())
    assert (time.monotonic() - began >= 0.3) == waits


def test_a_node_that_failed_stays_no_longer_once_the_run_is_being_ended(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write(store, report(1, phase=Phase.SAVING))
    signalled = threading.Event()
    signalled.set()
    began = time.monotonic()
    await_others_end(store, 0, 2, 60, signalled)
    assert time.monotonic() - began < 5
