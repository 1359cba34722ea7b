"""Bodies on disk: received in pieces, sent in pieces or ranges, never whole in memory."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import shutil
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from airflow_provider_ocidist.emulator.errors import ApiError

PIECE_BYTES = 1024 * 1024
"""Bytes that are written or sent at a time."""
INLINE_BYTES = 128 * 1024
"""Bytes up to which a write takes less time than a hop to another thread."""


class Digest(Protocol):
    """What `hashlib` and checksum libraries have in common."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Segment:
    """A file that is (a piece of) a body."""

    path: Path
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Received:
    """A body that has arrived, in a file of its own."""

    path: Path
    size: int
    md5: str
    """MD5 of the body in Base64, as the service writes checksums."""
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Range:
    """The bytes `start..end-1` of a body; `partial` when the client asked for a range."""

    start: int
    end: int
    total: int
    partial: bool = False


async def receive_file(
    chunks: AsyncIterator[bytes],
    folder: Path,
    *,
    limit: int | None = None,
    digests: Mapping[str, Digest] | None = None,
) -> Received:
    """Write a body to a new file in the folder. Nothing is left there when it does not arrive whole."""
    return await _receive(chunks, folder / f"receiving-{uuid.uuid4().hex}", limit, digests or {})


async def _receive(
    chunks: AsyncIterator[bytes], path: Path, limit: int | None, digests: Mapping[str, Digest]
) -> Received:
    writer = _Writer(path, {"md5": hashlib.md5(usedforsecurity=False), **digests}, limit)
    try:
        async for piece in _gathered(chunks):
            await writer.take(piece)
        await writer.settle()
    except BaseException:
        await writer.discard()
        raise
    return writer.finish()


