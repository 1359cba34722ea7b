"""One request to the API server: its parameters, its body and who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from airflow_provider_ocidist.emulator.kubernetes import fields, manifests, patches, protobuf, statuses, users
from airflow_provider_ocidist.emulator.kubernetes.api.paths import Target
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.wire import stored_json, whole_number


class Call:
    """One request."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.request = Request(scope, receive)
        self.method = self.request.method
        self.path = unquote(scope["raw_path"].decode("latin-1"))
        self.query = self.request.query_params
        self.accept = self.request.headers.get("accept", "")
        self.warnings: list[str] = []
        self.user = users.named("system:anonymous")

    @cached_property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """Return a query parameter. Raises 400 for what is no number from 0 on."""
        text = self.query.get(name)
        if not text:
            return None
        number = whole_number(text)
        if number is None:
            text = text[:100]
            raise statuses.bad_request(
                f'invalid {name} {text!r}: strconv.ParseInt: parsing "{text}": invalid syntax'
            )
        return number

    async def body(self) -> Any:
        """Return the body as JSON. Raises 400, 413."""
        held = bytearray()
        async for chunk in self.request.stream():
            held += chunk
            if len(held) > patches.MAX_BYTES:
                raise patches.too_large()
        kind = self.request.headers.get("content-type", "")
        if "protobuf" in kind and held:
            return protobuf.decode(bytes(held))
        if not held:
            return {}
        try:
            is_yaml = "yaml" in kind and not held.startswith(b"{")
            return manifests.read(bytes(held)) if is_yaml else stored_json(bytes(held))
        except ValueError as error:
            raise statuses.bad_request(f"the object provided is unrecognized: {error}") from error

    async def fields(self, name: str, schema: fields.Type) -> Obj:
        """Return the fields of a body that is no stored object. Raises 400 for one of another type."""
        return fields.read(await self.body(), schema, name)


Handler = Callable[[Call, Target], Awaitable[Response]]


class OpenStreams:
    """What ends the answers that go on: watches, and logs that are followed."""

    def __init__(self) -> None:
        self.cut = asyncio.Event()

    def cut_all(self) -> None:
        self.cut.set()
        self.cut = asyncio.Event()

    def end_all(self) -> None:
        """Cut all streams, and those that begin from now on at once."""
        self.cut.set()
