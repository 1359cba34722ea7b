"""HTTP as the services speak it: calls, routes, JSON answers, pages, etags."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from airflow_provider_ocidist.emulator import body_models
from airflow_provider_ocidist.emulator.errors import ApiError, etag_mismatch, invalid, missing

MAX_DIGITS = 18
MAX_JSON_BYTES = 16 * 1024 * 1024
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escape of half a surrogate pair; alone it is no text."""
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,255}")
Item = TypeVar("Item")


def whole_number(text: str) -> int | None:
    """Return the number that a client has written in plain digits; None for anything else, or too many digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


decode_json = json.JSONDecoder(parse_constant=_no_number).decode
encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=os.fspath).encode


def stored_json(raw: bytes) -> Any:
    """Return what JSON stands for. Raises ValueError for what is none, and for what no answer could hold."""
    try:
        # Strictly UTF-8: half a pair could be stored, but no answer could ever hold it.
        value = decode_json(raw.decode())
        if SURROGATE.search(raw):
            encode_json(value).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if body_models.is_too_deep(raw, value):
        raise ValueError(f"it is nested more than {body_models.MAX_NESTING} levels deep")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """Who signed a request."""

    id: str
    tenancy_id: str


@dataclass(kw_only=True)
class Call:
    """One request on its way to the service that answers it."""

    request: Request
    raw_path: str
    """Path as on the wire: still percent-encoded, so that `%2F` in a name is not a separator."""
    request_id: str = ""
    principal: Principal | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    """Model of its body, as `body_models` knows it."""
    check_chunks: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]] | None = None
    """Function that compares a streamed body with its signed hash; None when the hash was not signed."""
    _body: bytes | None = None

    @property
    def method(self) -> str:
        return self.request.method

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers, by names in small letters; of two with one name, the first."""
        raw = self.request.scope["headers"]
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}

    @cached_property
    def target(self) -> str:
        """Path and query, as on the wire."""
        query: bytes = self.request.scope["query_string"]
        return f"{self.raw_path}?{query.decode('latin-1')}" if query else self.raw_path

    @property
    def query(self) -> QueryParams:
        return self.request.query_params

    @property
    def actor(self) -> str:
        return self.principal.id if self.principal else "anonymous"

    def required_query(self, name: str) -> str:
        value = self.query.get(name)
        if not value:
            raise missing(name)
        return value

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """Return a numeric query parameter. Raises 400 outside `low..high`."""
        text = self.query.get(name)
        if text is None:
            return default
        number = whole_number(text)
        if number is None or not low <= number <= high:
            raise invalid(f"{name} must be a number from {low} to {high}.")
        return number

    async def json(self) -> dict[str, Any]:
        """Return the body, a JSON object. Raises 400 when it is anything else, or does not fit its model."""
        try:
            body = stored_json(await self.body() or b"{}")
        except ValueError as error:
            raise invalid(f"The request body is not JSON: {error}.") from error
        if not isinstance(body, dict):
            raise invalid("The request body must be a JSON object.")
        if self.model is not None:
            body_models.check(self.model, body)
        return body

    async def body(self) -> bytes:
        """Return a body that is small. Raises 413 before too much of it is held."""
        if self._body is None:
            held = bytearray()
            async for chunk in self.request.stream():
                held += chunk
                if len(held) > MAX_JSON_BYTES:
                    raise ApiError(
                        413, "RequestEntityTooLarge", f"At most {MAX_JSON_BYTES} bytes are allowed here."
                    )
            self._body = bytes(held)
        return self._body

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body piece by piece, never holding all of it."""
        stream = self.request.stream()
        return self.check_chunks(stream) if self.check_chunks else stream


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Route:
    """Which handler answers what. In the template `{x}` is one segment of the path, `{x...}` all the rest."""

    method: str
    template: str
    handler: Handler
    streams: bool = False
    """Whether its body may be large, and clients do not sign it."""
    signed: bool = True
    anonymous: bool = False
    """Whether its handler also takes unsigned requests, and then decides."""


class Router:
    """Finds the route of a raw path. First match wins."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._patterns: list[re.Pattern[str]] = []
        self._routes: dict[tuple[str, str], list[tuple[re.Pattern[str], Route]]] = {}
        for route in routes:
            pattern = _pattern(route.template)
            self._patterns.append(pattern)
            family = self._routes.setdefault((route.method, _family(route.template)), [])
            family.append((pattern, route))

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and its decoded parameters. Raises 404 or 405."""
        for pattern, route in self._routes.get((method, _family(raw_path)), ()):
            match = pattern.fullmatch(raw_path)
            if match:
                return route, {name: _decoded(value) for name, value in match.groupdict().items()}
        if any(pattern.fullmatch(raw_path) for pattern in self._patterns):
            raise ApiError(405, "MethodNotAllowed", f"{method} is not supported here.")
        raise ApiError(404, "NotFound", f"There is no resource at {raw_path}.")


def _decoded(value: str) -> str:
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise invalid(f"{value} in the path is not percent-encoded UTF-8.") from error


def _family(path: str) -> str:
    return path.removeprefix("/").partition("/")[0]


def _pattern(template: str) -> re.Pattern[str]:
    pattern = re.sub(r"\{(\w+)\.\.\.\}", r"(?P<\1>.+)", template)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern) + "/?", re.DOTALL)


def answer(
    body: Any = None, *, status: int = 200, etag: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON answer, or an empty one when there is no body."""
    sent = dict(headers or {})
    if etag:
        sent["etag"] = etag
    if body is None:
        return Response(status_code=204 if status == 200 else status, headers=sent)
    return Response(
        encode_json(body).encode(), status_code=status, headers=sent, media_type="application/json"
    )


