"""Inside: a client of the services within their process, so that the page shows what every client would see."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from airflow_provider_ocidist.emulator.wire import Call, Principal, Router

PAGE_ITEMS = 100
"""Items of a page, as many as every list of the services gives at once."""


class Inside:
    """Asks the routes of the services directly: no connection, no signature, no recorded call."""

    def __init__(self, router: Router, principal: Principal) -> None:
        self._router = router
        self._principal = principal

    async def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return the answer to a request whose path is percent-encoded. Raises ApiError."""
        content = b"" if body is None else json.dumps(body).encode()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": urlencode(query or {}).encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        call = Call(
            request=Request(scope, receive),
            request_id=secrets.token_hex(16).upper(),
            raw_path=path,
            principal=self._principal,
        )
        route, call.params = self._router.find(method, path)
        return await route.handler(call)

    async def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of an answer."""
        return json.loads(bytes((await self.send("GET", path, query)).body))

    async def items(self, path: str, limit: int, **query: Any) -> list[dict[str, Any]]:
        """Return so many items of a list, over as many of its pages as it takes."""
        found: list[dict[str, Any]] = []
        place: dict[str, str] = {}
        while len(found) < limit:
            asked = {**query, "limit": min(PAGE_ITEMS, limit - len(found)), **place}
            response = await self.send("GET", path, asked)
            found += json.loads(bytes(response.body))
            if "opc-next-page" not in response.headers:
                break
            place = {"page": response.headers["opc-next-page"]}
        return found


def segment(name: str) -> str:
    """Return a name as one segment of a path, encoded as strictly as the SDK does it."""
    return quote(name, safe="").replace(".", "%2E")
