"""Work requests: what Object Storage does after it has answered, and its progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state
from airflow_provider_ocidist.emulator.object_storage.catalog import new_id
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page
from airflow_provider_ocidist.emulator.work_requests import Accepted, AcceptedWork, accepted, entry

PERCENT = {"ACCEPTED": 0.0, "IN_PROGRESS": 50.0, "COMPLETED": 100.0}
ENDED = ("COMPLETED", "FAILED", "CANCELED")
CANCELABLE = ("ACCEPTED", "IN_PROGRESS")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """Something that a work request touches."""

    action: str
    entity_type: str
    uri: str

    def body(self) -> dict[str, Any]:
        return {
            "actionType": self.action,
            "entityType": self.entity_type,
            "identifier": self.uri,
            "entityUri": self.uri,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRequest(Accepted):
    """Accepted work, with all that is needed to do it after a restart."""

    id: str = field(default_factory=new_id)
    resources: list[Mapping[str, Any]]
    details: Mapping[str, Any]
    error: Mapping[str, str] | None = None
    log: list[Mapping[str, str]] = field(default_factory=list)


Work = Callable[[Mapping[str, Any]], None]
"""Function that carries out a work request by its details. Raises ApiError."""


class WorkRequests(AcceptedWork[WorkRequest]):
    """The routes of work requests; carries each out in a task of its own."""

    def __init__(self, context: Context) -> None:
        self._duration_s = context.options.copy_s
        super().__init__("/workRequests", context.store, "object_work_request", WorkRequest)
        self._works: dict[str, Work] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("DELETE", f"{self._path}/{{id}}", self.cancel)]

    def serve(self, operation: str, work: Work) -> None:
        """Register an operation, and continue its requests that a restart has interrupted."""
        self._works[operation] = work
        for request in self._requests.values():
            if request.operation == operation and request.status not in ENDED:
                self._run(request)

    def reset(self) -> None:
        self.close()
        super().reset()

    def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    def accept(
        self, operation: str, compartment_id: str, resources: list[Resource], details: Mapping[str, Any]
    ) -> Response:
        """Answer that the work will be done."""
        request = WorkRequest(
            operation=operation,
            compartment_id=compartment_id,
            resources=[resource.body() for resource in resources],
            details=details,
            log=[entry("Accepted")],
        )
        self._requests.put(request.id, request)
        self._run(request)
        return accepted(request)

    def _run(self, request: WorkRequest) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(request.id))
        self._running[request.id] = task
        task.add_done_callback(lambda _: self._running.pop(request.id, None))

    async def _carry_out(self, request_id: str) -> None:
        await asyncio.sleep(self._duration_s / 2)
        request = self._change(request_id, "IN_PROGRESS", time_started=now())
        await asyncio.sleep(self._duration_s / 2)
        try:
            self._works[request.operation](request.details)
        except (ApiError, OSError) as error:
            code = error.code if isinstance(error, ApiError) else "InternalServerError"
            failure = {"code": code, "message": str(error), "timestamp": now()}
            self._change(request_id, "FAILED", error=failure, time_finished=now())
        else:
            self._change(request_id, "COMPLETED", time_finished=now())

    def _change(self, request_id: str, status: str, **changes: Any) -> WorkRequest:
        request = self._requests.get(request_id)
        assert request is not None
        changed = replace(request, status=status, log=[*request.log, entry(status)], **changes)
        self._requests.put(request_id, changed)
        return changed

    def body_of(self, request: WorkRequest) -> dict[str, Any]:
        return request.body(request.resources, PERCENT.get(request.status, 0.0))

    async def list(self, call: Call) -> Response:
        compartment_id = call.required_query("compartmentId")
        found = [each for each in self._requests.values() if each.compartment_id == compartment_id]
        chosen, more = page(call, found, lambda each: (each.time_accepted, each.id), default="DESC")
        return answer([self.body_of(each) for each in chosen], headers=more)

    async def cancel(self, call: Call) -> Response:
        request = self.known(call)
        if request.status not in CANCELABLE:
            raise incorrect_state(f"The work request is {request.status} and cannot be canceled.")
        task = self._running.pop(request.id, None)
        if task is not None:
            task.cancel()
        self._change(request.id, "CANCELED", time_finished=now())
        return answer(status=202)

    async def list_logs(self, call: Call) -> Response:
        return answer(self.known(call).log)

    async def list_errors(self, call: Call) -> Response:
        error = self.known(call).error
        return answer([error] if error else [])
