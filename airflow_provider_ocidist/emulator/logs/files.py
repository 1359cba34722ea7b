"""Output of one node on disk: text as it came, and an index of when each line did."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_MESSAGE_CHARS = 10_000
"""OCI Logging cuts the data field of an entry here."""
FIELDS = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One log entry: its place in the file, when it came (ms since 1970), from which stream (1 or 2)."""

    number: int
    time_ms: int
    stream: int
    message: str


class LogFile:
    """Append-only lines. 16 bytes of memory for each, so that a million lines are no burden."""

    def __init__(self, path: Path) -> None:
        self._text = path.open("a+b", buffering=0)
        self._index_file = path.with_suffix(".index").open("a+b", buffering=0)
        self._times = array("Q")
        self._places = array("Q")
        """Offset of the line's first byte, times two, plus one when it came from stderr."""
        self._end = self._text.seek(0, 2)
        self._load()

    def _load(self) -> None:
        self._index_file.seek(0)
        raw = self._index_file.read()
        entries = array("Q")
        # A killed emulator may leave half an entry.
        entries.frombytes(raw[: len(raw) - len(raw) % (FIELDS * 8)])
        self._times, self._places = entries[0::FIELDS], entries[1::FIELDS]
        self._end = self._text.seek(0, 2)

    def __len__(self) -> int:
        return len(self._times)

    def append(self, stream: int, lines: Sequence[bytes], time_ms: int) -> None:
        """Add lines that came together. Time never runs backwards within a file, so it can be searched."""
        if self._times:
            time_ms = max(time_ms, self._times[-1])
        entries = array("Q")
        place = self._end
        for line in lines:
            entries.append(time_ms)
            entries.append(place << 1 | (stream - 1))
            place += len(line) + 1
        self._text.write(b"\n".join(lines) + b"\n")
        self._index_file.write(entries.tobytes())
        self._times.extend(entries[0::FIELDS])
        self._places.extend(entries[1::FIELDS])
        self._end = place

    def between(self, start_ms: int, end_ms: int) -> range:
        """Return the numbers of the lines of `start_ms <= time < end_ms`."""
        return range(bisect_left(self._times, start_ms), bisect_left(self._times, end_ms))

    def time_of(self, number: int) -> int:
        return self._times[number]

    def stream_of(self, number: int) -> int:
        return (self._places[number] & 1) + 1

    def read(self, number: int) -> Line:
        start = self._places[number] >> 1
        end = self._places[number + 1] >> 1 if number + 1 < len(self) else self._end
        self._text.seek(start)
        message = self._text.read(end - start - 1).decode(errors="replace")
        return Line(number, self._times[number], self.stream_of(number), message)

    def close(self) -> None:
        self._text.close()
        self._index_file.close()


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
