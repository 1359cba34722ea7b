"""deepspeed's command line and hosts."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.base import Placement, ProcessFailure
from airflow_provider_ocidist.launchers.deepspeed import LAUNCHER

TOPOLOGY = Placement(
    rank=1,
    nodes=2,
    processes_per_node=4,
    master_address="10.0.0.1",
    address="10.0.0.2",
    addresses=("10.0.0.1", "10.0.0.2"),
    rendezvous_id="run-a1",
    join_timeout=600.0,
    cores=8,
    gpus=4,
    folder="/home/node",
)
PROGRAM = Program(script="train.py", args=("--lr", "0.1"))
OUTPUT = """\
[2026-11-21 16:59:59,023] [INFO] [launch.py:145:main] 0 NCCL_SOCKET_IFNAME=lo
step 3
[2026-11-21 17:00:24,307] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 31517
[2026-11-21 17:00:24,308] [ERROR] [launch.py:259:sigkill_handler] ['python', '-u', 'x.py'] exits with return code = -9
"""


def command(*args: str, program: Program = PROGRAM, placement: Placement = TOPOLOGY) -> list[str]:
    return LAUNCHER.command(program, LauncherOptions(args=args), placement)


def test_every_node_starts_its_own_processes_without_any_login() -> None:
    assert command() == [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--hostfile=/home/node/hostfile",
        "--no_ssh",
        "--node_rank=1",
        "--master_addr=10.0.0.1",
        "--master_port=29400",
        "train.py",
        "--lr",
        "0.1",
    ]


def test_all_nodes_have_the_same_list_of_hosts() -> None:
    assert LAUNCHER.files(LauncherOptions(), TOPOLOGY) == {"hostfile": "10.0.0.1 slots=4\n10.0.0.2 slots=4\n"}


@pytest.mark.parametrize(
    "args", [("--hostfile=/mine",), ("--hostfile", "/mine"), ("-H", "/mine"), ("-H/mine",)]
)
def test_the_users_own_hosts_win(args) -> None:
    built = command(*args)
    assert "--hostfile=/home/node/hostfile" not in built
    assert built[-len(args) - 3 : -3] == list(args)


def test_the_users_own_port_wins() -> None:
    assert "--master_port=29400" not in command("--master_port", "30000")


@pytest.mark.parametrize(
    "chosen",
    [
        *[
            ("--include", "localhost:0,2"),
            ("--inc=localhost:0,2",),
            ("-i", "localhost:0,2"),
            ("-ilocalhost:0,2",),
        ],
        *[("-elocalhost:1",), ("--excl", "localhost:1")],
    ],
    ids=" ".join,
)
def test_devices_of_a_single_node_are_chosen_as_deepspeed_has_it(chosen) -> None:
    alone = replace(TOPOLOGY, rank=0, nodes=1, addresses=("10.0.0.1",))
    assert command(*chosen, placement=alone)[3:-3] == ["--master_port=29400", *chosen]
    assert LAUNCHER.files(LauncherOptions(args=chosen), alone) == {}
    assert "--no_ssh" in command(placement=alone)


def test_a_module_is_run_as_one() -> None:
    built = command(program=Program(script="pkg.train", module=True))
    assert built[-2:] == ["--module", "pkg.train"]


@pytest.mark.parametrize("gpus, told", [(0, "cpu"), (4, None), (None, None)])
def test_deepspeed_gets_a_variable_where_there_is_no_gpu(gpus, told) -> None:
    assert LAUNCHER.defaults(replace(TOPOLOGY, gpus=gpus)).get("DS_ACCELERATOR") == told


def test_the_failure_is_read_from_its_report() -> None:
    assert LAUNCHER.first_failure(OUTPUT) == ProcessFailure(rank=None, exit_code=-9)
    assert LAUNCHER.first_failure("step 3\n") is None


def test_its_lines_are_not_taken_for_the_programs_output() -> None:
    assert LAUNCHER.user_output(OUTPUT) == "step 3\n"
