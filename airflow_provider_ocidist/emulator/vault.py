"""Vault: reading secrets."""

from __future__ import annotations

import base64
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now

BASE = "/20190301/secretbundles"
NAME = "ocidist"


class Vault:
    """Holds the one secret that every installation has."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        self._created = now()

    def routes(self) -> list[Route]:
        return [
            Route("POST", f"{BASE}/actions/getByName", self.get_bundle_by_name),
            Route("GET", f"{BASE}/{{id}}", self.get_bundle),
        ]

    async def get_bundle(self, call: Call) -> Response:
        if call.params["id"] != self._ids.secret_id:
            raise not_found()
        _check_version(call)
        return answer(self._bundle())

    async def get_bundle_by_name(self, call: Call) -> Response:
        call.required_query("vaultId")
        if call.required_query("secretName") != NAME:
            raise not_found()
        _check_version(call)
        return answer(self._bundle())

    def _bundle(self) -> dict[str, Any]:
        content = base64.b64encode(self._ids.secret_value.encode()).decode()
        return {
            "secretId": self._ids.secret_id,
            "versionNumber": 1,
            "timeCreated": self._created,
            "stages": ["CURRENT", "LATEST"],
            "secretBundleContent": {"contentType": "BASE64", "content": content},
        }


def _check_version(call: Call) -> None:
    """There is one version: number 1, stage CURRENT."""
    number, stage = call.query.get("versionNumber", "1"), call.query.get("stage", "CURRENT")
    if number != "1" or stage not in ("CURRENT", "LATEST") or "secretVersionName" in call.query:
        raise not_found()
