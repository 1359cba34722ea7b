"""What every launcher keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.base import Launcher, Placement

KINDS = kinds.names("launchers")


def placement(rank: int, processes: int = 1) -> Placement:
    return Placement(
        rank=rank,
        nodes=2,
        processes_per_node=processes,
        master_address="10.0.0.1",
        address=f"10.0.0.{rank + 1}",
        addresses=("10.0.0.1", "10.0.0.2"),
        public_keys=("ssh-ed25519 A", "ssh-ed25519 B"),
        rendezvous_id="run",
        join_timeout=60.0,
    )


@pytest.fixture(params=KINDS)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    found = kinds.load("launchers", request.param).LAUNCHER
    assert isinstance(found, Launcher)
    return found


@pytest.mark.parametrize("processes", [1, 2])
def test_the_program_and_its_arguments_come_last_and_unchanged(launcher: Launcher, processes: int) -> None:
    args = ("--text", "a b; $HOME 'x'", "", "--nnodes=9")
    command = launcher.command(
        Program(script="/code/x.py", args=args), LauncherOptions(), placement(0, processes)
    )
    assert command[-5:] == ["/code/x.py", *args]


def test_the_same_node_always_gets_the_same_command(launcher: Launcher) -> None:
    program = Program(script="x.py")
    first, second = (launcher.command(program, LauncherOptions(), placement(1)) for _ in range(2))
    assert first == second


def test_the_launchers_own_arguments_come_before_the_program(launcher: Launcher) -> None:
    command = launcher.command(Program(script="x.py"), LauncherOptions(args=("--own=1",)), placement(0))
    assert command.index("--own=1") < command.index("x.py")


def test_the_command_says_where_its_files_lie(launcher: Launcher) -> None:
    for rank in range(2):
        node = replace(placement(rank), folder="/home/node")
        names = launcher.files(LauncherOptions(), node)
        command = " ".join(launcher.command(Program(script="x.py"), LauncherOptions(), node))
        assert all("/" not in name for name in names)
        assert bool(names) == ("/home/node" in command)


def test_variables_are_text(launcher: Launcher) -> None:
    variables = {**launcher.environment(placement(0)), **launcher.defaults(placement(0))}
    assert all(isinstance(value, str) for value in variables.values())
