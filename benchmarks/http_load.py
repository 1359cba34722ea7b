"""Load for a server on a core of its own: requests as bytes, sent again and again over a few connections."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

CONNECTIONS = 4

Operations = Mapping[str, Sequence[bytes]]
"""What is sent for each operation, in turn."""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load."""

    wall_s: float
    latencies_s: Sequence[float]
    """Of each request, sorted."""

    def percentile_ms(self, percent: float) -> float:
        return self.latencies_s[int(len(self.latencies_s) * percent / 100)] * 1e3


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one operation costs the server, and how long its clients wait."""

    cpu_us: float
    load: Load


class Served:
    """A server on a core of its own, as far as there are two."""

    def __init__(self, url: str, pid: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname
        assert parts.port
        self.address = (parts.hostname, parts.port)
        self._pid = pid
        cores = sorted(os.sched_getaffinity(0))
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores[:1])

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(self, requests: Sequence[bytes], count: int) -> Measured:
        before = self.cpu_s()
        load = send(self.address, requests, count=count, connections=CONNECTIONS)
        return Measured(cpu_us=(self.cpu_s() - before) / count * 1e6, load=load)


class Unexpected(Exception):
    """A server did not do what it was asked."""


def send(address: tuple[str, int], requests: Sequence[bytes], *, count: int, connections: int) -> Load:
    """Send so many requests in turn, each connection its next one once it has an answer. Raises Unexpected."""
    return asyncio.run(_send(address, requests, count, connections))


async def _send(address: tuple[str, int], requests: Sequence[bytes], count: int, connections: int) -> Load:
    shares = [
        [requests[number % len(requests)] for number in islice(range(count), first, None, connections)]
        for first in range(connections)
    ]
    began = time.perf_counter()
    latencies = await asyncio.gather(*(_send_all(address, share) for share in shares))
    return Load(time.perf_counter() - began, sorted(latency for each in latencies for latency in each))


async def _send_all(address: tuple[str, int], requests: Sequence[bytes]) -> list[float]:
    latencies = []
    stream = None
    for request in requests:
        began = time.perf_counter()
        if stream is None:
            stream = await asyncio.open_connection(*address)
        reader, writer = stream
        writer.write(request)
        if not await _read_answer(reader):
            writer.close()
            stream = None
        latencies.append(time.perf_counter() - began)
    if stream is not None:
        stream[1].close()
    return latencies


async def _read_answer(reader: asyncio.StreamReader) -> bool:
    """Read an answer of known length, and say whether the connection stays."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith((b"http/1.1 2", b"http/1.0 2")):
            raise Unexpected(head.decode() + (await reader.read(2000)).decode(errors="replace"))
        length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        if length:
            await reader.readexactly(int(length))
    except asyncio.IncompleteReadError as error:
        raise Unexpected("the server closed the connection before its answer") from error
    return head.startswith(b"http/1.1") and b"\r\nconnection: close" not in head


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body
