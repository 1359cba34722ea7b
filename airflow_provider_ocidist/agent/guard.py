"""The process between agent and training: when the agent ends, for any reason, it kills all that the agent started.

Runs as a plain script, `python -I -S guard.py PIPE COMMAND...`, and imports nothing of the package. The agent
holds the other end of PIPE; when that is closed, by the agent or by its death, everything is killed. Signals
for the training go to the process group that the guard shares with it. The guard ends as the command ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_GRACE = 1.0
"""Seconds for the command's remaining processes, such as a log uploader, to exit."""
KILL_INTERVAL = 0.02
"""Seconds between two looks for processes that are left."""


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Return all living processes below one, nearest first."""
    children: dict[int, list[int]] = {}
    for pid, parent in _living():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found[1:]


def _living() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the start-up time
        if name.isdigit():
            state, parent = state_and_parent(int(name))
            if state not in "ZX":
                yield int(name), parent


def state_and_parent(pid: int) -> tuple[str, int]:
    """Return a process's state, as the kernel's letter, and the id of its parent; `X` and 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # The command's name, in parentheses, may contain blanks and parentheses.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "X", 0
    return fields[0].decode(), int(fields[1])


def kill_descendants(root: int) -> None:
    """Send SIGKILL to all descendants; call again until none is left, as they may start others."""
    for pid in descendants(root):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main(arguments: list[str]) -> int:
    pipe, command = int(arguments[0]), arguments[1:]
    os.set_inheritable(pipe, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    asked_to_end: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A handler rather than SIG_IGN, which the command would inherit.
        signal.signal(number, lambda number, _: asked_to_end.append(number))
    child = _start(command)
    threading.Thread(target=_kill_when_closed, args=(pipe,), daemon=True).start()
    status = _reap_until(child)
    # Some launchers exit at once on SIGTERM, and leave programs running that save a last checkpoint: the agent
    # ends those by closing the pipe.
    _end_leftovers(grace=float("inf") if asked_to_end else LEFTOVER_GRACE)
    return os.waitstatus_to_exitcode(status)


def _start(command: list[str]) -> int:
    guard = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(137)
        # Python ignores these two signals, and exec would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - that is the point
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _kill_when_closed(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    while True:
        kill_descendants(os.getpid())
        time.sleep(KILL_INTERVAL)


def _reap_until(child: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def _end_leftovers(grace: float) -> None:
    deadline = time.monotonic() + grace
    while descendants(os.getpid()):
        if time.monotonic() > deadline:
            kill_descendants(os.getpid())
        time.sleep(KILL_INTERVAL)


def _end_like(code: int) -> int:
    """End by the signal that ended the command, so that the agent sees the same."""
    if code >= 0:
        return code
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code


if __name__ == "__main__":
    sys.exit(_end_like(main(sys.argv[1:])))
