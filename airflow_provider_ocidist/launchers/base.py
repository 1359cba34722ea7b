"""Launcher: from what a node knows to the command that starts its processes. Pure; standard library only."""

from __future__ import annotations

import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_ocidist.job import LauncherOptions, Program

MASTER_PORT = 29400


@dataclass(frozen=True, kw_only=True, slots=True)
class Topology:
    """One node's place in the gang."""

    rank: int
    nodes: int
    processes_per_node: int
    master_address: str
    """Of the node of rank 0."""
    master_port: int = MASTER_PORT
    address: str
    """Where the other nodes reach this one; the name by which it is told from them."""
    rendezvous_id: str
    """Unique for each attempt, so that nodes of two attempts can never meet."""
    join_timeout: float
    addresses: tuple[str, ...] = ()
    """Of all nodes, by rank."""
    interface: str | None = None
    """Network interface of `address`, where libraries would not find it by themselves."""
    cores: int = 1
    """Processor cores that this node may use."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node

    @property
    def threads_per_process(self) -> int:
        """Cores for each process; nodes on loopback addresses share one machine."""
        sharing = self.nodes if ipaddress.ip_address(self.address).is_loopback else 1
        return max(1, self.cores // (self.processes_per_node * sharing))


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessFailure:
    """What a launcher says of a process that failed."""

    rank: int
    exit_code: int
    """Negative for a signal."""


class Launcher(ABC):
    """What starts the processes of one node."""

    requires: tuple[str, ...] = ()
    """Python packages without which the command cannot run."""

    @abstractmethod
    def command(self, program: Program, options: LauncherOptions, topology: Topology) -> list[str]:
        """Return the command line for this node; the user's own launcher arguments win over ours."""

    def main_node(self, options: LauncherOptions, topology: Topology) -> int:  # noqa: ARG002 - for most it is the first
        """Return the rank of the node that hosts the process of global rank 0, which writes checkpoints."""
        return 0

    def environment(self, topology: Topology) -> dict[str, str]:  # noqa: ARG002 - most need none
        """Return variables that the processes cannot do without."""
        return {}

    def defaults(self, topology: Topology) -> dict[str, str]:
        """Return variables that do the processes good; those that the user has set win over these."""
        variables = {"OMP_NUM_THREADS": str(topology.threads_per_process)}
        if topology.interface is not None:
            variables |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), topology.interface)
        return variables

    def first_failure(self, output: str) -> ProcessFailure | None:  # noqa: ARG002 - most print none
        """Return what the launcher itself printed about the process that failed first, if it prints such."""
        return None

    def user_output(self, output: str) -> str:
        """Return output without the launcher's own report of a failure."""
        return output


def program_command(program: Program) -> list[str]:
    """Return the program as `python` and torchrun both take it."""
    return [*(["-m"] if program.module else []), program.script, *program.args]


def given_flags(args: Sequence[str]) -> frozenset[str]:
    """Return the names of the long flags among arguments: `--nproc_per_node=2` gives `nproc-per-node`."""
    long_flags = [argument for argument in args if argument.startswith("--")]
    return frozenset(flag[2:].partition("=")[0].replace("_", "-") for flag in long_flags)
