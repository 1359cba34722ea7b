"""torchrun: one elastic agent for each node, meeting on the main node."""

from __future__ import annotations

import re
import sys

from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.base import (
    Launcher,
    ProcessFailure,
    Topology,
    given_flags,
    program_command,
)

ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)",
    re.DOTALL,
)
OWN_REPORT = re.compile(r"^E\d{4} [^\n]*torch/distributed/elastic/[^\n]* failed \(exitcode", re.MULTILINE)


class Torchrun(Launcher):
    """`python -m torch.distributed.run`; the interpreter that runs the agent is the one that trains."""

    requires = ("torch",)

    def command(self, program: Program, options: LauncherOptions, topology: Topology) -> list[str]:
        given = given_flags(options.args)
        ours = [
            f"--{name}={value}" for name, value in _defaults(topology).items() if not _is_given(name, given)
        ]
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *ours,
            *options.args,
            *program_command(program),
        ]

    def main_node(self, options: LauncherOptions, topology: Topology) -> int:
        given = given_flags(options.args)
        if any(_is_given(name, given) for name in ("rdzv-backend", "local-addr")):
            return 0
        # c10d hands out ranks in the order of the nodes' names, as text, whatever rank we gave them
        # (torch.distributed.elastic.rendezvous.dynamic_rendezvous, _mark_rendezvous_complete).
        return min(range(topology.nodes), key=lambda rank: topology.addresses[rank])

    def defaults(self, topology: Topology) -> dict[str, str]:
        # Sharing the rendezvous store makes one fault cost several restarts, and keeps a replaced node out.
        return {**super().defaults(topology), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def first_failure(self, output: str) -> ProcessFailure | None:
        found = ROOT_CAUSE.search(output)
        return ProcessFailure(rank=int(found[1]), exit_code=int(found[2])) if found else None

    def user_output(self, output: str) -> str:
        report = OWN_REPORT.search(output)
        return output[: report.start()] if report else output


def _defaults(topology: Topology) -> dict[str, str]:
    return {
        "nnodes": str(topology.nodes),
        "nproc-per-node": str(topology.processes_per_node),
        "max-restarts": "0",
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{topology.master_address}:{topology.master_port}",
        "rdzv-id": topology.rendezvous_id,
        "rdzv-conf": _rendezvous_settings(topology),
        # c10d tells nodes apart by host name and process id, which containers on one host share.
        "local-addr": topology.address,
    }


def _rendezvous_settings(topology: Topology) -> str:
    timeout = max(1, round(topology.join_timeout))
    # Left to itself torchrun takes any loopback address for its own, and several nodes would host the store.
    is_host = str(topology.rank == 0).lower()
    return f"is_host={is_host},join_timeout={timeout},read_timeout={timeout}"


def _is_given(name: str, given: frozenset[str]) -> bool:
    if name.startswith("rdzv-") and "standalone" in given:
        return True
    # argparse takes any unambiguous beginning of a flag: ADS writes --nnode.
    return any(name.startswith(flag) for flag in given if flag)


LAUNCHER = Torchrun()
