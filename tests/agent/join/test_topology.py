"""Ranks, addresses, devices, ports."""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import json
import logging
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from airflow_provider_ocidist.agent.diagnose.outcome import STOPPED_CODE
from airflow_provider_ocidist.agent.join import gathering, topology
from airflow_provider_ocidist.agent.join.gathering import await_others_end, meet
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.node_identity import NodeIdentity, identity_of
from airflow_provider_ocidist.agent.join.topology import (
    await_address,
    count_devices,
    interfaces,
    master_port,
    own_address,
    own_interface,
    own_rank,
    placement_of,
    require_own_addresses,
    usable_cores,
)
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError, TopologyTimeout
from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from airflow_provider_ocidist.launchers.base import Placement
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.causes import exit_code_of
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import REPOSITORY, Gang


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


def test_the_cores_are_those_that_the_process_may_use_on_any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "airflow_provider_ocidist.agent.join.topology"
    program = f"import os; from {module} import usable_cores; {{}}print(usable_cores())"
    allowed = re.search(r"Cpus_allowed_list:\s*(\d+)", Path("/proc/self/status").read_text())[1]
    for without in ("", "vars(os).pop('sched_getaffinity', None); "):
        command = ["taskset", "-c", allowed, sys.executable, "-c", program.format(without)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert done.stdout == "1\n"
    here = usable_cores()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_cores() == here


@pytest.mark.parametrize("environ", [{}, {"NODE_RANK": "4"}, {"NODE_RANK": "-1"}, {"NODE_RANK": "one"}])
def test_a_rank_that_cannot_be_is_refused(environ) -> None:
    with pytest.raises(AgentError, match="0 to 3"):
        own_rank(config(), environ)


PYTORCHJOB = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "gpt-master-0", "MASTER_PORT": "23456"}
TRAINJOB = {
    "PET_NODE_RANK": "1",
    "PET_NNODES": "4",
    "PET_MASTER_ADDR": "gpt-node-0-0.gpt",
    "PET_MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    "environ, found",
    [
        (PYTORCHJOB, NodeIdentity(rank=2, master="gpt-master-0", master_port=23456)),
        (TRAINJOB, NodeIdentity(rank=1, master="gpt-node-0-0.gpt", master_port=29500)),
        (
            {"OCIDIST_NODE_RANK": "3", "PET_RDZV_ENDPOINT": "gpt-worker-0:23456", "PET_NNODES": "1:4"},
            NodeIdentity(rank=3, master="gpt-worker-0", master_port=23456),
        ),
        (PYTORCHJOB | {"RANK": "0", "MASTER_ADDR": "localhost"}, NodeIdentity(rank=0)),
        ({"JOB_COMPLETION_INDEX": "3", "POD_IP": "10.1.0.9"}, NodeIdentity(rank=3, address="10.1.0.9")),
        ({"NODE_RANK": "1", "INITIAL_CLUSTER_SIZE": "4"}, NodeIdentity(rank=1)),
        (
            {"OCIDIST_NODE_RANK": "1", "OCIDIST_ADDRESSES": "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4"},
            NodeIdentity(rank=1, address="10.0.0.2", master="10.0.0.1"),
        ),
    ],
    ids=["PyTorchJob", "TrainJob", "elastic", "PyTorchJob 1.3", "Indexed Job", "OCI", "static"],
)
def test_each_platform_gives_a_node_its_place(environ, found) -> None:
    assert identity_of(environ, 4) == found


def test_the_rank_of_a_process_is_not_taken_for_that_of_a_node() -> None:
    with pytest.raises(AgentError, match="OCIDIST_NODE_RANK is not set"):
        identity_of(PYTORCHJOB | {"LOCAL_RANK": "0"}, 4)


@pytest.mark.parametrize(
    "environ", [{"PET_NNODES": "3"}, {"INITIAL_CLUSTER_SIZE": "3"}, {"OCIDIST_ADDRESSES": "a,b,c"}]
)
def test_a_platform_with_another_number_of_nodes_is_refused(environ) -> None:
    with pytest.raises(AgentError, match=r"3 nodes.*the job has 4: make them equal"):
        identity_of(environ | {"OCIDIST_NODE_RANK": "0"}, 4)


def test_the_platforms_main_address_is_where_processes_meet() -> None:
    reports = [report(rank, f"10.0.0.{rank}") for rank in range(4)]
    placement = placement_of(config(), reports, identity_of(PYTORCHJOB, 4), {})
    assert (placement.master_address, placement.master_port) == ("gpt-master-0", 23456)


