"""Work requests: what the service does after it has answered, and its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, new_etag, now, page
from airflow_provider_ocidist.emulator.work_requests import Accepted, AcceptedWork, accepted, entry

PATH = f"{BASE}/workRequests"
STATUSES = frozenset({"ACCEPTED", "IN_PROGRESS", "FAILED", "SUCCEEDED", "CANCELING", "CANCELED"})
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
class WorkRequest(Accepted):
    """A work request, as stored."""

    entity_type: str
    resource_id: str
    logs: tuple[dict[str, str], ...] = ()
    errors: tuple[dict[str, str], ...] = ()
    etag: str = field(default_factory=new_etag)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one kind of work request does to its resource."""

    do: Callable[[str], None]
    """Function that does the work; if it raises ApiError, the work request has failed."""
    undo: Callable[[str], None]
    """Function that restores the resource after the work was canceled or has failed."""


class WorkRequests(AcceptedWork[WorkRequest]):
    """Accepts work, does it a little later, and reports it."""

    def __init__(self, context: Context, identity: Identity) -> None:
        super().__init__(PATH, context.store, "work_request", WorkRequest)
        self._delay_s = context.options.deletion_s
        self._identity = identity
        self._work: dict[str, Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("DELETE", f"{self._path}/{{id}}", self.cancel)]

    def offer(self, operation: str, work: Work) -> None:
        """Register an operation; requests for it that an earlier emulator process accepted are done now."""
        self._work[operation] = work
        for request in self._requests.values():
            if request.operation == operation and request.status in ("ACCEPTED", "IN_PROGRESS"):
                self._do(request.id)

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
        request = WorkRequest(
            id=new_ocid("datascienceworkrequest"),
            operation=operation,
            entity_type=entity_type,
            resource_id=resource_id,
            compartment_id=compartment_id,
            logs=(entry("Work request accepted."),),
        )
        self._requests.put(request.id, request)
        if at_once:
            self._do(request.id)
            return answer(headers={"opc-work-request-id": request.id})
        task = asyncio.create_task(self._do_later(request.id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return accepted(request)

    async def _do_later(self, request_id: str) -> None:
        await asyncio.sleep(self._delay_s)
        self._do(request_id)

    def _do(self, request_id: str) -> None:
        request = self._requests.get(request_id)
        if request is None or request.status == "CANCELED":
            return
        request = self._change(request, "IN_PROGRESS", "Work request started.", time_started=now())
        work = self._work[request.operation]
        try:
            work.do(request.resource_id)
        except (ApiError, OSError) as error:
            work.undo(request.resource_id)
            known = error if isinstance(error, ApiError) else ApiError(500, "InternalServerError", str(error))
            failure = {"code": known.code, **entry(known.message)}
            self._change(request, "FAILED", known.message, time_finished=now(), errors=(failure,))
        else:
            self._change(request, "SUCCEEDED", "Work request succeeded.", time_finished=now())

    def _change(self, request: WorkRequest, status: str, message: str, **fields: Any) -> WorkRequest:
        logs = (*request.logs, entry(message))
        changed = replace(request, status=status, logs=logs, etag=new_etag(), **fields)
        self._requests.put(request.id, changed)
        return changed

    def body_of(self, request: WorkRequest) -> dict[str, Any]:
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
        self._identity.check_compartment(call.required_query("compartmentId"))
        check_choice(call, "status", STATUSES)
        found = filtered(call, self._requests.values(), _value_of, FILTERS)
        chosen, headers = sorted_page(call, found, _value_of, "timeAccepted", ("operationType", "status"))
        return answer([self.body_of(request) for request in chosen], headers=headers)

    async def cancel(self, call: Call) -> Response:
        """Only a request that has not started can be canceled (the service's reference)."""
        request = self.known(call)
        check_if_match(call, request.etag)
        if request.status != "ACCEPTED":
            raise incorrect_state(f"The work request is {request.status} and cannot be canceled.")
        self._work[request.operation].undo(request.resource_id)
        self._change(request, "CANCELED", "Work request canceled.", time_finished=now())
        return answer()

    async def list_errors(self, call: Call) -> Response:
        return _entries(call, self.known(call).errors)

    async def list_logs(self, call: Call) -> Response:
        return _entries(call, self.known(call).logs)

    def reset(self) -> None:
        self.close()
        super().reset()

    def close(self) -> None:
        """Accepted requests that are not done yet are done after a restart."""
        for task in self._tasks:
            task.cancel()


def _entries(call: Call, entries: tuple[dict[str, str], ...]) -> Response:
    """Return a page of log entries or errors in the order in which they came."""
    call.number("limit", MAX_PAGE, 1, MAX_PAGE)
    places = {id(entry): f"{number:06}" for number, entry in enumerate(entries)}
    chosen, headers = page(call, entries, lambda entry: (places[id(entry)], ""), default="ASC")
    return answer(chosen, headers=headers)


def _value_of(request: WorkRequest, name: str) -> Any:
    return getattr(request, ATTRIBUTES[name])
