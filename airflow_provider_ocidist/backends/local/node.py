"""`python node.py FOLDER`: run one node, keep the lines that it prints with their times, and its exit code."""

from __future__ import annotations

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
    pid = os.getpid()
    write(folder / STARTED, {"pid": pid, "began": began(pid), "machine": here(), "at": time.time()})
    with (folder / LOG).open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [python, str(folder / ENTRYPOINT)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        assert process.stdout is not None
        for line in process.stdout:
            log.write(json.dumps({"time": time.time(), "text": line.rstrip("\n")}) + "\n")
            log.flush()
        code = process.wait()
    write(folder / ENDED, {"exit_code": code, "at": time.time()})
    return code


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