def test_the_interface_of_an_address_is_found() -> None:
    assert ("lo", "127.0.0.1") in interfaces()
    assert own_interface("127.0.99.2") == "lo"
    assert own_interface("192.0.2.1") is None
    assert all(own_interface(address) == name for name, address in interfaces() if name != "lo")


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

    address = await_address(
        NodeIdentity(rank=1), {"CLUSTER_NODES_METADATA_FILE": str(file), "FQDN": "127.0.9.9"}, pause, 10
    )
    assert address == "10.0.0.2"
    assert len(looks) == 1


def test_a_node_that_the_service_never_lists_says_so(tmp_path: Path) -> None:
    environ = {"CLUSTER_NODES_METADATA_FILE": str(tmp_path / "absent.json")}
    with pytest.raises(TopologyTimeout, match=r"absent\.json.* does not name node 1 after 0 s"):
        await_address(NodeIdentity(rank=1), environ, lambda _: None, 0.0)


def test_where_the_service_lists_no_nodes_a_node_knows_its_address_at_once() -> None:
    found = await_address(NodeIdentity(rank=0), {"FQDN": "127.0.5.7"}, lambda _: pytest.fail("waited"), 0.0)
    assert found == "127.0.5.7"


@pytest.mark.parametrize(
    "visible, count",
    [
        *(("0,1,2", 3), ("", 0), ("-1", 0), ("GPU-a,GPU-b", 2), ("3", 1)),
        *(("0,-1", 1), ("-1,0", 0), ("0,-1,1", 1), ("NoDevFiles", 0)),
    ],
)
def test_visible_devices_are_counted(visible, count) -> None:
    assert count_devices({"CUDA_VISIBLE_DEVICES": visible}) == count


def test_gangs_that_share_a_machine_get_ports_of_their_own() -> None:
    assert master_port("10.0.0.1", "run") == 29400
    assert master_port("10.0.0.1", "run", 23456) == 23456
    assert master_port("127.0.1.1", "a") != master_port("127.0.1.1", "b")
    assert master_port("127.0.1.1", "a", 23456) != master_port("127.0.2.1", "b", 23456)


def test_the_topology_names_the_master_and_the_processes() -> None:
    reports = [report(0, "10.0.0.1"), report(1, "10.0.0.2")]
    told = config(nodes=2, launcher=LauncherOptions(processes_per_node=8))
    placement = placement_of(told, reports, NodeIdentity(rank=1), {})
    assert (placement.master_address, placement.address, placement.world_size) == ("10.0.0.1", "10.0.0.2", 16)
    assert placement.rendezvous_id == "run"


def test_processes_default_to_the_devices(tmp_path: Path) -> None:
    reports = [report(0, "10.0.0.1")]
    assert (
        placement_of(
            config(nodes=1), reports, NodeIdentity(rank=0), {"CUDA_VISIBLE_DEVICES": "0,1"}
        ).processes_per_node
        == 2
    )
    assert (
        placement_of(
            config(nodes=1), reports, NodeIdentity(rank=0), {"CUDA_VISIBLE_DEVICES": ""}
        ).processes_per_node
        == 1
    )


@pytest.mark.parametrize("seed", range(20))
def test_nodes_that_announce_one_address_are_named_and_no_others(seed: int) -> None:
    random = Random(seed)
    nodes = random.randint(2, 12)
    plain = [f"fd00::{random.randint(1, 2 * nodes):x}" for _ in range(nodes)]
    shared = {address for address in plain if plain.count(address) > 1}
    # As text two spellings of an address differ.
    spelt = [ip_address(each).exploded if random.random() < 0.3 else each for each in plain]
    reports = [report(rank, address) for rank, address in enumerate(spelt)]
    if not shared:
        require_own_addresses(reports)
        return
    with pytest.raises(AgentError) as caught:
        require_own_addresses(reports)
    assert caught.value.cause is Cause.CONFIG
    for address in shared:
        ranks = ", ".join(str(rank) for rank in range(nodes) if plain[rank] == address)
        assert f"nodes {ranks} all announce {address}" in str(caught.value)
    named = set(re.findall(r"nodes ([\d, ]+) all", str(caught.value)))
    assert len(named) == len(shared)


