"""A server that accepts every connection and never answers, as a store behind a network that swallows packets."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from airflow_provider_ocidist.backports import Self


class Silent:
    """Holds all connections open until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._held: list[socket.socket] = []
        self.was_asked = threading.Event()
        threading.Thread(target=self._hold, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse every connection from now on."""
        with contextlib.suppress(OSError):
            # It is closed already.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._held:
            connection.close()

    def _hold(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._held.append(connection)
            self.was_asked.set()
