"""A campaign: an emulator, thousands of requests, and three properties that hold after each of them.

1. Each request is answered as OCI answers, and costs the emulator less than a second of a processor.
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
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives import serialization

from airflow_provider_ocidist.backports import Self
from scripts.emulator_models import routes
from tests.emulator.fuzz.requests import Door, Known, Request, request_of

ROOT = Path(__file__).resolve().parents[3]
MOST_S = 1.0
"""Of a processor, for one request."""
MOST_GROWTH = 600 * 2**20
"""How many bytes of memory more than at the start the emulator may ever have."""
PATIENCE_S = 60
"""For an answer, on a machine that has other things to do."""
PERIOD = 1_000
"""Requests after which the emulator is looked at, and begins anew."""
TICKS = os.sysconf("SC_CLK_TCK")
SPARED = ("/_emulator/faults", "/_emulator/reset")
"""Doors whose effects would be taken for faults of the emulator."""
UI = "/_emulator/ui"
PAGE = (
    *(
        "/",
        f"{UI}/static/{{name}}",
        f"{UI}/overview",
        f"{UI}/jobs",
        f"{UI}/jobs/{{id}}",
        f"{UI}/jobs/{{id}}/logs",
    ),
    *(f"{UI}/buckets", f"{UI}/buckets/{{bucket}}/objects", f"{UI}/buckets/{{bucket}}/objects/{{name...}}"),
    *(f"{UI}/calls", f"{UI}/rules"),
)
LISTS = (
    "/20190101/projects?compartmentId={compartment}",
    "/20190101/jobs?compartmentId={compartment}",
    "/20190101/jobRuns?compartmentId={compartment}",
    "/20160918/users?compartmentId={tenancy}",
    "/20160918/compartments?compartmentId={tenancy}",
    "/20200531/logGroups?compartmentId={compartment}",
    "/n/{namespace}/b?compartmentId={compartment}",
    "/n/{namespace}/b/{bucket}/o",
    "/n/{namespace}/b/{bucket}/u",
    "/n/{namespace}/b/{bucket}/p",
)


class Broken(AssertionError):
    """A property does not hold."""


@dataclass(slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name]


@dataclass
class Watched:
    """An emulator in a process of its own, in a folder where nothing but its state may change."""

    folder: Path
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


def doors() -> list[Door]:
    """Return every route of the emulator, but for those that make it fail on purpose."""
    page = [Door("GET", template, signed=False) for template in PAGE]
    services = [Door(*each) for each in routes() if each[1] not in SPARED]
    return sorted([*services, *page], key=lambda door: (door.template, door.method))


@dataclass
class Campaign:
    """Sends the requests of a seed, one after the other; each is the same whatever was sent before it."""

    emulator: Watched
    seed: int
    slowest_s: float = 0.0
    slowest: str = ""
    statuses: dict[int, int] = field(default_factory=dict)

    def run(self, cases: int, first: int = 0) -> None:
        """Raises Broken, with how to repeat it."""
        entries = doors()
        self._begin_anew()
        for number in range(first, first + cases):
            if number % PERIOD == PERIOD - 1:
                self._look(restart=number % (10 * PERIOD) == 10 * PERIOD - 1)
            request = request_of(entries, self.known, random.Random(f"{self.seed} {number}"))
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
        if not request.proxy:
            check_shape(request, answer)
        self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
        if request.path.startswith("/_emulator/nodes") and answer.status < 400:
            self._idle()
        self._learn(answer)
        if self.emulator.process and self.emulator.process.poll() is not None:
            raise Broken("the emulator has ended")

    def _answer(self, request: Request) -> Answer | None:
        place = urlsplit(self.emulator.ready["proxy_url" if request.proxy else "url"])
        with socket.create_connection((place.hostname or "", place.port or 0), timeout=PATIENCE_S) as client:
            with suppress(OSError):  # it may have refused all of it already
                client.sendall(request.sent)
                if not request.framed:
                    client.shutdown(socket.SHUT_WR)
            try:
                return read(client, request.method)
            except TimeoutError:
                raise Broken(f"there is no answer within {PATIENCE_S} s") from None

    def _learn(self, answer: Answer) -> None:
        """Remember identifiers from answers: the requests after it lead to what there is."""
        with suppress(ValueError, AttributeError):
            found = json.loads(answer.body)
            found = found[0] if isinstance(found, list) and found else found
            for name in ("id", "uploadId", "fingerprint"):
                if isinstance(found.get(name), str):
                    self.known.ids[self._fixed :] = [*self.known.ids[self._fixed :][-20:], found[name]]

    def _begin_anew(self) -> None:
        """Return to the state of a fresh start, in which no node runs a program."""
        self.ask("DELETE", "/_emulator/faults")
        self.ask("POST", "/_emulator/reset")
        self._idle()
        ready = self.emulator.ready
        lines = Path(ready["config_file"]).read_text().splitlines()
        config = dict(line.split("=", 1) for line in lines if "=" in line)
        key = serialization.load_pem_private_key(Path(config["key_file"]).read_bytes(), None)
        names = (
            "compartment_id",
            "tenancy_id",
            "project_id",
            "log_group_id",
            "log_id",
            "subnet_id",
            "secret_id",
        )
        ids = [ready[name] for name in names]
        self._fixed = len(ids)
        self.known = Known(
            namespace=ready["namespace"],
            bucket=ready["bucket"],
            ids=ids,
            key_id=f"{config['tenancy']}/{config['user']}/{config['fingerprint']}",
            key=key,
        )

    def _idle(self) -> None:
        self.ask("DELETE", "/_emulator/nodes")
        self.ask("POST", "/_emulator/nodes", b'{"idle": true}')

    def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Ask what no request may have broken."""
        head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
        head += "connection: close\r\n\r\n"
        answer = self._answer(Request(method, path, head.encode() + body, framed=True))
        if answer is None or answer.status >= 400:
            raise Broken(f"{method} {path} no longer works: {answer}")
        return answer

    def _look(self, *, restart: bool) -> None:
        """Check what a single answer does not show, and begin anew."""
        self.ask("GET", "/health")
        for path in self._lists():
            door = Door("GET", path, signed=True)
            dice = random.Random(0)
            signed = None
            while signed is None or not signed.framed or signed.path != path:
                signed = request_of([door], self.known, dice)
            answer = self._answer(signed)
            if answer is None or answer.status >= 500:
                raise Broken(f"the list {path} no longer works: {answer}")
        if outside := self.emulator.outside():
            raise Broken(f"changed outside of the state folder: {outside[:5]}")
        if (grown := self.emulator.memory() - self.emulator.first_bytes) > MOST_GROWTH:
            raise Broken(f"the emulator's memory has grown by {grown / 2**20:.0f} MB")
        if restart:
            self.emulator.stop()
            self.emulator.start()
        self._begin_anew()

    def _lists(self) -> Iterator[str]:
        ready = self.emulator.ready
        for template in LISTS:
            yield template.format(
                compartment=ready["compartment_id"],
                tenancy=ready["tenancy_id"],
                namespace=ready["namespace"],
                bucket=ready["bucket"],
            )


