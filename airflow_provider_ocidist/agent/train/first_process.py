"""Process 1 of a container: buries orphans and passes signals on, while a child of it goes on as the agent.

The agent itself cannot bury what it did not start: it could not tell an orphan from a child whose exit code somebody is
about to ask for. Whatever ends process 1 ends all that runs in the container, by the kernel's own hand.
"""

from __future__ import annotations

import os
import signal

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
    return _bury_until_end_of(agent) if agent else None


def _bury_until_end_of(agent: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
