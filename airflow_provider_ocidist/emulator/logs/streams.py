"""What was written to logs: one file for the output of each job run, one for what clients push to each log."""

from __future__ import annotations

import logging
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.logs.files import Line, LineSplitter, StoredLog
from airflow_provider_ocidist.emulator.nodes.processes import STDERR, STDOUT
from airflow_provider_ocidist.emulator.store import Table

MAX_OPEN_FILES = 64
MAX_INDEXES = 1024
LINES_IN_A_MS = 50
"""Most lines of one node in a millisecond; faster ones are stamped with the milliseconds that follow. A page of a
search holds more (100 by default), so clients that search by time can always go on from the last line of a page."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Lines of one origin in one log: a node's, or (`pushed`) all that clients sent to the log."""

    id: str
    log_id: str
    pushed: bool = False
    source: str = ""
    """OCID of the job run."""
    subject: str = ""
    """Name of a node of a multi-node run. The service documents no field for it."""


class RunOutput:
    """Writes the output of one node, as it comes, to the log of its run."""

    def __init__(self, file: StoredLog, on_close: Callable[[], None]) -> None:
        self._file = file
        self._on_close = on_close
        self._failed = False
        self._newest_ms, self._in_newest = 0, 0
        self._splitters = {STDOUT: LineSplitter(), STDERR: LineSplitter()}

    def write(self, stream: int, data: bytes) -> None:
        lines = self._splitters[stream].feed(data)
        if lines and not self._failed:
            self._append(stream, lines)

    def _append(self, stream: int, lines: Iterable[bytes]) -> None:
        now_ms = time.time_ns() // 1_000_000
        # The clock may be set back, the order of lines may not.
        earliest = max(now_ms, self._file.last_ms)
        try:
            self._file.append([Line(self._stamp(earliest), stream - STDOUT, line) for line in lines], now_ms)
        except OSError as error:
            # A full disk must not end the node; nor may a half-written line be followed by others.
            self._failed = True
            logger.error("the log of a job run ends here: %s", error)

    def _stamp(self, earliest_ms: int) -> int:
        """Return the time of the next line, not before that one."""
        if earliest_ms > self._newest_ms:
            self._newest_ms, self._in_newest = earliest_ms, 0
        elif self._in_newest == LINES_IN_A_MS:
            self._newest_ms, self._in_newest = self._newest_ms + 1, 0
        self._in_newest += 1
        return self._newest_ms

    def close(self) -> None:
        self._on_close()


class Streams:
    """All streams and their files."""

    def __init__(self, context: Context) -> None:
        self._folder = context.folder / "logs"
        self._folder.mkdir(exist_ok=True)
        self._lag_ms = round(context.options.log_lag_s * 1000)
        self._jitter_ms = round(context.options.log_jitter_s * 1000)
        self._streams: Table[Stream] = Table(context.store, "log_stream", Stream)
        self._by_log: dict[str, dict[str, Stream]] = {}
        for stream in self._streams.values():
            self._by_log.setdefault(stream.log_id, {})[stream.id] = stream
        self._writers: dict[str, int] = {}
        """Number of nodes that write to each file: it stays open as long as any does."""
        self._files: dict[str, StoredLog] = {}

    def of_log(self, log_id: str) -> list[Stream]:
        return list(self._by_log.get(log_id, {}).values())

    def _add(self, stream: Stream) -> None:
        if self._streams.get(stream.id) is None:
            self._streams.put(stream.id, stream)
            self._by_log.setdefault(stream.log_id, {})[stream.id] = stream

    def output(self, run_id: str, log_id: str, rank: int | None) -> RunOutput:
        """Open a run's part of a log for one of its nodes; `rank` is None for a single-node run."""
        node = "" if rank is None else f"node-{rank}"
        stream_id = f"{run_id}-{node}" if node else run_id
        self._add(Stream(id=stream_id, log_id=log_id, source=run_id, subject=node))
        file = self.file(stream_id)
        self._writers[stream_id] = self._writers.get(stream_id, 0) + 1
        return RunOutput(file, lambda: self._end_writer(stream_id))

    def _end_writer(self, stream_id: str) -> None:
        left = self._writers.pop(stream_id, 1) - 1
        if left:
            self._writers[stream_id] = left

    def push(self, log_id: str, lines: Iterable[Line]) -> None:
        """Add lines that a client sent, with times of the client's choice."""
        self._add(Stream(id=log_id, log_id=log_id, pushed=True))
        self.file(log_id).append(lines, time.time_ns() // 1_000_000)

    def file(self, stream_id: str) -> StoredLog:
        """Return a stream's file. Of those without a writer, the least recently used are closed."""
        file = self._files.pop(stream_id, None)
        if file is None:
            self._close_some()
            file = StoredLog(self._path(stream_id))
        self._files[stream_id] = file
        return file

    def _close_some(self) -> None:
        idle = [each for each in self._files if each not in self._writers]
        for stream_id in idle[: max(0, len(idle) - MAX_OPEN_FILES + 1)]:
            self._files[stream_id].close()
        for stream_id in idle[: max(0, len(idle) - MAX_INDEXES + 1)]:
            del self._files[stream_id]

    def _path(self, stream_id: str) -> Path:
        return self._folder / f"{stream_id.rpartition('.')[2]}.log"

    def visible(self, file: StoredLog, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the lines that searches find by now."""
        if not self._lag_ms and not self._jitter_ms:
            yield from numbers
            return
        now_ms = time.time_ns() // 1_000_000
        for number in numbers:
            extra = zlib.crc32(number.to_bytes(8, "big")) % (self._jitter_ms + 1)
            if file.written_at(number) + self._lag_ms + extra <= now_ms:
                yield number

    def forget(self, log_id: str) -> None:
        """Remove what was written to a log. Later lines of its nodes are dropped."""
        for stream in self._by_log.pop(log_id, {}).values():
            self._streams.delete(stream.id)
            if stream.id not in self._writers and stream.id in self._files:
                self._files.pop(stream.id).close()
            for path in (self._path(stream.id), self._path(stream.id).with_suffix(".lines")):
                path.unlink(missing_ok=True)

    def reset(self) -> None:
        self.close()
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        self._streams.clear()
        self._by_log.clear()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._writers.clear()
