"""What every node runs: config -> fetch -> join -> launch -> supervise -> save -> report; exit codes: `outcome`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from airflow_provider_ocidist.agent.train import first_process


def main(argv: Sequence[str] | None = None) -> int:
    """Run this node's part and return the exit code; its configuration is in the environment.

    The arguments are read only on a node that Oracle ADS started: they are the container's command.
    """
    status = first_process.divide()
    if status is not None:
        return status
    # Late: until process 1 has divided, the kernel keeps signals from it, and to load all of the agent takes time.
    from airflow_provider_ocidist.agent.start import run_node

    return run_node(argv)


def run_and_exit() -> NoReturn:
    """Run this node's part, and end this process with it. The scripts that start a node call this."""
    code = main()
    # Late, as above.
    from airflow_provider_ocidist.agent.train.interruptible import leave

    leave(code)


if __name__ == "__main__":
    run_and_exit()
