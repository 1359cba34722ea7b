"""Launcher: builds the command that starts a node's processes. Pure; standard library only."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import zip_longest
from pathlib import PurePosixPath

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.job import LauncherOptions, Program

MASTER_PORT = 29400
"""Port of the rendezvous, unless the platform gives another or nodes share a machine."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One node's place in the gang."""

    rank: int
    nodes: int
    processes_per_node: int
    master_address: str
    """Address of the node of rank 0."""
    master_port: int = MASTER_PORT
    address: str
    """Address at which the other nodes reach this one; unique among the nodes."""
    rendezvous_id: str
    """Id of the rendezvous, unique for each launch, so that processes of two launches never join."""
    join_timeout: float
    addresses: tuple[str, ...] = ()
    """Addresses of all nodes, by rank."""
    public_keys: tuple[str, ...] = ()
    """Public keys of all nodes, by rank, where the launcher logs in from one node to another."""
    interface: str | None = None
    """Network interface of `address`; None if it is not known."""
    cores: int = 1
    """Number of processor cores that this node may use."""
    gpus: int | None = None
    """Number of GPUs that this node sees; None if not counted, as in a plan."""
    folder: str = "/tmp/launcher"  # noqa: S108 - what a plan shows; every node has one of its own
    """Empty folder of this node for the files of its launcher; deleted with the node."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def threads_per_process(self) -> int:
        """Cores for each process; nodes on loopback addresses share one machine."""
        sharing = self.nodes if ipaddress.ip_address(self.address).is_loopback else 1
        return max(1, self.cores // (self.processes_per_node * sharing))


@dataclass(frozen=True, kw_only=True)
class ProcessFailure:
    """A launcher's report of a failed process."""

    rank: int | None
    """Rank of the process; None if the launcher does not name it."""
    exit_code: int
    """Exit code; negative for a signal."""
    local_rank: int | None = field(default=None, compare=False)
    """Rank among the processes of its node."""


class Launcher(ABC):
    """What starts the processes of one node."""

    requires: tuple[str, ...] = ()
    """Python packages without which the command cannot run."""

    def tools(self, options: LauncherOptions, nodes: int) -> tuple[str, ...]:  # noqa: ARG002 - most need none
        """Return the programs that must be found on `PATH`."""
        return ()

    def is_elastic(self, options: LauncherOptions) -> bool:  # noqa: ARG002 - most start one number of nodes
        """Return whether further launches may have another number of nodes."""
        return False

    def logs_in(self, options: LauncherOptions, nodes: int) -> bool:  # noqa: ARG002 - most need no logins
        """Return whether the first node starts the processes of the others, by logins."""
        return False

    def files(self, options: LauncherOptions, placement: Placement) -> Mapping[str, str]:  # noqa: ARG002 - most need none
        """Return the text files that the command reads, by name in `placement.folder`."""
        return {}

    def log_folder(self, options: LauncherOptions, placement: Placement) -> str | None:  # noqa: ARG002 - most show all
        """Return the folder of the processes' log files, with a folder for each run; None without any."""
        return None

    def hides_output(self, options: LauncherOptions) -> bool:  # noqa: ARG002 - most show it
        """Return whether what the processes print is in their log files alone."""
        return False

    @abstractmethod
    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:
        """Return the command line for this node; the user's own launcher arguments win over ours."""

    def main_node(self, options: LauncherOptions, placement: Placement) -> int:  # noqa: ARG002 - for most it is the first
        """Return the rank of the node that hosts the process of global rank 0, which writes checkpoints."""
        return 0

    def environment(self, placement: Placement) -> dict[str, str]:  # noqa: ARG002 - most need none
        """Return variables that the processes require."""
        return {}

    def defaults(self, placement: Placement) -> dict[str, str]:
        """Return recommended variables; those that the user has set win over these."""
        variables = {"OMP_NUM_THREADS": str(placement.threads_per_process)}
        if placement.interface is not None:
            # NCCL matches names by prefix: eth1 would match eth10 too.
            variables |= {
                "GLOO_SOCKET_IFNAME": placement.interface,
                "NCCL_SOCKET_IFNAME": f"={placement.interface}",
            }
        return variables

    def first_failure(self, output: str) -> ProcessFailure | None:  # noqa: ARG002 - most print none
        """Return the launcher's own report of the process that failed first, if it prints one."""
        return None

    def user_output(self, output: str) -> str:
        """Return output without the launcher's own report of a failure."""
        return output


def program_command(program: Program) -> list[str]:
    """Return the program as `python` and torchrun both take it."""
    return [*(["-m"] if program.module else []), program.script, *program.args]


def given_flags(
    args: Sequence[str], short: Mapping[str, str] | None = None, *, joined: bool = False
) -> Mapping[str, str]:
    """Return the flags among arguments with their values: `--nproc_per_node=2` gives `nproc-per-node: 2`.

    A flag without a value, or at the end, has an empty one. `short`: the long names of one-letter flags; `joined`:
    whether their values may follow at once, as argparse takes them (`-r3`).
    """
    found: dict[str, str] = {}
    for argument, following in zip_longest(args, args[1:], fillvalue=""):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            flag = name[2:].replace("_", "-")
        elif short and name[:1] == "-" and name[1:] in short:
            flag = short[name[1:]]
        elif joined and short and argument[:1] == "-" and argument[1:2] in short:
            found[short[argument[1]]] = argument[2:]
            continue
        else:
            continue
        found[flag] = value if equals or following.startswith("-") else following
    return found


def is_given(name: str, given: Mapping[str, str]) -> bool:
    """Whether a flag is among those given, or an abbreviation of it: argparse takes any clear beginning."""
    return value_of(name, given) is not None


def value_of(name: str, given: Mapping[str, str]) -> str | None:
    """Return the value of a flag, which may be abbreviated; None where it is not given."""
    return next((value for flag, value in given.items() if flag and name.startswith(flag)), None)


def file_in(placement: Placement, name: str) -> str:
    """Return the path of one of the launcher's files."""
    return str(PurePosixPath(placement.folder) / name)
