"""TensorBoard: reads scalars from the event files that a program writes, as they grow. Standard library only.

An event file is a sequence of records (length, its checksum, data, its checksum), each a protocol buffer `Event`:
https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto and summary.proto there.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVENT_FILE = "tfevents"
LARGEST = 1 << 26
"""Most bytes of a record; a greater length is damage."""
PIECE = 1 << 22
"""Bytes of a file that are read at a time: images in it are skipped."""
SEARCH_INTERVAL = 30.0
"""Seconds between two searches for new event files."""
DEEPEST = 6
"""Most folders inside one another that a search enters."""
MOST_ENTRIES = 20_000
"""Most files and folders that one search looks at."""

Scalar = tuple[int, str, float]
"""Step, tag and value of a scalar."""


class EventFiles:
    """The event files below a folder; only what is written after the first look, by this program, counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._offsets: dict[Path, int] = {path: _size_of(path) for path in event_files_in(folder)}
        self._search_at = 0.0

    def new_scalars(self) -> Iterator[Scalar]:
        """Yield what has been written since the last call. Never raises: metrics are optional."""
        if time.monotonic() >= self._search_at:
            self._search_at = time.monotonic() + SEARCH_INTERVAL
            for path in event_files_in(self.folder):
                self._offsets.setdefault(path, 0)
        for path, offset in list(self._offsets.items()):
            try:
                records, self._offsets[path] = read_records(path, offset)
            except OSError:
                continue
            for record in records:
                yield from scalars_of(record)


def _size_of(path: Path) -> int:
    """Return the bytes of a file; 0 where it is not there: the program, which runs already, may clear up first."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def event_files_in(folder: Path) -> list[Path]:
    """Return the event files below a folder; the search is bounded, as there may be a million images."""
    found: list[Path] = []
    places, looked_at = [(str(folder), 0)], 0
    for place, depth in places:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                looked_at += 1
                if looked_at > MOST_ENTRIES:
                    return found
                if EVENT_FILE in entry.name:
                    found.append(Path(entry.path))
                elif (
                    depth < DEEPEST and not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                ):
                    places.append((entry.path, depth + 1))
    return found


def read_records(path: Path, offset: int) -> tuple[list[bytes], int]:
    """Return the whole records from an offset on, and the offset of the one that is not whole yet.

    Checksums are not verified: a growing file at worst ends in a partial record.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(PIECE)
    records: list[bytes] = []
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if length > LARGEST:
            return records, offset + len(data)
        if at + 16 + length > len(data):
            # A record larger than one read is skipped.
            return records, offset + (at if length + 16 <= PIECE else at + length + 16)
        records.append(data[at + 12 : at + 12 + length])
        at += 16 + length
    return records, offset + at


def scalars_of(event: bytes) -> Iterator[Scalar]:
    """Yield the scalars of one Event: `step` is its field 2, `summary` 5, in it `value` 1 with `tag` 1 and a number."""
    try:
        fields = dict(_fields(event))
        step = int(fields.get(2, 0))
        for _, value in _fields(bytes(fields.get(5, b""))):
            parts = dict(_fields(value))
            number = _number(parts)
            if number is not None:
                yield step, parts[1].decode(), number
    except (struct.error, IndexError, KeyError, ValueError, TypeError, AttributeError):
        return


def _number(value: dict[int, Any]) -> float | None:
    """Return `simple_value`, field 2, or the one number of `tensor`, field 8: `float_val` 5 or `tensor_content` 4."""
    if 2 in value:
        return float(struct.unpack("<f", value[2])[0])
    tensor = dict(_fields(value.get(8, b"")))
    content = tensor.get(5) or tensor.get(4)
    return float(struct.unpack("<f", content)[0]) if content and len(content) == 4 else None


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and content of each field of a protocol buffer; a varint as an int."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _varint(message, at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
