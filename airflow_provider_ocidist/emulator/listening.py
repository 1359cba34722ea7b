"""Listening: on this machine only, unless both --host and --expose allow other machines."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from starlette.types import Scope

from airflow_provider_ocidist.emulator.errors import StartupError

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - to recognise it
HEAD_S = 10.0
"""Seconds in which a client must send its request, from its first byte on."""
CONNECTIONS = Path("/proc/net/tcp")
EXPOSED = (
    "EXPOSED: anyone who can reach %s port %s and has a key of this emulator can run programs on this machine"
    " as the user who started it, over plain http. The control API and the proxy stay with this machine."
)

logger = logging.getLogger(__name__)


def check_host(host: str, *, expose: bool, verify_signatures: bool) -> None:
    """Raise StartupError for a host that others could reach, unless they are wanted and have to sign."""
    if is_loopback(host):
        return
    if not expose:
        raise StartupError(
            f"{host} is not a loopback address: others could run programs on this machine;"
            f" if that is intended, add --host {host} --expose"
        )
    if not verify_signatures:
        raise StartupError(f"on {host} signatures have to be verified, leave out --no-signatures")


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet. Raises StartupError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it: answers are small, and waiting to fill a packet only delays them.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise StartupError(f"port {port} on {host} cannot be used: {error}") from error
    if not is_loopback(host):
        logger.warning(EXPOSED, *listener.getsockname())
    return listener


def url_of(listener: socket.socket) -> str:
    """Return how this machine reaches it."""
    host, port = listener.getsockname()
    return f"http://{LOOPBACK if host == EVERYWHERE else host}:{port}"


def is_own_user(scope: Scope) -> bool:
    """Return whether the other end of a connection is a program on this machine of the emulator's user, or of root.

    Where the kernel does not list whose its connections are, every program on this machine counts.
    """
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None or not ipaddress.ip_address(client[0]).is_loopback:
        return False
    if not CONNECTIONS.exists():
        return True
    wanted = [_as_the_kernel_writes(*client), _as_the_kernel_writes(*server)]
    for line in CONNECTIONS.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return int(fields[7]) in (os.getuid(), 0)
    return False


def _as_the_kernel_writes(host: str, port: int) -> str:
    packed = ipaddress.ip_address(host).packed
    return f"{int.from_bytes(packed, sys.byteorder):08X}:{port:04X}"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine only."""
    with suppress(OSError):
        found = socket.getaddrinfo(host, None, socket.AF_INET)
        return all(str(info[4][0]).startswith("127.") for info in found)
    return False