def test_a_gang_with_two_nodes_at_one_address_ends_before_it_trains(tmp_path: Path) -> None:
    script = "raise SystemExit('trained')"
    with Gang(tmp_path, script, nodes=3, kind="python") as gang:
        gang.start(0)
        gang.start(1, 2, FQDN="127.0.99.7")
        codes = [agent.wait() for agent in gang.agents]
        reports = [agent.report for agent in gang.agents]
        printed = [agent.stdout.read_text() + agent.stderr.read_text() for agent in gang.agents]
    assert all("nodes 1, 2 all announce 127.0.99.7" in str(found.message) for found in reports)
    assert not any("trained" in text for text in printed)
    # The node that sees it first stops the others: those that have not seen it by then end as stopped.
    endings = {(code, found.phase, found.cause) for code, found in zip(codes, reports)}
    found_out = (exit_code_of(Cause.CONFIG), Phase.DONE, Cause.CONFIG)
    assert found_out in endings
    assert endings <= {found_out, (STOPPED_CODE, Phase.DONE, None)}


def test_a_node_that_still_fetches_is_waited_for_beyond_the_timeout_and_named_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gathering, "SAY_INTERVAL", 0.2)
    caplog.set_level(logging.INFO, logger=gathering.logger.name)
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
    assert "waiting for the others: node 1 of 2 (still fetching: 1) not here yet" in caplog.messages


def test_nobody_counts_as_silent_while_this_node_cannot_look(tmp_path: Path) -> None:
    began = time.monotonic()
    there = open_store(str(tmp_path))

    class Away(LocalStore):
        """A store that nobody reaches for longer than a node may be silent."""

        def list(self, prefix: str = "") -> list[Entry]:
            if time.monotonic() < began + 1.6:
                raise StorageError("unreachable", retryable=True)
            write(there, report(1))
            return super().list(prefix)

    heartbeat = Heartbeat(Away(str(tmp_path)), report(0), StopSwitch())
    assert [found.rank for found in meet(heartbeat.store, heartbeat, nodes=2, timeout=1.0)] == [0, 1]


def test_a_node_that_comes_late_itself_looks_twice_before_it_calls_another_silent(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))

    class Pausing(StopSwitch):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            write(store, report(1))

    heartbeat = Heartbeat(store, report(0), Pausing())
    heartbeat.began_at -= 1000
    assert [found.rank for found in meet(store, heartbeat, nodes=2, timeout=60.0)] == [0, 1]


