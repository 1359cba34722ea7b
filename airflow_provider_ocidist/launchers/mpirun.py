"""mpirun: Open MPI starts all processes, on other nodes through logins from the first."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.launchers import ssh
from airflow_provider_ocidist.launchers.base import (
    Launcher,
    Placement,
    ProcessFailure,
    file_in,
    program_command,
)
from airflow_provider_ocidist.launchers.deepspeed import HOSTS, host_list
from airflow_provider_ocidist.model.job import LauncherOptions, Program

SYNONYMS = {"n": "np", "c": "np", "machinefile": "hostfile", "H": "host", "N": "npernode", "rf": "rankfile"}
COUNTS = frozenset({"npernode", "pernode", "npersocket"})
"""Options by which Open MPI counts the processes itself; it refuses a `--map-by` beside them."""
MAPPINGS = COUNTS | {"map-by", "rankfile", "bynode", "byslot", "cpus-per-proc", "cpus-per-rank"}
"""Options that say which process is where."""
INSTEAD = {"np": COUNTS, "map-by": MAPPINGS, "bind-to": frozenset({"rankfile"})}
"""Options of the user's in whose place none of ours is given, besides the same."""
RANKS = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
"""Open MPI's variable for each of torch's."""
IN_ONE = "--in-one"
"""Flag before the program's words where they are one argument, as JSON."""
EXITED = re.compile(
    r"The first process to do so was:\s+Process name: \[\[\d+,\d+\],(\d+)\]\s+Exit code:\s+(\d+)"
)
KILLED = re.compile(r"mpirun noticed that process rank (\d+) with PID .*? exited on signal (\d+)")
OWN_REPORT = re.compile(
    r"^-{60,}\n(?:(?!-{60,})[^\n]*\n)*?(?:Primary job|mpirun (?:detected|noticed))", re.MULTILINE
)


class Mpirun(Launcher):
    """`mpirun` of Open MPI; each process also gets the variables that torch reads."""

    def logs_in(self, options: LauncherOptions, nodes: int) -> bool:  # noqa: ARG002 - no option says
        return nodes > 1

    def tools(self, options: LauncherOptions, nodes: int) -> tuple[str, ...]:
        return ("mpirun", *(ssh.TOOLS if self.logs_in(options, nodes) else ()))

    def files(self, options: LauncherOptions, placement: Placement) -> Mapping[str, str]:  # noqa: ARG002 - none matters
        if placement.nodes == 1:
            # mpirun would log in to its own node if it did not recognize the address.
            return {HOSTS: f"localhost slots={placement.processes_per_node}\n"}
        return {HOSTS: host_list(placement), **ssh.files(placement)}

    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:
        given = _given(options.args)
        ours = {
            "np": str(placement.world_size),
            "hostfile": file_in(placement, HOSTS),
            "map-by": f"ppr:{placement.processes_per_node}:node",
            "bind-to": "none",
        }
        command = [
            "mpirun",
            *[
                part
                for name, value in ours.items()
                if given.isdisjoint({name, *INSTEAD.get(name, ())})
                for part in (f"--{name}", value)
            ],
            *(_through_ssh(placement) if placement.nodes > 1 else []),
            *options.args,
            sys.executable,
            "-m",
            __name__,
            *_as_arguments(program_command(program)),
        ]
        return ssh.serving(placement, command) if placement.nodes > 1 else command

    def environment(self, placement: Placement) -> dict[str, str]:
        return {"MASTER_ADDR": placement.master_address, "MASTER_PORT": str(placement.master_port)}

    def defaults(self, placement: Placement) -> dict[str, str]:
        # Otherwise mpirun refuses to run as root, as in containers.
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return {**super().defaults(placement), **as_root}

    def first_failure(self, output: str) -> ProcessFailure | None:
        if exited := EXITED.search(output):
            return ProcessFailure(rank=int(exited[1]), exit_code=int(exited[2]))
        killed = KILLED.search(output)
        return ProcessFailure(rank=int(killed[1]), exit_code=-int(killed[2])) if killed else None

    def user_output(self, output: str) -> str:
        report = OWN_REPORT.search(output)
        return output[: report.start()] if report else output


def _given(args: Sequence[str]) -> set[str]:
    """Return the names of the options among arguments: Open MPI takes each of them with one dash, too."""
    names = (each.partition("=")[0].lstrip("-").replace("_", "-") for each in args if each.startswith("-"))
    return {SYNONYMS.get(name, name) for name in names}


def _through_ssh(placement: Placement) -> list[str]:
    login = ["--mca", "plm_rsh_args", f"-F {file_in(placement, 'ssh_config')}"]
    # Beyond 64 nodes those that have been reached would reach others, whom no other node than the first may log in to.
    first_alone = ["--mca", "plm_rsh_no_tree_spawn", "1"]
    # Otherwise its daemons would leave the session, which would end the node.
    return [*login, *first_alone, "--leave-session-attached"]


def _as_arguments(words: Sequence[str]) -> list[str]:
    """Return the program's words as mpirun takes them: one that is a colon would begin another program."""
    return [IN_ONE, json.dumps(words)] if ":" in words else [*words]


def main(arguments: Sequence[str]) -> int:
    """Become the program, as one rank of it."""
    words = json.loads(arguments[1]) if arguments[:1] == [IN_ONE] else arguments
    ranks = {name: os.environ[source] for name, source in RANKS.items() if source in os.environ}
    os.execve(sys.executable, [sys.executable, *words], {**os.environ, **ranks})  # noqa: S606 - that is the point


LAUNCHER = Mpirun()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
