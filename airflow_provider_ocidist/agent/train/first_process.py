"""Process 1 of a container: reaps orphans and forwards signals, while its child runs as the agent.

The agent itself cannot reap orphans: it could not distinguish one from a child whose exit code is yet to be read.
When process 1 ends, the kernel ends all that runs in the container.
"""

from __future__ import annotations

import os
import signal

from airflow_provider_ocidist.launchers.exit_status import exit_status

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def divide() -> int | None:
    """Return the agent's exit status in process 1, once it has ended; None in the agent, and where there is no need.

    Call it before any thread is started.
    """
    if os.getpid() != 1:
        return None
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    agent = os.fork()
    if agent:
        for number in FORWARDED:
            signal.signal(number, lambda received, _: os.kill(agent, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    return _reap_until_exit(agent) if agent else None


def _reap_until_exit(agent: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == agent:
            return exit_status(os.waitstatus_to_exitcode(status))
