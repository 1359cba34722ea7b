"""torchrun's command line."""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import replace

import pytest

from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.base import Placement, ProcessFailure
from airflow_provider_ocidist.launchers.torchrun import LAUNCHER

TOPOLOGY = Placement(
    rank=1,
    nodes=4,
    processes_per_node=2,
    master_address="10.0.0.1",
    address="10.0.0.2",
    rendezvous_id="run-a1",
    join_timeout=600.0,
    cores=8,
)
PROGRAM = Program(script="train.py", args=("--lr", "0.1"))
REPORT = """step 3
Traceback (most recent call last):
ValueError: boom
E1121 10:49:29.026000 10102 site-packages/torch/distributed/elastic/multiprocessing/api.py:1002] \
failed (exitcode: 3) local_rank: 0 (pid: 10114) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_10:49:29
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 10113)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:49:29
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 10114)
"""


def command(*args: str, program: Program = PROGRAM) -> list[str]:
    return LAUNCHER.command(program, LauncherOptions(args=args), TOPOLOGY)


def flags(*args: str) -> set[str]:
    return {part.partition("=")[0].replace("_", "-") for part in command(*args) if part.startswith("--")}


def test_the_command_is_the_interpreters_own_torchrun() -> None:
    assert command() == [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=4",
        "--nproc-per-node=2",
        "--max-restarts=0",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=10.0.0.1:29400",
        "--rdzv-conf=is_host=false,join_timeout=600,read_timeout=600",
        "--rdzv-id=run-a1",
        "--local-addr=10.0.0.2",
        "train.py",
        "--lr",
        "0.1",
    ]


@pytest.mark.parametrize(
    "args",
    [("--nproc-per-node=3",), ("--nproc_per_node=3",), ("--nproc-per-node", "3"), ("--nproc_per_node", "3")],
)
def test_the_users_flags_win_in_every_spelling(args) -> None:
    built = command(*args)
    assert "--nproc-per-node=2" not in built
    assert built[-len(args) - 3 :] == [*args, "train.py", "--lr", "0.1"]


@pytest.mark.parametrize(
    "args",
    [
        *[("--redirects=3",), ("-r", "3"), ("-r3",), ("-r0:1",), ("--redirect", "3"), ("--red=3",)],
        *[("--tee", "3"), ("-t3",), ("--te", "3")],
    ],
)
def test_where_the_processes_print_is_known_in_every_spelling_that_torchrun_takes(args) -> None:
    options = LauncherOptions(args=args)
    assert LAUNCHER.log_folder(options, TOPOLOGY) == f"{TOPOLOGY.folder}/logs"
    assert LAUNCHER.hides_output(options) == args[0].lstrip("-").startswith("r")
    assert f"--log-dir={TOPOLOGY.folder}/logs" in command(*args)


@pytest.mark.parametrize("args", [("--stand",), ("--local-a", "10.0.0.2"), ("--rdzv-b=etcd",)], ids=" ".join)
def test_an_abbreviation_places_the_main_node_as_the_full_name_does(args) -> None:
    placement = replace(TOPOLOGY, nodes=2, addresses=("10.0.0.2", "10.0.0.1"))
    assert LAUNCHER.main_node(LauncherOptions(), placement) == 1
    assert LAUNCHER.main_node(LauncherOptions(args=args), placement) == 0


def test_where_an_abbreviated_flag_keeps_the_logs_is_known() -> None:
    options = LauncherOptions(args=("--redir", "3", "--log-d", "/mine"))
    assert LAUNCHER.log_folder(options, TOPOLOGY) == "/mine"
    assert command(*options.args).count("--log-dir=/mine") == 0


def test_an_abbreviation_as_ads_writes_it_wins_too() -> None:
    assert "--nnodes" not in flags("--nnode=2")


def test_flags_of_the_script_and_similar_names_take_nothing_away() -> None:
    program = Program(script="train.py", args=("--nnodes=9", "--nproc-per-node-scale", "2"))
    assert "--nnodes=4" in command(program=program)
    assert "--nproc-per-node=2" in command("--nproc-per-node-scale=2", program=program)


def test_a_node_that_stands_alone_meets_nobody() -> None:
    assert not [flag for flag in flags("--standalone") if flag.startswith(("--rdzv", "--nnodes"))]


def test_a_range_of_nodes_is_the_users_word() -> None:
    built = command("--nnodes=1:4", "--max-restarts=3")
    assert "--nnodes=4" not in built
    assert "--max-restarts=0" not in built
    assert {"--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29400"} < set(built)


def test_a_meeting_point_of_ones_own_is_not_said_to_be_on_the_first_node() -> None:
    built = flags("--rdzv_endpoint=10.9.9.9:1234")
    assert "--rdzv-conf" not in built
    assert {"--rdzv-backend", "--rdzv-id", "--local-addr"} < built


@pytest.mark.parametrize(
    "args", [("--master_addr=10.0.0.7",), ("--master-port", "30000"), ("--rdzv-backend=static",)]
)
def test_one_flag_of_the_static_rendezvous_asks_for_all_of_it(args) -> None:
    built = flags(*args)
    assert {"--rdzv-backend", "--master-addr", "--master-port", "--node-rank", "--rdzv-conf"} < built
    assert "--rdzv-endpoint" not in built
    assert "--rdzv-conf=timeout=600" in command(*args)
    assert "--node-rank=1" in command(*args)
    assert len([part for part in command(*args) if part.startswith("--rdzv-backend")]) == 1


def test_a_module_is_run_as_one() -> None:
    assert command(program=Program(script="pkg.train", module=True))[-2:] == ["-m", "pkg.train"]


def test_loopback_nodes_share_the_cores_of_their_machine() -> None:
    assert LAUNCHER.defaults(TOPOLOGY) == {"OMP_NUM_THREADS": "4", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    local = Placement(
        rank=0,
        nodes=2,
        processes_per_node=1,
        master_address="127.0.1.1",
        address=str(ipaddress.ip_address("127.0.1.1")),
        rendezvous_id="run",
        join_timeout=60.0,
        interface="lo",
        cores=2,
    )
    assert LAUNCHER.defaults(local) == {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "=lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def test_the_first_failure_is_read_from_its_report() -> None:
    assert LAUNCHER.first_failure(REPORT) == ProcessFailure(rank=1, exit_code=3)
    assert LAUNCHER.first_failure("no report") is None


def test_its_report_is_not_taken_for_the_programs_output() -> None:
    assert LAUNCHER.user_output(REPORT).splitlines()[-1] == "ValueError: boom"


@pytest.mark.parametrize(
    "addresses, main",
    [
        (("10.0.0.1", "10.0.0.2"), 0),
        (("10.0.0.2", "10.0.0.1"), 1),
        (("10.0.0.9", "10.0.0.10"), 1),  # as text, "10" comes before "9"
    ],
)
def test_global_rank_0_is_where_c10d_puts_it(addresses: tuple[str, ...], main: int) -> None:
    placement = replace(TOPOLOGY, nodes=2, addresses=addresses)
    assert LAUNCHER.main_node(LauncherOptions(), placement) == main


def test_the_users_own_rendezvous_keeps_the_order_of_the_nodes() -> None:
    placement = replace(TOPOLOGY, nodes=2, addresses=("10.0.0.2", "10.0.0.1"))
    assert LAUNCHER.main_node(LauncherOptions(args=("--rdzv_backend=static",)), placement) == 0
    assert LAUNCHER.main_node(LauncherOptions(args=("--rdzv_backend=c10d",)), placement) == 1
