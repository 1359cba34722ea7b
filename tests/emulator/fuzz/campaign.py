"""A campaign: an emulator, thousands of requests, and three properties that hold after each of them.

1. Each request is answered in the form of its API, and costs the emulator less than a second of a processor.
2. Nothing outside of the state folder is changed.
3. The emulator's memory stays bounded.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import Self
from tests.emulator.fuzz.api import Answer, Api, Broken, Request

ROOT = Path(__file__).resolve().parents[3]
MOST_S = 1.0
"""Of a processor, for one request."""
MOST_GROWTH = 600 * 2**20
"""How many bytes of memory more than at the start the emulator may ever have."""
PATIENCE_S = 60
"""For an answer, on a machine that has other things to do."""
SHORT_S = 0.2
"""For an answer to what is no request."""
PERIOD = 1_000
"""Requests after which the emulator is looked at, and begins anew."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Watched:
    """An emulator in a process of its own, in a folder where nothing but its state may change."""

    folder: Path
    options: Sequence[str] = ()
    ready: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    first_bytes: int = 0

    def __enter__(self) -> Self:
        for name in ("home", "tmp", "cwd"):
            (self.folder / name).mkdir(parents=True)
        self.start()
        self.first_bytes = self.memory()
        return self

    def start(self) -> None:
        place = self.folder / "ready.json"
        environment = {**os.environ, "HOME": str(self.folder / "home"), "TMPDIR": str(self.folder / "tmp")}
        environment["PYTHONPATH"] = str(ROOT)
        program = [sys.executable, "-m", "tests.emulator.fuzz.watched_emulator"]
        state = self.folder / "state"
        words = [str(self.notes), str(state), "--quiet", "--ready", str(state / "ready.json"), "--seed", "1"]
        words += self.options
        place = state / "ready.json"
        place.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*program, *words], env=environment, cwd=self.folder / "cwd", stderr=log
            )
        deadline = time.monotonic() + PATIENCE_S
        while not place.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Broken("the emulator does not start on the state that it has left")
            time.sleep(0.02)
        self.ready = json.loads(place.read_text())

    @contextmanager
    def connected(self, address: str) -> Iterator[socket.socket]:
        """Connect to an address of the emulator."""
        place = urlsplit(address)
        plain = socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE_S)
        with plain:
            if place.scheme != "https":
                yield plain
                return
            with self.tls.wrap_socket(plain, server_hostname=place.hostname) as client:
                yield client

    @cached_property
    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ready["ca_file"])

    @property
    def notes(self) -> Path:
        return self.folder / "outside.txt"

    @property
    def log(self) -> Path:
        return self.folder / "emulator.log"

    def stop(self) -> None:
        """End it as a person does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise Broken("the emulator does not end") from None

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def proc(self) -> Path:
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}")

    def used_s(self) -> float:
        """Return how much of a processor it has used, in seconds."""
        fields = (self.proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> int:
        """Return the most bytes of memory that it ever had."""
        for line in (self.proc / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise Broken("the emulator has ended")

    def outside(self) -> list[str]:
        """Return what was changed outside of the state folder."""
        noted = self.notes.read_text().splitlines() if self.notes.exists() else []
        expected = {self.folder / name for name in ("home", "tmp", "cwd", "state")} | {self.notes, self.log}
        found = set(self.folder.iterdir()) - expected
        for name in ("home", "tmp", "cwd"):
            found |= set((self.folder / name).iterdir())
        return [*noted, *map(str, sorted(found))]


@dataclass
class Campaign:
    """Sends the requests of a seed, one after the other; each is the same whatever was sent before it."""

    emulator: Watched
    api: Api
    seed: int
    slowest_s: float = 0.0
    slowest: str = ""
    statuses: dict[int, int] = field(default_factory=dict)

    def run(self, cases: int, first: int = 0) -> None:
        """Raises Broken, with how to repeat it."""
        self._begin_anew()
        for number in range(first, first + cases):
            if number % PERIOD == PERIOD - 1:
                self._look(restart=number % (10 * PERIOD) == 10 * PERIOD - 1)
            request = self.api.request(random.Random(f"{self.seed} {number}"))
            try:
                self._check(request)
            except Broken as broken:
                raise Broken(
                    f"seed {self.seed}, request {number}: {broken}\n{request.method} {request.path[:300]!r}\n"
                    f"{len(request.sent)} bytes: {request.sent[:3000]!r}"
                ) from None
        self._look(restart=True)

    def _check(self, request: Request) -> None:
        before = self.emulator.used_s()
        answer = self._answer(request)
        used = self.emulator.used_s() - before
        if used > self.slowest_s:
            self.slowest_s, self.slowest = used, f"{request.method} {request.path[:100]}"
        if used >= MOST_S:
            raise Broken(f"it cost the emulator {used:.2f} s")
        if answer is None:
            if request.framed:
                raise Broken("there is no answer")
            return
        self.api.check(request, answer)
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        self.api.learn(request, answer, self.ask)
        if self.emulator.process and self.emulator.process.poll() is not None:
            raise Broken("the emulator has ended")

    def _answer(self, request: Request) -> Answer | None:
        with self.emulator.connected(self._addresses[request.to]) as client:
            with suppress(OSError):  # it may have refused all of it already
                client.sendall(request.sent)
                if not request.framed:
                    end_of(client)
            try:
                return read(client, request)
            except TimeoutError:
                if not request.framed:
                    return None
                raise Broken(f"there is no answer within {PATIENCE_S} s") from None

    @property
    def _addresses(self) -> Mapping[str, str]:
        return self.api.addresses(self.emulator.ready)

    def _begin_anew(self) -> None:
        """Return to the state of a fresh start."""
        self.ask("DELETE", "/_emulator/faults")
        self.ask("POST", "/_emulator/reset")
        self.api.begin(self.emulator.ready, self.ask)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        to: str = "url",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask what no request may have broken."""
        own = {"content-length": str(len(body)), "connection": "close", **(headers or {})}
        own.setdefault("host", "127.0.0.1")
        head = "".join(f"{name}: {value}\r\n" for name, value in own.items())
        sent = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
        answer = self._answer(Request(method, path, sent, framed=True, to=to))
        if answer is None or (answer.status >= 400 and path.startswith("/_emulator")) or answer.status >= 500:
            raise Broken(f"{method} {path} no longer works: {answer}")
        return answer

    def _look(self, *, restart: bool) -> None:
        """Check what a single answer does not show, and begin anew."""
        self.ask("GET", "/health")
        self.api.check_service(self.ask)
        if outside := self.emulator.outside():
            raise Broken(f"changed outside of the state folder: {outside[:5]}")
        if (grown := self.emulator.memory() - self.emulator.first_bytes) > MOST_GROWTH:
            raise Broken(f"the emulator's memory has grown by {grown / 2**20:.0f} MB")
        if restart:
            self.emulator.stop()
            self.emulator.start()
        self._begin_anew()


def end_of(client: socket.socket) -> None:
    """Say that nothing more will come; under TLS this would end both directions, so there is a short wait instead."""
    if isinstance(client, ssl.SSLSocket):
        client.settimeout(SHORT_S)
    else:
        client.shutdown(socket.SHUT_WR)


def read(client: socket.socket, request: Request) -> Answer | None:
    """Return the first answer; None when the connection ends without one."""
    response = http.client.HTTPResponse(client, method="HEAD" if request.method == "HEAD" else "GET")
    try:
        response.begin()
        goes_on = request.streams and response.status == http.HTTPStatus.OK
        return Answer(response.status, response.getheaders(), b"" if goes_on else response.read())
    except (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError, ssl.SSLEOFError):
        return None
    except http.client.HTTPException as error:
        raise Broken(f"the answer is no HTTP: {error!r}") from None
    finally:
        response.close()
