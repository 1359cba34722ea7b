"""accelerate: Hugging Face Accelerate's launcher on every node, with the node's rank."""

from __future__ import annotations

import re
import sys

from airflow_provider_ocidist.launchers import deepspeed, torchrun
from airflow_provider_ocidist.launchers.base import (
    Launcher,
    Placement,
    ProcessFailure,
    given_flags,
    is_given,
    program_command,
    value_of,
)
from airflow_provider_ocidist.model.job import LauncherOptions, Program

KINDS_OF_TRAINING = frozenset({
    "config-file", "cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp", "use-megatron-lm",
})  # fmt: skip
"""Flags of Accelerate that choose what to start; without one it silently starts one process, not many."""
SINGLE_PROCESS_FAILED = re.compile(
    r"^subprocess\.CalledProcessError: Command '.*' "
    r"(?:returned non-zero exit status (\d+)|died with <Signals\.\w+: (\d+)>)",
    re.MULTILINE,
)
OWN_TRACEBACK = re.compile(
    r'^Traceback \(most recent call last\):\n  File "(?:<frozen runpy>|[^"]*accelerate)[^\n]*\n(?:  [^\n]*\n)*'
    r"subprocess\.CalledProcessError: [^\n]*\n?",
    re.MULTILINE,
)


class Accelerate(Launcher):
    """`accelerate launch`: torchrun inside, with a static rendezvous, or one plain process on each node."""

    requires = ("torch", "accelerate")

    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:
        given = given_flags(options.args)
        ours = {
            "num_processes": str(placement.world_size),
            "num_machines": str(placement.nodes),
            "machine_rank": str(placement.rank),
            "main_process_ip": placement.master_address,
            "main_process_port": str(placement.master_port),
            "rdzv_conf": _rendezvous_settings(options, placement),
            # Its default, pdsh, logs in from the first node to the others.
            "deepspeed_multinode_launcher": "standard",
        }
        logs = self.log_folder(options, placement)
        ours |= {"log_dir": logs} if logs else {}
        several = placement.world_size > 1 and not any(is_given(kind, given) for kind in KINDS_OF_TRAINING)
        return [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            *[f"--{name}={value}" for name, value in ours.items() if name.replace("_", "-") not in given],
            # Despite its name it starts torchrun, also on CPUs.
            *(["--multi_gpu"] if several else []),
            *options.args,
            *program_command(program),
        ]

    def is_elastic(self, options: LauncherOptions) -> bool:
        given = given_flags(options.args)
        return not (is_given("num-machines", given) or is_given("num-processes", given))

    def log_folder(self, options: LauncherOptions, placement: Placement) -> str | None:
        return torchrun.kept_logs(options.args, placement)

    def main_node(self, options: LauncherOptions, placement: Placement) -> int:
        c10d = value_of("rdzv-backend", given_flags(options.args)) == "c10d"
        return torchrun.first_in_c10d(placement) if c10d else 0

    def environment(self, placement: Placement) -> dict[str, str]:
        # If a configuration file asks for one plain process on each node, these join them in one group; torchrun
        # sets its own. The last two are flags of torchrun that `accelerate launch` lacks.
        return {
            "RANK": str(placement.rank),
            "WORLD_SIZE": str(placement.nodes),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": placement.master_address,
            "MASTER_PORT": str(placement.master_port),
            "PET_RDZV_ID": placement.rendezvous_id,
            "PET_LOCAL_ADDR": placement.address,
        }

    def defaults(self, placement: Placement) -> dict[str, str]:
        on_processors = {"ACCELERATE_USE_CPU": "true"} if placement.gpus == 0 else {}
        return {
            **super().defaults(placement),
            **torchrun.one_store_each(),
            **deepspeed.accelerator(placement),
            **on_processors,
        }

    def first_failure(self, output: str) -> ProcessFailure | None:
        found = SINGLE_PROCESS_FAILED.search(output)
        if found is None:
            return torchrun.root_cause(output)
        return ProcessFailure(rank=None, exit_code=int(found[1]) if found[1] else -int(found[2]))

    def user_output(self, output: str) -> str:
        return OWN_TRACEBACK.sub("", torchrun.without_report(output))


def _rendezvous_settings(options: LauncherOptions, placement: Placement) -> str:
    if value_of("rdzv-backend", given_flags(options.args)) == "c10d":
        return torchrun.c10d_settings(placement)
    return torchrun.static_settings(placement)


LAUNCHER = Accelerate()
