"""Any executable."""

from __future__ import annotations

import subprocess
import sys

from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.base import Placement
from airflow_provider_ocidist.launchers.command import LAUNCHER

TOPOLOGY = Placement(
    rank=1,
    nodes=2,
    processes_per_node=4,
    master_address="10.0.0.1",
    address="10.0.0.2",
    rendezvous_id="run",
    join_timeout=60.0,
)


def test_the_script_is_the_executable_and_no_shell_sees_its_arguments() -> None:
    program = Program(script="/usr/bin/printf", args=("%s.", "a b", "$HOME; `id`", ""))
    command = LAUNCHER.command(program, LauncherOptions(), TOPOLOGY)
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"a b.$HOME; `id`.."


def test_the_launchers_arguments_come_before_it() -> None:
    built = LAUNCHER.command(
        Program(script="./train", args=("-x",)), LauncherOptions(args=("nice", "-n5")), TOPOLOGY
    )
    assert built == ["nice", "-n5", "./train", "-x"]


def test_a_module_is_run_by_the_nodes_interpreter() -> None:
    built = LAUNCHER.command(Program(script="pkg.train", module=True), LauncherOptions(), TOPOLOGY)
    assert built == [sys.executable, "-m", "pkg.train"]


def test_it_gets_its_place_and_on_processors_too() -> None:
    told = {**LAUNCHER.defaults(TOPOLOGY), **LAUNCHER.environment(TOPOLOGY)}
    assert {name: told[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")} == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29400",
        "WORLD_SIZE": "8",
        "RANK": "4",
    }
    assert (told["NODE_RANK"], told["NODE_COUNT"], told["PROCESSES_PER_NODE"]) == ("1", "2", "4")
