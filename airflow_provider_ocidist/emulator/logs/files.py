"""Log lines on disk: text as it came, and an index that finds lines by time without reading any."""

from __future__ import annotations

import operator
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import islice
from pathlib import Path

MAX_MESSAGE_CHARS = 10_000
"""Most characters of the data field of an entry, where OCI Logging cuts it."""
BLOCK_BYTES = 64 * 1024
"""Least bytes that are read from the text at a time: a search reads line after line."""
COLUMNS = 4
"""Number of columns of the index: time, time of writing, place and size of a line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line to be written: its time (ms since 1970), its stream (0 or 1), and its text."""

    time_ms: int
    stream: int
    text: bytes


class StoredLog:
    """Append-only lines, numbered as they came. About 50 bytes of memory for each, so a million are no burden."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handles: tuple[FileIO, FileIO] | None = None
        self._times = array("Q")
        self._written = array("Q")
        self._places = array("Q")
        self._sizes = array("Q")
        """Bytes of each line, times two, plus its stream."""
        self._sorted_times = array("Q")
        self._sorted_numbers = array("Q")
        """Numbers of the lines in the order of time: a line may arrive after lines with later times."""
        self._block, self._block_start = b"", 0
        self._load()

    def _open(self) -> tuple[FileIO, FileIO]:
        """Return the file of text and the file of the index."""
        if self._handles is None:
            paths = (self._path, self._path.with_suffix(".lines"))
            text, index = (path.open("a+b", buffering=0) for path in paths)
            self._handles = (text, index)
        return self._handles

    def _load(self) -> None:
        text, index = self._open()
        self._end = text.seek(0, os.SEEK_END)
        index.seek(0)
        raw = index.read()
        rows = array("Q")
        # A killed emulator may leave half a row.
        whole = len(raw) - len(raw) % (COLUMNS * rows.itemsize)
        if whole != len(raw):
            index.truncate(whole)
        rows.frombytes(raw[:whole])
        if rows:
            self._take(rows)

    def _take(self, rows: array[int]) -> None:
        first = len(self._times)
        for column, values in enumerate((self._times, self._written, self._places, self._sizes)):
            values.extend(rows[column::COLUMNS])
        times = self._times[first:]
        if self.last_ms <= times[0] and all(map(operator.le, times, islice(times, 1, None))):
            self._sorted_times.extend(times)
            self._sorted_numbers.extend(range(first, len(self._times)))
            return
        for number, time_ms in enumerate(times, first):
            place = bisect_right(self._sorted_times, time_ms)
            self._sorted_times.insert(place, time_ms)
            self._sorted_numbers.insert(place, number)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def last_ms(self) -> int:
        """The latest time that any line has; 0 without lines."""
        return self._sorted_times[-1] if self._sorted_times else 0

    def append(self, lines: Iterable[Line], written_ms: int) -> None:
        """Add lines that came together, at `written_ms`."""
        rows = array("Q")
        texts = []
        place = self._end
        for line in lines:
            rows.extend((line.time_ms, written_ms, place, len(line.text) << 1 | line.stream))
            texts.append(line.text)
            place += len(line.text) + 1
        text, index = self._open()
        text.write(b"\n".join(texts) + b"\n")
        index.write(rows.tobytes())
        self._end = place
        self._take(rows)

    def between(self, start_ms: int, end_ms: int) -> Sequence[int]:
        """Return the numbers of the lines of `start_ms <= time < end_ms`, the earliest first."""
        low, high = (bisect_left(self._sorted_times, each) for each in (start_ms, end_ms))
        return self._sorted_numbers[low:high]

    def time_of(self, number: int) -> int:
        return self._times[number]

    def written_at(self, number: int) -> int:
        return self._written[number]

    def stream_of(self, number: int) -> int:
        return self._sizes[number] & 1

    def read(self, number: int) -> str:
        start, size = self._places[number], self._sizes[number] >> 1
        offset = start - self._block_start
        if not 0 <= offset <= len(self._block) - size:
            # Blocks begin at round places, so that reading backwards is as cheap as forwards.
            self._block_start = start - start % BLOCK_BYTES
            offset = start - self._block_start
            self._block = self._bytes(self._block_start, max(BLOCK_BYTES, offset + size))
        return self._block[offset : offset + size].decode(errors="replace")

    def _bytes(self, start: int, size: int) -> bytes:
        if self._handles is not None:
            return os.pread(self._handles[0].fileno(), size, start)
        # A search reads a block of each of hundreds of logs.
        with self._path.open("rb", buffering=0) as text:
            return os.pread(text.fileno(), size, start)

    def close(self) -> None:
        """Close the files; they are opened again when something is written."""
        if self._handles is not None:
            for handle in self._handles:
                handle.close()
            self._handles = None


class LineSplitter:
    """Cuts the output of one stream into lines, however it arrives; holds no more than one line of it."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now. Empty data ends the stream: the rest is the last line."""
        if not data:
            last, self._rest = self._rest, b""
            return [cut(last)] if last and not self._skipping else []
        first, *others = data.split(b"\n")
        if not others:
            return self._hold(first)
        lines = [] if self._skipping else [cut(self._rest + first)]
        self._skipping, self._rest = False, b""
        return [*lines, *map(cut, others[:-1]), *self._hold(others[-1])]

    def _hold(self, piece: bytes) -> list[bytes]:
        """Keep the start of a line. Once it is too long, it is a line, and the remainder of it is dropped."""
        if self._skipping:
            return []
        self._rest += piece
        if len(self._rest) <= MAX_MESSAGE_CHARS * 4:
            return []
        line, self._rest, self._skipping = cut(self._rest), b"", True
        return [line]


def cut(line: bytes) -> bytes:
    """Return a line without its carriage return, as long as a log entry may be."""
    line = line.removesuffix(b"\r")
    if len(line) <= MAX_MESSAGE_CHARS:
        return line
    return line.decode(errors="replace")[:MAX_MESSAGE_CHARS].encode()