def error_answer(error: ApiError, *, head: bool) -> Response:
    """Return the answer of a refusal; to HEAD there is no body."""
    if head:
        return Response(status_code=error.status, headers=error.headers)
    return answer({"code": error.code, "message": error.message}, status=error.status, headers=error.headers)


def page(
    call: Call, items: Sequence[Item], key: Callable[[Item], tuple[str, str]], *, default: str
) -> tuple[list[Item], dict[str, str]]:
    """Return one page of `items` in the order asked for, and the header that leads to the next.

    `key` gives (sort value, unique id). The token is the key of the last item sent, so that what is created
    between two pages neither repeats nor hides anything. `default` is the order when none is asked for.
    """
    limit = call.number("limit", 100, 1, 1000)
    descending = _descending(call.query.get("sortOrder", default))
    ordered = sorted(items, key=key, reverse=descending)
    token = call.query.get("page")
    if token:
        last = _page_key(token)
        ordered = [item for item in ordered if (key(item) < last if descending else key(item) > last)]
    chosen = ordered[:limit]
    more = len(ordered) > limit
    return chosen, ({"opc-next-page": page_token(key(chosen[-1]))} if more else {})


def _descending(order: str) -> bool:
    if order not in ("ASC", "DESC"):
        raise invalid("sortOrder must be ASC or DESC.")
    return order == "DESC"


def page_token(key: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def read_page_token(token: str) -> Any:
    """Return the argument of `page_token`. Raises 400 for a token that is not ours."""
    try:
        return json.loads(base64.urlsafe_b64decode(token))
    except (ValueError, RecursionError) as error:
        raise invalid("page is not a token of this service.") from error


def _page_key(token: str) -> tuple[str, str]:
    key = read_page_token(token)
    if not isinstance(key, list) or len(key) != 2:
        raise invalid("page is not a token of this service.")
    return str(key[0]), str(key[1])


def matching(call: Call, bodies: Iterable[dict[str, Any]], names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the bodies that fit the query's filters of these names."""
    wanted = {name: call.query[name] for name in names if name in call.query}
    return [body for body in bodies if wanted.items() <= body.items()]


def check_if_match(call: Call, etag: str) -> None:
    wanted = call.headers.get("if-match")
    if wanted not in (None, "*", etag):
        raise etag_mismatch()


def new_etag() -> str:
    return secrets.token_hex(16)


def new_request_id() -> str:
    """Return an id that may be guessable: the system's random numbers are slow."""
    return f"{random.getrandbits(128):032X}"


def request_id_of(call: Call) -> str:
    """Return the id that the client gave its request; a new one where it gave none, or one that is kept nowhere."""
    given = call.headers.get("opc-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else new_request_id()


def now() -> str:
    """Return the time as the services write it: UTC, milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
