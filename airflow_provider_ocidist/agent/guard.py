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
from collections.abc import Callable, Iterator

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LEFTOVER_GRACE = 1.0
"""Seconds for the command's remaining processes, such as a log uploader, to exit."""
WRITER_GRACE = 60.0
"""Seconds, after a success, for those of them that have a file of a checkpoint open for writing: who is killed leaves
half of it."""
CHECKPOINTS = "OCIDIST_CHECKPOINT_DIR"
"""Variable with the folder of the checkpoints."""
LOGS = (".log", ".out", ".err", ".txt", ".csv", ".tsv", ".jsonl", ".lock", ".wandb", " (deleted)")
"""Ends of the names of files in that folder that are no checkpoints, and may stay open; the last is the mark of the
kernel for a file that has no name any more."""
AWAITS_WRITERS = "awaits writers"
"""Name of the guard's process, as the kernel shows it, while it waits for those."""
LONGEST_STAT = 4096
"""Bytes that no `/proc/PID/stat` exceeds."""
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
        # Of each process of the machine, several times a second: a file object would take twice as long.
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            line = os.read(file, LONGEST_STAT)
        finally:
            os.close(file)
    except OSError:
        return "X", 0
    # The command's name, in parentheses, may contain blanks and parentheses.
    fields = line.rpartition(b")")[2].split(None, 2)
    return fields[0].decode(), int(fields[1])


def awaits_writers(pid: int) -> bool:
    """Whether the guard of this process id waits for what the program has left, and still writes a checkpoint."""
    try:
        # It may be the name of any program, in any bytes.
        with open(f"/proc/{pid}/comm", errors="replace") as file:  # noqa: PTH123 - as above
            return file.read().strip() == AWAITS_WRITERS
    except OSError:
        return False


def _show_that_it_awaits_writers() -> None:
    try:
        with open("/proc/self/comm", "w") as file:  # noqa: PTH123 - as above
            file.write(AWAITS_WRITERS)
    except OSError:
        return


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
    child = _start(command, lambda: _note_signals(asked_to_end))
    threading.Thread(target=_kill_when_closed, args=(pipe,), daemon=True).start()
    status = _reap_until(child)
    # Some launchers exit at once on SIGTERM, and leave programs running that save a last checkpoint: the agent
    # ends those by closing the pipe.
    grace = float("inf") if asked_to_end else LEFTOVER_GRACE
    # The other nodes wait only for some seconds until a node that has failed names the reason.
    cut_off = _end_leftovers(grace, writer_grace=0.0 if status else WRITER_GRACE)
    if cut_off and status == 0:
        os.write(2, b"processes left by the program were still writing a checkpoint and were killed\n")
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(status)


def _start(command: list[str], handle_signals: Callable[[], object]) -> int:
    """Start the command; signals are handled before it begins.

    The child must not have the handlers: what came before it has become the command would end nothing.
    """
    guard = os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        handle_signals()
        os.close(reader)
        os.close(writer)
        return child
    try:
        os.close(writer)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(137)
        os.read(reader, 1)
        # Python ignores these two signals, and exec would inherit that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606 - that is the point
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _note_signals(received: list[int]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: received.append(number))


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


def _end_leftovers(grace: float, writer_grace: float) -> bool:
    """Kill what does not end by itself; return whether some of it wrote a checkpoint until then."""
    began = written_at = time.monotonic()
    cut_off = False
    while left := descendants(os.getpid()):
        now = time.monotonic()
        if now - began > grace:
            write = _write_checkpoints(left)
            if write and now - began <= writer_grace:
                written_at = now
                _show_that_it_awaits_writers()
            elif write or now - written_at > grace:
                # Not at once: between two files of a checkpoint none is open.
                cut_off = cut_off or write
                kill_descendants(os.getpid())
        time.sleep(KILL_INTERVAL)
    return cut_off


def _write_checkpoints(pids: list[int]) -> bool:
    folder = os.environ.get(CHECKPOINTS)
    if not folder:
        return False
    below = f"{os.path.realpath(folder)}/"
    return any(_has_open(pid, below) for pid in pids)


def _has_open(pid: int, below: str) -> bool:
    """Return whether a process has a file below a folder open for writing that may be a checkpoint's."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - as above
    except OSError:
        return False
    return any(_writes(pid, number, below) for number in numbers)


def _writes(pid: int, number: str, below: str) -> bool:
    try:
        name = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 - as above
        if not name.startswith(below) or name.endswith(LOGS) or "tfevents" in name:
            return False
        with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:  # noqa: PTH123 - as above
            fields = file.read().split()
    except OSError:
        return False
    return bool(int(fields[fields.index(b"flags:") + 1], 8) & (os.O_WRONLY | os.O_RDWR))


def _end_like(code: int) -> int:
    """End by the signal that ended the command, so that the agent sees the same."""
    if code >= 0:
        return code
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    # Where that signal does not end it: as a shell gives it.
    return 128 - code


if __name__ == "__main__":
    sys.exit(_end_like(main(sys.argv[1:])))
