"""The floor of a transfer: a bare parallel HTTP client: no signature, no checksum, no retry, nothing atomic."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import aiohttp
import yarl

FILES_AT_A_TIME = 32
PARTS_AT_A_TIME = 16
PART = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class BareHttp:
    """Moves a tree between a local folder and a prefix of a bucket."""

    bucket_url: str
    prefix: str
    local: Path

    def down(self) -> None:
        asyncio.run(self._in_session(upward=False))

    def up(self) -> None:
        asyncio.run(self._in_session(upward=True))

    async def _in_session(self, *, upward: bool) -> None:
        connections = aiohttp.TCPConnector(limit=64)
        limit = asyncio.Semaphore(FILES_AT_A_TIME)
        async with aiohttp.ClientSession(connector=connections, read_bufsize=1 << 20) as http:
            if upward:
                sizes = _sizes(self.local)
                await asyncio.gather(*(self._send(http, limit, name, size) for name, size in sizes))
            else:
                found = await self._listed(http)
                await asyncio.gather(*(self._fetch(http, limit, name, size) for name, size in found))

    def _at(self, kind: str, name: str, query: str = "") -> yarl.URL:
        return yarl.URL(f"{self.bucket_url}/{kind}/{quote(self.prefix + name, safe='')}{query}", encoded=True)

    async def _listed(self, http: aiohttp.ClientSession) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        query = {"prefix": self.prefix, "fields": "name,size", "limit": "1000"}
        while True:
            async with http.get(f"{self.bucket_url}/o", params=query) as answer:
                page = await answer.json()
            found += [(item["name"].removeprefix(self.prefix), item["size"]) for item in page["objects"]]
            if not page.get("nextStartWith"):
                return found
            query["start"] = page["nextStartWith"]

    async def _fetch(
        self, http: aiohttp.ClientSession, limit: asyncio.Semaphore, name: str, size: int
    ) -> None:
        file = _created(self.local / name)

        async def part(place: int) -> None:
            wanted = {"range": f"bytes={place}-{min(place + PART, size) - 1}"}
            async with limit, http.get(self._at("o", name), headers=wanted) as answer:
                async for piece in answer.content.iter_any():
                    os.pwrite(file, piece, place)
                    place += len(piece)

        await asyncio.gather(*(part(place) for place in range(0, size, PART)))
        os.close(file)

    async def _send(
        self, http: aiohttp.ClientSession, limit: asyncio.Semaphore, name: str, size: int
    ) -> None:
        if size > PART:
            await self._send_parts(http, name, size)
            return
        data = _bytes_of(self.local / name, 0)
        async with limit, http.put(self._at("o", name), data=data) as answer:
            answer.raise_for_status()

    async def _send_parts(self, http: aiohttp.ClientSession, name: str, size: int) -> None:
        async with http.post(f"{self.bucket_url}/u", json={"object": self.prefix + name}) as answer:
            upload = quote((await answer.json())["uploadId"], safe="")
        few = asyncio.Semaphore(PARTS_AT_A_TIME)

        async def part(number: int) -> dict[str, object]:
            at = self._at("u", name, f"?uploadId={upload}&uploadPartNum={number + 1}")
            async with few, http.put(at, data=_bytes_of(self.local / name, number * PART)) as answer:
                return {"partNum": number + 1, "etag": answer.headers["etag"]}

        parts = await asyncio.gather(*(part(number) for number in range(-(-size // PART))))
        commit = self._at("u", name, f"?uploadId={upload}")
        async with http.post(commit, json={"partsToCommit": parts}) as answer:
            answer.raise_for_status()


def _sizes(local: Path) -> list[tuple[str, int]]:
    files = [path for path in local.rglob("*") if path.is_file()]
    return [(str(path.relative_to(local)), path.stat().st_size) for path in files]


def _created(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT)


def _bytes_of(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), PART, offset)
