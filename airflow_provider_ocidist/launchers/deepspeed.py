"""deepspeed: every node starts its own processes, from the same list of hosts."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

from airflow_provider_ocidist.launchers import ssh
from airflow_provider_ocidist.launchers.base import (
    Launcher,
    Placement,
    ProcessFailure,
    file_in,
    given_flags,
    is_given,
    value_of,
)
from airflow_provider_ocidist.model.job import LauncherOptions, Program

HOSTS = "hostfile"
SHORT_OPTIONS = {"H": "hostfile", "i": "include", "e": "exclude"}
CHOOSES_DEVICES = ("include", "exclude")
ENDED = re.compile(
    r"^\[[^\n]*\[launch\.py:\d+:sigkill_handler\][^\n]* exits with return code = (-?\d+)$", re.MULTILINE
)
OWN_LINE = re.compile(r"^\[[-\d: ,]+\] \[[A-Z]+\] \[(?:launch|runner)\.py:\d+:[^\n]*\n?", re.MULTILINE)


class DeepSpeed(Launcher):
    """`deepspeed --no_ssh`: DeepSpeed's own launcher, without its logins from the first node to the others."""

    requires = ("torch", "deepspeed")

    def logs_in(self, options: LauncherOptions, nodes: int) -> bool:
        """Whether the nodes log in to one another: with `--launcher=pdsh`, as in DeepSpeed itself."""
        return nodes > 1 and value_of("launcher", _given(options)) == "pdsh"

    def is_elastic(self, options: LauncherOptions) -> bool:
        given = _given(options)
        return not any(is_given(name, given) for name in ("launcher", "hostfile", "num-nodes"))

    def tools(self, options: LauncherOptions, nodes: int) -> tuple[str, ...]:
        return (*ssh.TOOLS, "pdsh") if self.logs_in(options, nodes) else ()

    def files(self, options: LauncherOptions, placement: Placement) -> Mapping[str, str]:
        hosts = {HOSTS: host_list(placement)} if _uses_hosts(options, placement) else {}
        return {**hosts, **ssh.files(placement)} if self.logs_in(options, placement.nodes) else hosts

    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:
        given = _given(options)
        logs_in = self.logs_in(options, placement.nodes)
        ours = _hosts(placement, logs_in=logs_in) if _uses_hosts(options, placement) else {}
        ours |= {"master_port": str(placement.master_port)}
        command = [
            sys.executable,
            "-m",
            "deepspeed.launcher.runner",
            *[
                _flag(name, value)
                for name, value in ours.items()
                if not is_given(name.replace("_", "-"), given)
            ],
            *(["--module"] if program.module else []),
            *options.args,
            program.script,
            *program.args,
        ]
        return ssh.serving(placement, command) if logs_in else command

    def defaults(self, placement: Placement) -> dict[str, str]:
        return {**super().defaults(placement), **accelerator(placement)}

    def first_failure(self, output: str) -> ProcessFailure | None:
        found = ENDED.search(output)
        return ProcessFailure(rank=None, exit_code=int(found[1])) if found else None

    def user_output(self, output: str) -> str:
        return OWN_LINE.sub("", output)


def host_list(placement: Placement) -> str:
    """Return the nodes and their processes as DeepSpeed and Open MPI read them, node 0 first."""
    return "".join(f"{address} slots={placement.processes_per_node}\n" for address in placement.addresses)


def accelerator(placement: Placement) -> dict[str, str]:
    """Return the variable for a node without a GPU; without it DeepSpeed fails there."""
    return {"DS_ACCELERATOR": "cpu"} if placement.gpus == 0 else {}


def _hosts(placement: Placement, *, logs_in: bool) -> dict[str, str]:
    # Its own check does not use our keys.
    ours = {"no_ssh_check": ""} if logs_in else {"no_ssh": "", "node_rank": str(placement.rank)}
    return {
        "hostfile": file_in(placement, HOSTS),
        **ours,
        "master_addr": placement.master_address,
    }


def _uses_hosts(options: LauncherOptions, placement: Placement) -> bool:
    """Whether DeepSpeed gets the host list; on a single node the user may select `localhost:0,1`."""
    given = _given(options)
    return placement.nodes > 1 or not any(is_given(name, given) for name in CHOOSES_DEVICES)


def _given(options: LauncherOptions) -> Mapping[str, str]:
    return given_flags(options.args, SHORT_OPTIONS, joined=True)


def _flag(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


LAUNCHER = DeepSpeed()
