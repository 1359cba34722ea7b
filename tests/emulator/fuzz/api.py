"""What the fuzzer knows of an API of the emulator: requests, the form of answers, what must go on working."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.emulator.fuzz import values


class Broken(AssertionError):
    """A property does not hold."""


@dataclass(frozen=True, slots=True)
class Door:
    """A route of the emulator, as `wire.Route` has it."""

    method: str
    template: str
    signed: bool


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes for one connection, and what their answer must be like."""

    method: str
    path: str
    sent: bytes
    framed: bool
    """Whether it is HTTP, so that there must be an answer."""
    to: str = "url"
    """Which address: a name in `Api.addresses`."""

    @property
    def streams(self) -> bool:
        """Whether its answer may go on for ever: a watch, or a log that is followed."""
        return "watch" in self.path or "follow" in self.path


@dataclass(slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known.lower() == name]

    @property
    def kind(self) -> str:
        return (self.all("content-type") or [""])[0]


class Asking(Protocol):
    """Asks what no request may have broken."""

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        to: str = "url",
        headers: Mapping[str, str] | None = None,
    ) -> Answer: ...


class Api(Protocol):
    """One API."""

    name: str
    options: Sequence[str]
    """Of the emulator that has it."""

    def addresses(self, ready: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the addresses that requests name."""

    def begin(self, ready: Mapping[str, Any], ask: Asking) -> None:
        """Make ready what requests need, on an emulator that has just begun anew."""

    def request(self, dice: random.Random) -> Request: ...

    def check(self, request: Request, answer: Answer) -> None:
        """Raise Broken unless an answer is one that a client of the API understands."""

    def learn(self, request: Request, answer: Answer, ask: Asking) -> None:
        """Remember what requests may name, and undo what would make the emulator fail on purpose."""

    def check_service(self, ask: Asking) -> None:
        """Raise Broken unless all that others ask for still works."""


def request(
    method: str,
    target: str,
    headers: Sequence[tuple[str, str]],
    body: bytes,
    dice: random.Random,
    *,
    chunked: bool | None = None,
    to: str = "url",
) -> Request:
    """Return a request, damaged now and then."""
    if chunked is None:
        chunked = dice.random() < 0.1
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    content = _chunks(body, dice) if chunked else body
    length = "transfer-encoding: chunked\r\n" if chunked else f"content-length: {len(body)}\r\n"
    raw = f"{method} {target} HTTP/1.1\r\n{head}{length}\r\n".encode("latin-1", "replace") + content
    if dice.random() < 0.05:
        return Request(method, target, values.spoilt(raw, dice), framed=False, to=to)
    return Request(method, target, raw, framed=not chunked, to=to)


def _chunks(body: bytes, dice: random.Random) -> bytes:
    """Return a body in chunks, whose form is sometimes not what it should be."""
    raw = b""
    while body:
        size = dice.choice((1, 10, 1_000, 100_000))
        piece, body = body[:size], body[size:]
        raw += f"{len(piece):x}".encode() + dice.choice((b"", b"", b";a=b", b" ")) + b"\r\n" + piece + b"\r\n"
        if len(raw) > 50_000:
            raw += f"{len(body):x}\r\n".encode() + body + b"\r\n" if body else b""
            break
    raw += b"0\r\n" + dice.choice((b"", b"", b"x-trailer: a\r\n", b"content-length: 5\r\n")) + b"\r\n"
    return values.spoilt(raw, dice) if dice.random() < 0.2 else raw


def read_json(raw: bytes) -> Any:
    """Return an answer's JSON. Raises Broken."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        return json.loads(raw.decode(), parse_constant=refuse) if raw else None
    except ValueError as error:
        raise Broken(f"the answer is no JSON: {error}: {raw[:300]!r}") from None


def undo_of_control(method: str, path: str, answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the requests that end the effects of one to a control API."""
    place = path.partition("?")[0].rstrip("/")
    if method == "POST" and answer.status < 400 and place.rpartition("/")[2] in ("faults", "pods", "away"):
        kind = "faults" if place.endswith("away") else place.rpartition("/")[2]
        yield "DELETE", f"{place.rpartition('/')[0]}/{kind}"
