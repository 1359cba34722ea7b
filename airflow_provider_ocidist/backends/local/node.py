"""`python node.py FOLDER PYTHON`: run one node, keep the lines that it prints with their times, and its exit code."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STARTED, ENDED, LOG, ERROR, LOCK = "started.json", "ended.json", "log.jsonl", "error.txt", "lock"
ENTRYPOINT = "app/ocidist/node.py"
SWITCH = "OCIDIST_SWITCH"
"""Variable with the process in whose network the switch is that connects the nodes; empty without networks of their
own."""
BRIDGE = "switch"
ADDRESSES, RANK = "OCIDIST_ADDRESSES", "OCIDIST_NODE_RANK"
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
NOT_RUN = 127
"""Exit code of a node whose agent could not be started, as shells have it."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
END_SIZE = 4096
"""Bytes of the record of a node's end, filled up with blanks."""


def main(folder: Path, python: str) -> int:
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Started before, by a submission that was cut off.
            return 0
        return 0 if (folder / STARTED).exists() else run(folder, python)


def run(folder: Path, python: str) -> int:
    """Run the agent to its end, and return its exit code; negative for a signal."""
    if switch := os.environ.get(SWITCH):
        plug_in(switch, os.environ[ADDRESSES].split(",")[int(os.environ[RANK])])
    _reserve(folder)
    stop = _Stop()
    # The handler is set before others can read which process to signal.
    signal.signal(signal.SIGTERM, stop.take)
    pid = os.getpid()
    write(folder / STARTED, {"pid": pid, "began": began(pid), "machine": here(), "at": time.time()})
    log = _Log(folder / LOG)
    try:
        agent = _start_agent(folder, python)
    except OSError as error:
        _record(folder, {"exit_code": NOT_RUN, "error": f"{python}: {error.strerror}", "errno": error.errno})
        return NOT_RUN
    stop.pass_to(agent)
    code = _keep_lines(agent, log)
    _record(folder, {"exit_code": code, **({"log_lacks": log.lacks} if log.lacks else {})})
    return code


def plug_in(switch: str, address: str) -> None:
    """Give this process, and all that it starts, a network of its own, with a cable to the switch."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network of its own for this node")
    cable = f"cable{os.getpid()}"
    # One that takes this node's place has the same card, so that the others need not look for it anew.
    card = ":".join(["02", "00", *(f"{int(part):02x}" for part in address.split("."))])
    for command in (
        "ip link set lo up",
        f"ip link add eth0 address {card} type veth peer name {cable} netns {switch}",
        f"ip address add {address}/24 dev eth0",
        "ip link set eth0 up",
        f"nsenter --net=/proc/{switch}/ns/net ip link set {cable} master {BRIDGE} up",
    ):
        subprocess.run(command.split(), check=True)


class _Stop:
    """Passes SIGTERM on to the agent, also if it comes before there is one."""

    def __init__(self) -> None:
        self._asked = False
        self._agent: subprocess.Popen[str] | None = None

    def take(self, *_: object) -> None:
        self._asked = True
        if self._agent is not None:
            self._agent.terminate()

    def pass_to(self, agent: subprocess.Popen[str]) -> None:
        self._agent = agent
        if self._asked:
            agent.terminate()


class _Log:
    """The file of the lines that a node has printed. A disk without room costs lines, and never the node."""

    def __init__(self, file: Path) -> None:
        self.lacks: str | None = None
        """Reason why lines are missing; None: none is."""
        self._file = file
        self._descriptor = -1
        self._is_torn = False
        """Whether the last line is missing, or a part of it."""

    def add(self, text: str) -> None:
        """Write a line, and before it, after a gap, that there is one."""
        gap = b""
        if self._is_torn:
            # The first byte ends what there is of a line; nobody reads a line that is no JSON.
            gap = b"\n" + _entry(f"ocidist: lines of this node are missing here: {self.lacks}")
        try:
            self._write(gap + _entry(text))
            self._is_torn = False
        except OSError as error:
            self._is_torn, self.lacks = True, error.strerror

    def _write(self, data: bytes) -> None:
        # Without a buffer: it would hold what could not be written, and fail again with it.
        if self._descriptor < 0:
            self._descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        while data:
            data = data[os.write(self._descriptor, data) :]


def _entry(text: str) -> bytes:
    return json.dumps({"time": time.time(), "text": text}).encode() + b"\n"


def _start_agent(folder: Path, python: str) -> subprocess.Popen[str]:
    """Start the agent. Raises OSError when it cannot be started."""
    parent = os.getpid()
    return subprocess.Popen(
        [python, str(folder / ENTRYPOINT)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - this process has one thread
    )


def _keep_lines(agent: subprocess.Popen[str], log: _Log) -> int:
    """Save the agent's lines until it ends, and return its exit code."""
    assert agent.stdout is not None
    for line in agent.stdout:
        log.add(line.rstrip("\n"))
    return agent.wait()


def _reserve(folder: Path) -> None:
    """Take the room on the disk that the record of this node's end needs: the node itself may fill it."""
    _draft_of(folder / ENDED).write_bytes(b" " * END_SIZE)


def _record(folder: Path, end: dict[str, object]) -> None:
    """Record how the node has ended, in the room that was taken for it."""
    try:
        _write_end(folder, end)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        # A file system that copies on write (btrfs, ZFS) takes a new block for what is overwritten: the log gives way.
        with suppress(OSError):
            os.truncate(folder / LOG, 0)
        _write_end(folder, {**end, "log_lacks": error.strerror})


def _write_end(folder: Path, end: dict[str, object]) -> None:
    new, text = _draft_of(folder / ENDED), json.dumps({**end, "at": time.time()})
    with open(os.open(new, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as file:  # noqa: PTH123 - keeps what is there
        file.write(text.encode().ljust(END_SIZE))
    new.replace(folder / ENDED)


def _die_with(parent: int) -> None:
    """Let the agent, and so all that it has started, end with this process, the only one that others look at."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(NOT_RUN)


def write(file: Path, value: object) -> None:
    """Write a file whole or not at all."""
    new = _draft_of(file)
    new.write_text(json.dumps(value))
    new.replace(file)


def _draft_of(file: Path) -> Path:
    return file.with_suffix(".new")


def here() -> dict[str, str]:
    """Return what distinguishes this machine, since its start, and this container from others that share a folder."""
    found = {"host": socket.gethostname()}
    with suppress(OSError):
        found["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        found["processes"] = str(Path("/proc/self/ns/pid").readlink())
    return found


def began(pid: int) -> str | None:
    """Return what distinguishes a process from a later one of the same number; None where this system has none.

    Of one that has ended and is only still listed, it is the empty text.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name before may be cut off amid a character.
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except OSError:
        return None
    return "" if state in "ZX" else f"{boot} {fields[18]}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
