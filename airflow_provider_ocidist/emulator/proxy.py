"""Proxy: stands in for the hosts of OCI, so that two environment variables redirect any client."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from base64 import b64encode
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from airflow_provider_ocidist.emulator.certificates import Authority
from airflow_provider_ocidist.emulator.listening import HEAD_S

DOMAINS = ("oraclecloud.com", "customer-oci.com")
"""Domains of the services' hosts: objectstorage.us-ashburn-1.oraclecloud.com, auth.us-ashburn-1..., and so on."""
MAX_HEAD_BYTES = 16 * 1024
MAX_HOST, MAX_LABEL = 253, 63
"""Most characters of a name, and between two of its dots."""
RETRY_S = 0.1
GOODBYE: dict[str, Any] = {"ssl_shutdown_timeout": 0.2} if sys.version_info >= (3, 11) else {}
"""Seconds that a client has to confirm the end of TLS. An idle one never does."""
CHUNK_BYTES = 256 * 1024
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
NODE = "node"
"""User name of programs on nodes: to them, as on a real one, all hosts are open."""
NODE_HEADER = b"\r\nproxy-authorization: basic " + b64encode(f"{NODE}:".encode())
REFUSED_HOST = "The emulator stands in for OCI only; start it with --proxy-pass-through to reach {host}"
REFUSED_METHOD = "This proxy is for https only; set HTTPS_PROXY and not HTTP_PROXY"


class Refused(Exception):
    """What the client asked the proxy for is not done. The text must fit on a status line."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.answer = f"HTTP/1.1 {status} {text}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode()


class Proxy:
    """Answers CONNECT. A tunnel to OCI ends here: `protocol` speaks HTTP on the decrypted connection."""

    def __init__(
        self, authority: Authority, protocol: Callable[[], asyncio.BaseProtocol], *, pass_through: bool
    ) -> None:
        self._authority = authority
        self._protocol = protocol
        self._pass_through = pass_through
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, listener: socket.socket) -> None:
        listener.listen(1024)
        listener.setblocking(False)
        self._spawn(self._accept(listener))

    async def close(self) -> None:
        """Take no more tunnels, and end those to other hosts. Those to OCI end with the server."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                # No descriptor is free, most likely; some will be.
                await asyncio.sleep(RETRY_S)
                continue
            connection.setblocking(False)
            self._spawn(self._serve(connection))

    async def _serve(self, connection: socket.socket) -> None:
        """Open one tunnel. The client reports its failures: it sees the connection end."""
        try:
            head = await asyncio.wait_for(_head(connection), HEAD_S)
            host, port = target_of(head)
            await self._open(connection, host, port, others=self._pass_through or is_node(head))
        except Refused as refusal:
            with suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(connection, refusal.answer)
            connection.close()
        except (OSError, asyncio.TimeoutError):
            # The client is gone, does not trust us, or never sent a request.
            connection.close()
        except asyncio.CancelledError:
            connection.close()
            raise

    async def _open(self, connection: socket.socket, host: str, port: int, *, others: bool) -> None:
        if is_oci(host):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(connection, ESTABLISHED)
            context = self._authority.context(host)
            await loop.connect_accepted_socket(self._protocol, connection, ssl=context, **GOODBYE)
        elif others:
            await _join(connection, host, port)
        else:
            raise Refused(403, REFUSED_HOST.format(host=host))


def target_of(head: bytes) -> tuple[str, int]:
    """Return host and port that a request to a proxy is for. Raises Refused unless it is a CONNECT."""
    match = re.match(rb"CONNECT ([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5}) HTTP/1\.[01]\r\n", head)
    if match is None:
        raise Refused(405, REFUSED_METHOD)
    host, port = match[1].decode().strip("[]").lower().rstrip("."), int(match[2])
    if len(host) > MAX_HOST or not all(0 < len(label) <= MAX_LABEL for label in host.split(".")):
        raise Refused(400, "A host's name has at most 253 characters, and from 1 to 63 between two dots")
    if not 0 < port < 2**16:
        raise Refused(400, f"There is no port {port}")
    return host, port


def is_node(head: bytes) -> bool:
    return NODE_HEADER.lower() in head.lower()


def for_nodes(url: str) -> str:
    """Return the address of the proxy as nodes get it."""
    return url.replace("://", f"://{NODE}:@", 1)


def is_oci(host: str) -> bool:
    return host.endswith(tuple(f".{domain}" for domain in DOMAINS))


async def _head(connection: socket.socket) -> bytes:
    """Return a request up to its blank line; the client sends nothing more before it has our answer."""
    loop = asyncio.get_running_loop()
    head = b""
    while b"\r\n\r\n" not in head:
        chunk = await loop.sock_recv(connection, MAX_HEAD_BYTES)
        if not chunk or len(head) > MAX_HEAD_BYTES:
            raise ConnectionAbortedError("no request")
        head += chunk
    return head


async def _join(connection: socket.socket, host: str, port: int) -> None:
    """Pass bytes both ways until both sides have ended."""
    try:
        far_reader, far_writer = await asyncio.open_connection(host, port)
    except OSError as error:
        raise Refused(502, f"{host} port {port} cannot be reached") from error
    near_reader, near_writer = await asyncio.open_connection(sock=connection)
    near_writer.write(ESTABLISHED)
    try:
        await asyncio.gather(_pump(near_reader, far_writer), _pump(far_reader, near_writer))
    finally:
        near_writer.close()
        far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
