"""Ends all that a program started: `sweep_after_us()` at its start ensures that, even after `kill -9`.

A keeper (scripts/service.py) ends one service gracefully. This is for the rest that tests and benchmarks start: a
process of its own waits for the program's end, and kills whatever has the program's mark in its environment.
Standard library only: it starts in 20 ms.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

NAME = "STARTED_BY_PROGRAM"
"""Name of the variable that all inherit, processes in sessions of their own too."""
ROUNDS = 3
"""Number of rounds in a row that must find nothing: a process may just have started another."""
ROUND_S = 0.05


def sweep_after_us() -> None:
    """Have all that we start from now on killed when we have ended, unless a program that started us has done so."""
    if NAME in os.environ or not hasattr(os, "pidfd_open"):
        return
    mark = uuid.uuid4().hex
    command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), mark]
    nothing = subprocess.DEVNULL
    # In a session of its own: Ctrl-C, or the end of a terminal, must not take it away first.
    sweeper = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
    # It outlives us on purpose; Popen would warn of that at our exit.
    sweeper.returncode = 0
    os.environ[NAME] = mark


def marked(mark: str) -> list[int]:
    """Return the living processes that started with a mark in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            # A zombie's is empty.
            variables = place.joinpath("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{NAME}={mark}".encode() in variables:
            found.append(int(place.name))
    return found


def wait_for_end(program: int) -> None:
    """Return when a process, our parent, is gone."""
    try:
        watched = os.pidfd_open(program)
    except ProcessLookupError:
        return
    # Before the line above it may have ended, and its number may be another's.
    if os.getppid() == program:
        select.select([watched], [], [])


def main(program: int, mark: str) -> None:
    wait_for_end(program)
    clean = 0
    while clean < ROUNDS:
        left = marked(mark)
        clean = 0 if left else clean + 1
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(ROUND_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
