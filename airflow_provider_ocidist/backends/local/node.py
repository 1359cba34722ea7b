"""`python node.py FOLDER PYTHON`: run one node, keep the lines that it prints with their times, and its exit code."""

from __future__ import annotations

import ctypes
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
    stop = _Stop()
    # The handler is set before others can read which process to signal.
    signal.signal(signal.SIGTERM, stop.take)
    pid = os.getpid()
    write(folder / STARTED, {"pid": pid, "began": began(pid), "machine": here(), "at": time.time()})
    try:
        code = _run_agent(folder, python, stop)
    except OSError as error:
        write(
            folder / ENDED, {"exit_code": NOT_RUN, "at": time.time(), "error": f"{python}: {error.strerror}"}
        )
        return NOT_RUN
    write(folder / ENDED, {"exit_code": code, "at": time.time()})
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


def _run_agent(folder: Path, python: str, stop: _Stop) -> int:
    """Save the agent's lines until it ends, and return its exit code. Raises OSError when it cannot be started."""
    parent = os.getpid()
    with (folder / LOG).open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [python, str(folder / ENTRYPOINT)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=lambda: _die_with(parent),  # noqa: PLW1509 - this process has one thread
        )
        stop.pass_to(process)
        assert process.stdout is not None
        for line in process.stdout:
            log.write(json.dumps({"time": time.time(), "text": line.rstrip("\n")}) + "\n")
            log.flush()
        return process.wait()


def _die_with(parent: int) -> None:
    """Let the agent, and so all that it has started, end with this process, the only one that others look at."""
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(NOT_RUN)


def write(file: Path, value: object) -> None:
    """Write a file whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(file)


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
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else f"{boot} {fields[18]}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
