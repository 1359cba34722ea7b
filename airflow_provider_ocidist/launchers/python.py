"""python: one plain process for each device, with the variables that `init_process_group` reads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.launchers.base import Launcher, Placement, ProcessFailure, program_command
from airflow_provider_ocidist.launchers.exit_status import exit_status
from airflow_provider_ocidist.model.job import LauncherOptions, Program

LOOK_INTERVAL = 0.1
"""Seconds between two looks at the processes."""
STOP_GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL, for the processes that are left when one has failed."""
OWN_REPORT = re.compile(
    r"^rank (\d+) \(local rank \d+\) ended with (-?\d+); ending the others\n", re.MULTILINE
)


class Python(Launcher):
    """`python script`, or several of them under this module, which ends all when one fails."""

    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:
        process = [sys.executable, *options.args, *program_command(program)]
        if placement.processes_per_node == 1:
            return process
        return [sys.executable, "-m", __name__, str(placement.processes_per_node), *process]

    def environment(self, placement: Placement) -> dict[str, str]:
        return {
            "RANK": str(placement.rank * placement.processes_per_node),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(placement.world_size),
            "LOCAL_WORLD_SIZE": str(placement.processes_per_node),
            "MASTER_ADDR": placement.master_address,
            "MASTER_PORT": str(placement.master_port),
        }

    def first_failure(self, output: str) -> ProcessFailure | None:
        found = OWN_REPORT.search(output)
        return ProcessFailure(rank=int(found[1]), exit_code=int(found[2])) if found else None

    def user_output(self, output: str) -> str:
        return OWN_REPORT.sub("", output)


def run_processes(command: Sequence[str], count: int, environ: Mapping[str, str]) -> int:
    """Run the command `count` times, each with its own rank; return 0, or the first failure's exit code.

    SIGTERM is to be sent to the process group.
    """
    first_rank = int(environ["RANK"])
    processes = [
        subprocess.Popen(command, env={**environ, "RANK": str(first_rank + local), "LOCAL_RANK": str(local)})
        for local in range(count)
    ]
    # Who asks signals them too: a second SIGTERM would cut short what a process does at the first.
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    failed = _wait_for_failure(processes)
    if failed is None:
        return 0
    if asked_to_end:
        # The others may save: the agent gives them the time, and kills what is left.
        for process in processes:
            process.wait()
        return int(failed.returncode)
    local = processes.index(failed)
    sys.stderr.write(
        f"rank {first_rank + local} (local rank {local}) ended with {failed.returncode}; ending the others\n"
    )
    _end(processes)
    return int(failed.returncode)


def _wait_for_failure(processes: Sequence[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes] | None:
    while True:
        codes = [process.poll() for process in processes]
        for process, code in zip(processes, codes):
            if code not in (None, 0):
                return process
        if all(code == 0 for code in codes):
            return None
        time.sleep(LOOK_INTERVAL)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def main(arguments: Sequence[str]) -> int:
    return exit_status(run_processes(arguments[1:], int(arguments[0]), os.environ))


LAUNCHER = Python()

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
