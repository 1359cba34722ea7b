"""CountingGate: a port in front of a server that counts, and limits, what all its clients together receive."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import Self

PIECE = 256 << 10


class CountingGate:
    """Passes connections on while it is open."""

    def __init__(self, target: str, bytes_per_s: float) -> None:
        """`target`: the server's address; `bytes_per_s`: of all connections together, to the clients."""
        place = urlsplit(target)
        self._target = (place.hostname or "", place.port or 80)
        self._rate = bytes_per_s
        self._free_at = 0.0
        self._lock = threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.received = 0
        """Bytes that clients have received."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that accepts does not notice that its socket is closed.
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_pass_on, args=(client, server), daemon=True).start()
            threading.Thread(target=self._give, args=(server, client), daemon=True).start()

    def _give(self, server: socket.socket, client: socket.socket) -> None:
        _pass_on(server, client, self._take_turn)

    def _take_turn(self, size: int) -> None:
        """Wait until so many bytes may pass."""
        with self._lock:
            self.received += size
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size / self._rate
        time.sleep(max(0.0, begin - time.monotonic()))


def _pass_on(
    source: socket.socket, target: socket.socket, before: Callable[[int], object] = lambda _: None
) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(PIECE):
            before(len(data))
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        target.close()