def test_a_node_that_fetched_and_fell_silent_is_not_waited_for(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write(store, report(1, phase=Phase.FETCHING))
    heartbeat = Heartbeat(store, report(0), StopSwitch())
    with pytest.raises(TopologyTimeout, match=r"node 1 of 2 \(still fetching: 1\) not here after 1 s"):
        meet(store, heartbeat, nodes=2, timeout=1.0)


@pytest.mark.parametrize(
    "phase, waits",
    [
        (Phase.SAVING, True),
        (Phase.TRAINING, True),
        (Phase.DONE, False),
        (None, False),
    ],
    ids=["saving", "training", "done", "never heard of"],
)
def test_a_node_that_failed_stays_while_others_are_at_work(
    tmp_path: Path, phase: Phase | None, waits: bool
) -> None:
    store = open_store(str(tmp_path))
    if phase is not None:
        write(store, report(1, phase=phase))
    limit, began = (1.0 if waits else 3600.0), time.monotonic()
    # Where it need not wait, it is back at once.
    await_others_end(store, 0, 2, limit, threading.Event())
    if waits:
        assert time.monotonic() - began >= limit


def test_a_node_that_failed_stays_no_longer_once_the_run_is_being_ended(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    write(store, report(1, phase=Phase.SAVING))
    signalled = threading.Event()
    signalled.set()
    waits = threading.Thread(target=await_others_end, args=(store, 0, 2, 3600.0, signalled), daemon=True)
    waits.start()
    waits.join(60)
    assert not waits.is_alive()


NETWORK = """
link set lo up
link add bare type veth peer name peer0
link add eth7 type veth peer name peer1
addr add 10.231.9.5/24 dev eth7
addr add 10.231.9.6/24 dev eth7 label eth7:1
link set bare up
link set eth7 up
link set peer1 up
"""
ASKS = """
import sys
sys.path.insert(0, sys.argv[1])
from airflow_provider_ocidist.agent.join.topology import interfaces, own_address, own_interface
print(interfaces(), own_address({}), own_interface("10.231.9.6"))
"""


def test_interfaces_without_an_address_and_aliases_do_no_harm_on_a_network_without_a_way_out() -> None:
    if shutil.which("ip") is None:
        pytest.skip("no network namespace can be made here: there is no `ip`")
    name = f"ocidist-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
    try:
        for line in NETWORK.strip().splitlines():
            subprocess.run(["ip", "-n", name, *line.split()], check=True)
        command = ["ip", "netns", "exec", name, sys.executable, "-c", ASKS, str(REPOSITORY)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)
    expected = [("lo", "127.0.0.1"), ("eth7", "10.231.9.5"), ("eth7", "10.231.9.6")]
    assert told == f"{expected} 10.231.9.5 eth7\n"


# Each field of a placement, and each source of an address


def test_members_are_renumbered_and_the_first_of_them_is_where_they_meet() -> None:
    members = [
        replace(report(rank, f"10.0.0.{rank}"), public_key=key) for rank, key in ((1, "k1"), (3, None))
    ]
    place = NodeIdentity(rank=3, master="platform-0", master_port=1234)
    limits = Limits(join_timeout=77.0)
    found = placement_of(config(limits=limits), members, place, {"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert found == Placement(
        rank=1,
        nodes=2,
        processes_per_node=3,
        gpus=3,
        # The platform names the node of rank 0, which takes no part.
        master_address="10.0.0.1",
        master_port=1234,
        address="10.0.0.3",
        addresses=("10.0.0.1", "10.0.0.3"),
        public_keys=("k1", ""),
        rendezvous_id="run",
        join_timeout=77.0,
        interface=None,
        cores=usable_cores(),
    )


def test_each_launch_meets_under_a_name_and_on_one_machine_at_a_port_of_its_own() -> None:
    restart = Restart(cause=Cause.NODE, message="gone", rank=1)
    found = []
    for count in range(3):
        reports = [replace(report(rank, "127.0.7.1"), restarts=(restart,) * count) for rank in range(2)]
        found.append(placement_of(config(nodes=2), reports, NodeIdentity(rank=1), {}))
    assert [each.rendezvous_id for each in found] == ["run", "run-restart-1", "run-restart-2"]
    assert [each.master_port for each in found] == [
        master_port("127.0.7.1", name) for name in ("run", "run-restart-1", "run-restart-2")
    ]
    assert len({each.master_port for each in found}) == 3
    assert {each.interface for each in found} == {"lo"}
    assert all(20000 <= master_port("127.0.0.1", f"gang-{number}") < 29000 for number in range(1000))


def test_without_a_platforms_address_the_first_node_is_the_master_and_without_a_gpu_there_is_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    reports = [report(rank, f"10.0.0.{rank}") for rank in range(2)]

    def here() -> Placement:
        monkeypatch.setattr(topology, "Path", lambda name: dev if name == "/dev" else Path(name))
        return placement_of(config(nodes=2), reports, NodeIdentity(rank=1), {})

    for name in ("nvidiactl", "nvidia-uvm", "nvidia0x", "tty0"):
        (dev / name).touch()
    assert (here().master_address, here().master_port) == ("10.0.0.0", 29400)
    assert (here().gpus, here().processes_per_node) == (0, 1)
    for number in (0, 1, 12):
        (dev / f"nvidia{number}").touch()
    assert (here().gpus, here().processes_per_node) == (3, 3)


@pytest.mark.parametrize(
    "text, found",
    [
        ('[{"Rank": "1", "IPAddress": "10.0.0.2"}]', "10.0.0.2"),
        ('[{"Rank": 1, "IPAddress": "fd00::0:2"}]', "fd00::2"),
        ('[{"Rank": 1, "IPAddress": "10.0.0.2"}, {"Rank": 1, "IPAddress": "10.0.0.3"}]', "10.0.0.2"),
        ('[{"Rank": 1, "IPAddress": "10.0.0"}]', None),
        ('[{"Rank": 1, "IPAddress": null}]', None),
        ('[{"Rank": null, "IPAddress": "10.0.0.2"}]', None),
        ('[{"Rank": 2, "IPAddress": "10.0.0.2"}]', None),
        ("7", None),
    ],
)
def test_an_address_is_taken_from_the_services_list_only_where_it_is_one(
    tmp_path: Path, text: str, found: str | None
) -> None:
    (tmp_path / "nodes.json").write_text(text)
    assert topology.listed_address(tmp_path / "nodes.json", 1) == found
    assert topology.listed_address(tmp_path / "absent.json", 1) is None
    (tmp_path / "nodes.json").write_bytes(b"\xff")
    assert topology.listed_address(tmp_path / "nodes.json", 1) is None


def test_the_services_list_is_looked_at_until_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, pauses = 50.0, list[float]()

    def pause(seconds: float) -> None:
        nonlocal now
        now += 10.0
        pauses.append(seconds)

    monkeypatch.setattr(topology, "time", SimpleNamespace(monotonic=lambda: now))
    environ = {"CLUSTER_NODES_METADATA_FILE": str(tmp_path / "absent.json")}
    with pytest.raises(TopologyTimeout, match=r"does not name node 1 after 30 s"):
        await_address(NodeIdentity(rank=1), environ, pause, 30.0)
    assert pauses == [topology.LISTED_EVERY] * 4, "also at the last moment"
    found = await_address(
        NodeIdentity(rank=1, address="10.0.0.9"), environ, lambda _: pytest.fail("waited"), 0
    )
    assert found == "10.0.0.9"


def test_a_nodes_own_name_counts_where_others_can_reach_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(name: str) -> str:
        asked.append(name)
        return "10.0.0.4"

    monkeypatch.setattr(socket, "gethostbyname", resolve)
    assert own_address({"FQDN": "node-4.example"}) == "10.0.0.4"
    assert asked == ["node-4.example"]


def test_where_the_kernel_names_no_interface_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert interfaces() == []
    assert own_interface("10.0.0.1") is None
    assert own_interface("::1") == "lo"


class Isolated:
    """A socket of a network without a way out."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self, _: object) -> None:
        raise OSError("no route")


@pytest.mark.parametrize(
    "there, found",
    [
        ([("lo", "127.0.0.1"), ("eth0", "10.2.0.1"), ("eth1", "10.3.0.1")], "10.2.0.1"),
        ([("lo", "127.0.0.1")], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_without_a_way_out_an_interface_of_its_own_is_a_nodes_address(
    monkeypatch: pytest.MonkeyPatch, there: list[tuple[str, str]], found: str
) -> None:
    monkeypatch.setattr(socket, "socket", Isolated)
    monkeypatch.setattr(topology, "interfaces", lambda: there)
    assert own_address({}) == found


class Routed(Isolated):
    """A socket of a network with a way out, which this node takes from another address than its first."""

    def connect(self, to: object) -> None:
        assert isinstance(to, tuple)
        # A name would be asked for at a server that need not be there.
        assert not ipaddress.ip_address(to[0]).is_loopback

    def getsockname(self) -> tuple[str, int]:
        return "10.3.0.1", 40000


def test_with_a_way_out_the_address_that_it_leads_from_is_a_nodes_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", Routed)
    monkeypatch.setattr(topology, "interfaces", lambda: [("eth0", "10.2.0.1"), ("eth1", "10.3.0.1")])
    assert own_address({}) == "10.3.0.1"


def test_an_alias_is_listed_as_the_interface_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: object, __: int, request: bytes) -> bytes:
        room, place = struct.unpack("iP", request)
        entries = b"".join(
            name.ljust(16, b"\0")
            + struct.pack("HH", socket.AF_INET, 0)
            + socket.inet_aton(address)
            + bytes(16)
            for name, address in ((b"lo", "127.0.0.1"), (b"eth0", "10.2.0.1"), (b"eth0:1", "10.2.0.9"))
        )
        assert len(entries) <= room
        ctypes.memmove(place, entries, len(entries))
        return struct.pack("iP", len(entries), place)

    monkeypatch.setattr(fcntl, "ioctl", answer)
    assert interfaces() == [("lo", "127.0.0.1"), ("eth0", "10.2.0.1"), ("eth0", "10.2.0.9")]
    assert own_interface("10.2.0.9") == "eth0"


def test_names_are_compared_as_names_and_all_that_share_one_are_listed() -> None:
    shared = ["Node-A", "node-a", "10.0.0.1", "node-b", "10.0.0.1", "10.0.0.1"]
    with pytest.raises(AgentError) as caught:
        require_own_addresses([report(rank, address) for rank, address in enumerate(shared)])
    assert str(caught.value).startswith(
        "nodes 0, 1 all announce node-a; nodes 2, 4, 5 all announce 10.0.0.1: each node needs an address of its own"
    )
    assert "(CLUSTER_NODES_METADATA_FILE)" in str(caught.value)
    require_own_addresses([])


def test_the_cores_of_a_kernel_that_does_not_say_are_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    status = tmp_path / "status"
    monkeypatch.setattr(topology, "Path", lambda _: status)
    for text, cores in (
        ("Name:\tx\nCpus_allowed:\tf0,00000003\nMems_allowed:\t1\n", 6),
        ("Cpus_allowed:\t1\n", 1),
        ("Name:\tx\n", 6),
    ):
        status.write_text(text)
        assert usable_cores() == cores
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
