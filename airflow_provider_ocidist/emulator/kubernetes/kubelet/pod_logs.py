"""Logs of containers: a file for each run of a container, a line of it with the time when it came."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from airflow_provider_ocidist.emulator.kubernetes.metadata import moment

MAX_LINE_BYTES = 16 * 1024
"""Most bytes of a line; longer lines are split, as the container runtimes do."""


def stamp_now() -> bytes:
    """Return this moment to the nanosecond, as logs have it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


class LogFile:
    """Takes output in pieces, and writes whole lines."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._pending: dict[int, bytes] = {}

    def write(self, stream: int, data: bytes) -> None:
        """Take a piece of a stream (1 or 2). An empty one ends the stream."""
        text = self._pending.pop(stream, b"") + data
        *lines, rest = text.split(b"\n")
        if rest and (not data or len(rest) > MAX_LINE_BYTES):
            lines, rest = [*lines, rest], b""
        if rest:
            self._pending[stream] = rest
        if lines and not self._file.closed:
            when = stamp_now()
            self._file.write(b"".join(b"%b %b\n" % (when, line) for line in lines))

    def close(self) -> None:
        for stream in list(self._pending):
            self.write(stream, b"")
        self._file.close()


class PodLogs:
    """The logs of all pods that are there. Safe to use from any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str], list[Path]] = {}

    def open(self, uid: str, container: str) -> LogFile:
        """Begin the log of a container's next run; of those before only the last is kept."""
        with self._lock:
            runs = self._runs.setdefault((uid, container), [])
            path = self._folder / uid / f"{container}.{len(runs)}.log"
            runs.append(path)
            for old in runs[:-2]:
                old.unlink(missing_ok=True)
        return LogFile(path)

    def path(self, uid: str, container: str, *, previous: bool = False) -> Path | None:
        """Return the file of a container's newest run, or of that before; None where there was none."""
        with self._lock:
            runs = self._runs.get((uid, container), [])
            index = 2 if previous else 1
            return runs[-index] if len(runs) >= index else None

    def forget(self, uid: str) -> None:
        with self._lock:
            for key in [key for key in self._runs if key[0] == uid]:
                for path in self._runs.pop(key):
                    path.unlink(missing_ok=True)


def tail(path: Path, lines: int) -> str:
    """Return the last lines of a log, without their times."""
    found = path.read_bytes().splitlines()[-lines:]
    return "\n".join(line.partition(b" ")[2].decode(errors="replace") for line in found)


def selected(lines: Iterable[bytes], *, since: datetime | None, count: int | None) -> list[bytes]:
    """Return the lines that a client wants: not older than `since`, and so many of the last."""
    found = [line for line in lines if since is None or _time(line) >= since]
    return found if count is None else found[len(found) - count :] if count < len(found) else found


def _time(line: bytes) -> datetime:
    text = line.partition(b" ")[0].decode()
    return moment(f"{text[:26]}Z")
