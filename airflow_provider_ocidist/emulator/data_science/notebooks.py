"""Notebook sessions, as far as programs look at the one that they run in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.built_in import fields_of_all, shown
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.resources import BASE, MAX_PAGE, filtered, sorted_page
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now

FILTERS = ("id", "projectId", "displayName", "lifecycleState", "createdBy")


class Notebooks:
    """Shows the one notebook session that there is; nothing runs in it."""

    def __init__(self, context: Context, identity: Identity) -> None:
        self._ids = context.ids
        self._identity = identity
        self._time_created = now()

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BASE}/notebookSessions", self.list),
            Route("GET", f"{BASE}/notebookSessions/{{id}}", self.show),
        ]

    async def list(self, call: Call) -> Response:
        self._identity.compartment_in(call)
        call.number("limit", MAX_PAGE, 1, MAX_PAGE)
        found = filtered(call, [self._body()], _value, FILTERS)
        chosen, headers = sorted_page(call, found, _value, "timeCreated", ("displayName",))
        return answer(chosen, headers=headers)

    async def show(self, call: Call) -> Response:
        return shown(call, self._body())

    def resources(self) -> Iterator[FoundResource]:
        body = self._body()
        yield FoundResource(
            kind="DataScienceNotebookSession",
            id=body["id"],
            compartment_id=body["compartmentId"],
            name=body["displayName"],
            time_created=body["timeCreated"],
        )

    def _body(self) -> dict[str, Any]:
        ids = self._ids
        machine = {
            "shape": "VM.Standard.E4.Flex",
            "notebookSessionShapeConfigDetails": {"ocpus": 1.0, "memoryInGBs": 16.0},
            "blockStorageSizeInGBs": 100,
            "subnetId": ids.subnet_id,
        }
        return {
            **fields_of_all(ids.compartment_id, "ACTIVE", self._time_created),
            "id": ids.notebook_session_id,
            "projectId": ids.project_id,
            "createdBy": ids.user_id,
            "notebookSessionConfigurationDetails": machine,
            "notebookSessionConfigDetails": machine,
        }


def _value(body: dict[str, Any], name: str) -> Any:
    return body.get(name)
