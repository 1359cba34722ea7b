"""Work requests: what the service does after it has answered, and its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science.resources import (
    BASE,
    MAX_PAGE,
    check_choice,
    filtered,
    sorted_page,
)
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.wire import Call, answer, check_if_match, new_etag, page
from airflow_provider_ocidist.emulator.work_requests import Accepted, DeferredWork, accepted, entry

PATH = f"{BASE}/workRequests"
STATUSES = frozenset({"ACCEPTED", "IN_PROGRESS", "FAILED", "SUCCEEDED", "CANCELING", "CANCELED"})
SAID = {
    "IN_PROGRESS": "Work request started.",
    "SUCCEEDED": "Work request succeeded.",
    "CANCELED": "Work request canceled.",
}
FILTERS = ("id", "resourceId", "operationType", "status")
ATTRIBUTES = {
    "id": "id",
    "resourceId": "resource_id",
    "operationType": "operation",
    "status": "status",
    "compartmentId": "compartment_id",
    "timeAccepted": "time_accepted",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DataScienceWorkRequest(Accepted):
    """A work request, as stored."""

    entity_type: str
    resource_id: str
    logs: tuple[dict[str, str], ...] = ()
    errors: tuple[dict[str, str], ...] = ()
    etag: str = field(default_factory=new_etag)


class DataScienceWorkRequests(DeferredWork[DataScienceWorkRequest]):
    """The work requests of Data Science: only one that has not started can be canceled (the service's reference)."""

    cancelable = ("ACCEPTED",)

    def __init__(self, context: Context, identity: Identity) -> None:
        place = (PATH, context.store, "work_request")
        super().__init__(*place, DataScienceWorkRequest, begins_after_s=context.options.deletion_s)
        self._identity = identity

    def accept(
        self,
        operation: str,
        entity_type: str,
        resource_id: str,
        compartment_id: str,
        *,
        at_once: bool = False,
    ) -> Response:
        """Return the answer of an operation that is done a little later, or now."""
        request = DataScienceWorkRequest(
            id=new_ocid("datascienceworkrequest"),
            operation=operation,
            entity_type=entity_type,
            resource_id=resource_id,
            compartment_id=compartment_id,
            logs=(entry("Work request accepted."),),
        )
        self.run(request, at_once=at_once)
        return answer(headers={"opc-work-request-id": request.id}) if at_once else accepted(request)

    def subject_of(self, request: DataScienceWorkRequest) -> str:
        return request.resource_id

    def noted(
        self, request: DataScienceWorkRequest, status: str, error: ApiError | None
    ) -> Mapping[str, Any]:
        logs = (*request.logs, entry(error.message if error else SAID[status]))
        errors = ({"code": error.code, **entry(error.message)},) if error else request.errors
        return {"logs": logs, "errors": errors, "etag": new_etag()}

    def body_of(self, request: DataScienceWorkRequest) -> dict[str, Any]:
        done = request.status == "SUCCEEDED"
        resource = {
            "actionType": "DELETED" if done else "IN_PROGRESS",
            "entityType": request.entity_type,
            "identifier": request.resource_id,
            "entityUri": f"{BASE}/{request.entity_type}s/{request.resource_id}",
        }
        return request.body([resource], 100.0 if done else 0.0)

    async def get(self, call: Call) -> Response:
        request = self.known(call)
        return answer(self.body_of(request), etag=request.etag)

    async def list(self, call: Call) -> Response:
        self._identity.compartment_in(call)
        check_choice(call, "status", STATUSES)
        found = filtered(call, self._requests.values(), _value_of, FILTERS)
        chosen, headers = sorted_page(call, found, _value_of, "timeAccepted", ("operationType", "status"))
        return answer([self.body_of(request) for request in chosen], headers=headers)

    async def cancel(self, call: Call) -> Response:
        request = self.known(call)
        check_if_match(call, request.etag)
        self.end(request)
        return answer()

    async def list_errors(self, call: Call) -> Response:
        return _entries(call, self.known(call).errors)

    async def list_logs(self, call: Call) -> Response:
        return _entries(call, self.known(call).logs)


def _entries(call: Call, entries: tuple[dict[str, str], ...]) -> Response:
    """Return a page of log entries or errors in the order in which they came."""
    call.number("limit", MAX_PAGE, 1, MAX_PAGE)
    places = {id(entry): f"{number:06}" for number, entry in enumerate(entries)}
    chosen, headers = page(call, entries, lambda entry: (places[id(entry)], ""), default="ASC")
    return answer(chosen, headers=headers)


def _value_of(request: DataScienceWorkRequest, name: str) -> Any:
    return getattr(request, ATTRIBUTES[name])
