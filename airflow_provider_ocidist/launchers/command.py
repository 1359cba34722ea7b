"""command: any executable, once on each node, with its rank in variables."""

from __future__ import annotations

import sys

from airflow_provider_ocidist.launchers.base import Launcher, Placement, program_command
from airflow_provider_ocidist.model.job import LauncherOptions, Program


class Command(Launcher):
    """`program.script` itself; the launcher's own arguments come before it, as in `numactl -l ./train`."""

    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:  # noqa: ARG002 - same for all
        interpreter = [sys.executable] if program.module else []
        return [*options.args, *interpreter, *program_command(program)]

    def environment(self, placement: Placement) -> dict[str, str]:
        return {
            "NODE_RANK": str(placement.rank),
            "NODE_COUNT": str(placement.nodes),
            "PROCESSES_PER_NODE": str(placement.processes_per_node),
        }

    def defaults(self, placement: Placement) -> dict[str, str]:
        # The first process of this node; a program that starts several sets its own.
        return {
            **super().defaults(placement),
            "MASTER_ADDR": placement.master_address,
            "MASTER_PORT": str(placement.master_port),
            "WORLD_SIZE": str(placement.world_size),
            "LOCAL_WORLD_SIZE": str(placement.processes_per_node),
            "RANK": str(placement.rank * placement.processes_per_node),
            "LOCAL_RANK": "0",
            # torchrun's arguments, so that one in a shell script joins the gang, as under Kubeflow.
            "PET_NNODES": str(placement.nodes),
            "PET_NODE_RANK": str(placement.rank),
            "PET_NPROC_PER_NODE": str(placement.processes_per_node),
            "PET_MASTER_ADDR": placement.master_address,
            "PET_MASTER_PORT": str(placement.master_port),
        }


LAUNCHER = Command()
