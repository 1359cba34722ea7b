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
    # Blocked, and waited for: a handler could run just before a wait that nothing else ends.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    agent = os.fork()
    if agent:
        return _reap_until_exit(agent)
    # What has started this one may have blocked them too, so that none was lost until now.
    signal.pthread_sigmask(signal.SIG_SETMASK, before - {*FORWARDED, signal.SIGCHLD})
    return None


def _reap_until_exit(agent: int) -> int:
    while True:
        number = signal.sigwait({*FORWARDED, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(agent, number)
        elif (status := _reaped(agent)) is not None:
            return exit_status(os.waitstatus_to_exitcode(status))


def _reaped(agent: int) -> int | None:
    """Reap all that has ended; return the agent's status if it is among them."""
    # Until it ends there is always a child.
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in (0, agent):
            return status if pid else None
