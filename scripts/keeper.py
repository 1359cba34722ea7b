"""Run one program and end all of its processes when we end: `python -I -S keeper.py GRACE PROGRAM ARGUMENTS...`.

The keeper adopts its program's orphans (PR_SET_CHILD_SUBREAPER), and the kernel signals it when its own parent dies
(PR_SET_PDEATHSIG). On that signal, on SIGTERM, or when the program has ended, every descendant gets SIGTERM, and
SIGKILL after GRACE seconds; after SIGUSR1 the program's own end does not count. Standard library only: it starts in
20 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Terminated(BaseException):
    """A signal asks us to end."""


def prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return the processes below one, children before grandchildren; zombies are left out."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold spaces and parentheses itself, and be cut off amid a character.
            state, parent = stat.read_bytes().rpartition(b")")[2].decode().split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found = list(children.get(root, ()))
    for process in found:
        found.extend(children.get(process, ()))
    return found


def send(number: int) -> bool:
    """Signal every descendant; return whether there was one."""
    processes = descendants(os.getpid())
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
    return bool(processes)


def reap() -> None:
    """Reap the dead children that we adopted."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def end_all(grace_s: float) -> None:
    """End every descendant: by SIGTERM first, by SIGKILL after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    alive = send(signal.SIGTERM)
    while alive and time.monotonic() < deadline:
        time.sleep(0.02)
        reap()
        alive = bool(descendants(os.getpid()))
    while send(signal.SIGKILL):
        time.sleep(0.02)
        reap()


def bound_to_keeper() -> None:
    """In the program before it starts: should the keeper itself be killed, die with it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def outlast(_number: int, _frame: object) -> None:
    """The program is about to be killed, and its children live on until we get a signal."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def terminate(number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated(number)


def main() -> int:
    grace_s, parent, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR1, outlast)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # our parent blocked it meanwhile
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    code = 128 + signal.SIGTERM
    try:
        if os.getppid() != int(parent):  # it died before we asked for the signal
            return code
        program = subprocess.Popen(command, preexec_fn=bound_to_keeper)  # noqa: PLW1509  one thread, nothing imported
        code = program.wait()
        while signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN and descendants(os.getpid()):
            reap()
            time.sleep(0.2)
    except Terminated:
        pass
    finally:
        end_all(float(grace_s))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