def read(client: socket.socket, method: str) -> Answer | None:
    """Return the first answer; None when the connection ends without one."""
    response = http.client.HTTPResponse(client, method="HEAD" if method == "HEAD" else "GET")
    try:
        response.begin()
        return Answer(response.status, response.getheaders(), response.read())
    except (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError):
        return None
    except http.client.HTTPException as error:
        raise Broken(f"the answer is no HTTP: {error!r}") from None
    finally:
        response.close()


def check_shape(request: Request, answer: Answer) -> None:
    """Raise Broken unless an answer is one that a client of OCI understands."""
    if answer.status >= 500:
        raise Broken(f"{answer.status}: {answer.body[:500]!r}")
    if len(answer.all("opc-request-id")) != 1:
        raise Broken(f"{answer.status} with opc-request-id {answer.all('opc-request-id')}")
    kind = (answer.all("content-type") or [""])[0]
    if answer.status >= 400 and answer.body:
        body = _json(answer.body)
        if not isinstance(body, dict) or not all(
            isinstance(body.get(name), str) for name in ("code", "message")
        ):
            raise Broken(f"{answer.status} without code and message: {answer.body[:300]!r}")
    elif answer.status >= 400 and request.method != "HEAD":
        raise Broken(f"{answer.status} without a body")
    elif kind == "application/json" and request.method != "HEAD" and "/o/" not in request.path:
        _json(answer.body)


def _json(raw: bytes) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(raw.decode(), parse_constant=refuse) if raw else None
    except ValueError as error:
        raise Broken(f"the answer is no JSON: {error}: {raw[:300]!r}") from None