class _Writer:
    """Writes and hashes what it takes: a large piece in another thread, while the next one comes in."""

    def __init__(self, path: Path, digests: Mapping[str, Digest], limit: int | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._path = path
        self._digests = digests
        self._limit = limit
        self._size = 0
        self._busy: asyncio.Future[None] | None = None

    async def take(self, piece: BodyPart) -> None:
        self._size += piece.size
        if self._limit is not None and self._size > self._limit:
            raise ApiError(413, "RequestEntityTooLarge", f"At most {self._limit} bytes are allowed.")
        await self.settle()
        if piece.size <= INLINE_BYTES:
            self._write(piece.chunks)
        else:
            self._busy = asyncio.get_running_loop().run_in_executor(None, self._write, piece.chunks)

    async def settle(self) -> None:
        """Wait for the piece that is being written."""
        if self._busy is not None:
            # A task that is canceled here still has to wait for it, in `discard`.
            await asyncio.shield(self._busy)
            self._busy = None

    def _write(self, chunks: Sequence[bytes]) -> None:
        for chunk in chunks:
            for digest in self._digests.values():
                digest.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[os.write(self._file, view) :]

    async def discard(self) -> None:
        if self._busy is not None:
            await asyncio.wait([self._busy])
        os.close(self._file)
        self._path.unlink(missing_ok=True)

    def finish(self) -> Received:
        os.close(self._file)
        sums = {name: base64.b64encode(digest.digest()).decode() for name, digest in self._digests.items()}
        return Received(path=self._path, size=self._size, md5=sums.pop("md5"), digests=sums)


@dataclass(frozen=True, slots=True)
class BodyPart:
    """Some of a body: what the network has brought, chunk by chunk."""

    chunks: Sequence[bytes]
    size: int


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[BodyPart]:
    """Yield pieces of about a megabyte: the network brings 64 KiB at a time."""
    held: list[bytes] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES:
            yield BodyPart(held, size)
            held, size = [], 0
    if size:
        yield BodyPart(held, size)


def read_range(header: str | None, total: int) -> Range:
    """Understand a Range header. Raises 416 for a range outside the body; several ranges mean all of it."""
    match = re.fullmatch(r"bytes=([0-9]{0,99})-([0-9]{0,99})", header or "")
    if match is None or not (match[1] or match[2]):
        return Range(0, total, total)
    if match[1]:
        start, end = int(match[1]), min(int(match[2]) + 1 if match[2] else total, total)
    else:
        start, end = max(total - int(match[2]), 0), total
    if start >= end:
        raise ApiError(
            416,
            "InvalidRange",
            f"The range {header} is outside the {total} bytes of the body.",
            headers={"content-range": f"bytes */{total}"},
        )
    return Range(start, end, total, partial=True)


class Files:
    """Body files by name. One that is being sent stays to the last byte, also when its object is replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._readers: Counter[str] = Counter()
        self._doomed: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    async def receive(self, chunks: AsyncIterator[bytes], digests: Mapping[str, Digest]) -> Received:
        """Take a body in. Until a record names its file, it is invisible, and a restart removes it."""
        return await _receive(chunks, self._new_path(), None, digests)

    def path(self, name: str) -> Path:
        """Return the path of a file. All share one folder: in 256 folders ext4 takes six times as long to create it."""
        return self.folder / name

    def _new_path(self) -> Path:
        return self.path(uuid.uuid4().hex)

    def link(self, name: str) -> str:
        """Return another name of the same bytes."""
        other = self._new_path()
        other.hardlink_to(self.path(name))
        return other.name

    def hold(self, names: Sequence[str]) -> Callable[[], None]:
        """Keep files until the returned function is called."""
        self._readers.update(names)
        return lambda: self._release(names)

    def _release(self, names: Sequence[str]) -> None:
        self._readers.subtract(names)
        self.remove([name for name in names if name in self._doomed])

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            if self._readers[name] > 0:
                self._doomed.add(name)
                continue
            del self._readers[name]
            self._doomed.discard(name)
            self.path(name).unlink(missing_ok=True)

    def keep_only(self, names: Container[str]) -> None:
        """Remove the partial files of a killed emulator."""
        for path in self.folder.iterdir():
            if path.name not in names:
                path.unlink()

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self._readers.clear()
        self._doomed.clear()


class FileAnswer(Response):
    """Sends a body from its files, a megabyte at a time. Calls `release` when it is sent or dropped."""

    def __init__(
        self,
        segments: Sequence[Segment],
        part: Range,
        headers: Mapping[str, str],
        *,
        head: bool = False,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        length = part.end - part.start
        sent = {**headers, "content-length": str(length), "accept-ranges": "bytes"}
        if part.partial:
            sent["content-range"] = f"bytes {part.start}-{part.end - 1}/{part.total}"
        super().__init__(status_code=206 if part.partial else 200, headers=sent)
        self._pieces = [] if head else pieces(segments, part)
        self._length = length
        self.release = release

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            if self._length <= PIECE_BYTES:
                body = b"".join(read_pieces(self._pieces))
                await send(start)
                await send({"type": "http.response.body", "body": body})
            else:
                await send(start)
                await self._stream(receive, send)
        finally:
            self.release()

    async def _stream(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            for chunk in read_pieces(self._pieces):
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                # A fast client never makes `send` wait, so other tasks would starve.
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    message: Mapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


def pieces(segments: Sequence[Segment], part: Range) -> list[tuple[Path, int, int]]:
    """Return what a range touches: (file, first byte, past the last byte)."""
    found = []
    offset = 0
    for segment in segments:
        start, end = max(part.start - offset, 0), min(part.end - offset, segment.size)
        if start < end:
            found.append((segment.path, start, end))
        offset += segment.size
    return found


def read_pieces(pieces: Sequence[tuple[Path, int, int]]) -> Iterator[bytes]:
    for path, start, end in pieces:
        file = os.open(path, os.O_RDONLY)
        place = start
        try:
            while place < end and (chunk := os.pread(file, min(PIECE_BYTES, end - place), place)):
                place += len(chunk)
                yield chunk
        finally:
            os.close(file)
