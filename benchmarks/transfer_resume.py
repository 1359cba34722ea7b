"""P12: a transfer of 512 MiB that is killed at half and asked for again: how much moves twice."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import Self
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.transfer import Transfer, Tree

SIZE = 512 << 20
TARGET_PERCENT = 2.0


class Relay:
    """Passes connections on to a server and counts what flows; at a limit it kills a process."""

    def __init__(self, url: str) -> None:
        self._server = urlsplit(url)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.sent = self.received = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()

    @property
    def moved(self) -> int:
        return self.sent + self.received

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection((self._server.hostname or "", self._server.port or 80))
                for side in (client, server):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, target, name in ((client, server, "sent"), (server, client, "received")):
                    threading.Thread(target=self._pass_on, args=(source, target, name), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(data))
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


class Resume(Transfer):
    name = "P12"
    title = "512 MiB down, killed at half and asked for again: what is read twice, of the whole"
    peer_name = "oci os object bulk-download"
    unit = "%"
    target = f"at most {TARGET_PERCENT:.0f} %"
    action = "down"
    tree = Tree(files=1, size=SIZE)
    # So slow that the network is what limits it: else what waits in the system's buffers counts as read.
    conditions = ("10 MB/s a stream",)
    headline = "10 MB/s a stream"
    pairs = 6
    _upward: list[float]

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._upward = []
        with super().setting():
            self._set(self.headline)
            yield

    def ours(self) -> float:
        self._upward.append(self._twice("ours", "up", f"again-{time.monotonic_ns()}"))
        return self._twice("ours", "down", "there")

    def peer(self) -> float:
        return self._twice("cli", "down", "there")

    def _twice(self, client: str, action: str, name: str) -> float:
        """Kill a transfer at half, repeat it, and return by how many percent more has moved than there is."""
        local = self._folder / ("source" if action == "up" else f"down-{time.monotonic_ns()}")
        local.mkdir(exist_ok=True)
        with Relay(self._access.url) as relay:
            broken = self._start(client, action, local, name, url=relay.url)
            while relay.moved < SIZE // 2 and broken.poll() is None:
                time.sleep(0.002)
            broken.kill()
            broken.wait()
            time.sleep(0.5)  # what is on its way still arrives, and counts
            again = self._start(client, action, local, name, url=relay.url)
            if again.wait(timeout=600):
                raise RuntimeError(f"{client} failed after it was broken")
            return 100 * (relay.moved - SIZE) / SIZE

    def floor(self) -> float | None:
        return 0.0

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_PERCENT

    def result(self, samples: Samples) -> dict[str, Any]:
        upward = Interval.of(self._upward)
        return {
            **Comparison.result(self, samples),
            "headline": self.headline,
            "up": {"ours": upward.median, "spread": [upward.low, upward.high], "part_mib": 8},
        }


ROW = Resume()
