"""Work requests: what Object Storage does after it has answered, and its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError
from airflow_provider_ocidist.emulator.object_storage.catalog import new_id
from airflow_provider_ocidist.emulator.wire import Call, answer
from airflow_provider_ocidist.emulator.work_requests import Accepted, DeferredWork, accepted, entry

PERCENT = {"ACCEPTED": 0.0, "IN_PROGRESS": 50.0, "COMPLETED": 100.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class TouchedResource:
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
class StorageWorkRequest(Accepted):
    """Accepted work, with all that is needed to do it after a restart."""

    id: str = field(default_factory=new_id)
    resources: list[Mapping[str, Any]]
    details: Mapping[str, Any]
    error: Mapping[str, str] | None = None
    log: list[Mapping[str, str]] = field(default_factory=list)


class StorageWorkRequests(DeferredWork[StorageWorkRequest]):
    """The work requests of Object Storage: each is ACCEPTED for half of its time, and then IN_PROGRESS."""

    done = "COMPLETED"

    def __init__(self, context: Context) -> None:
        half = context.options.copy_s / 2
        place = ("/workRequests", context.store, "object_work_request")
        super().__init__(*place, StorageWorkRequest, begins_after_s=half, takes_s=half)

    def accept(
        self,
        operation: str,
        compartment_id: str,
        resources: list[TouchedResource],
        details: Mapping[str, Any],
    ) -> Response:
        """Answer that the work will be done."""
        request = StorageWorkRequest(
            operation=operation,
            compartment_id=compartment_id,
            resources=[resource.body() for resource in resources],
            details=details,
            log=[entry("Accepted")],
        )
        self.run(request)
        return accepted(request)

    def subject_of(self, request: StorageWorkRequest) -> Mapping[str, Any]:
        return request.details

    def noted(self, request: StorageWorkRequest, status: str, error: ApiError | None) -> Mapping[str, Any]:
        failure = error and {"code": error.code, **entry(str(error))}
        return {"log": [*request.log, entry(status)], "error": failure}

    def body_of(self, request: StorageWorkRequest) -> dict[str, Any]:
        return request.body(request.resources, PERCENT.get(request.status, 0.0))

    async def list(self, call: Call) -> Response:
        compartment_id = call.required_query("compartmentId")
        found = [each for each in self._requests.values() if each.compartment_id == compartment_id]
        return self.newest_first(call, found)

    async def cancel(self, call: Call) -> Response:
        self.end(self.known(call))
        return answer(status=202)

    async def list_logs(self, call: Call) -> Response:
        return answer(self.known(call).log)

    async def list_errors(self, call: Call) -> Response:
        error = self.known(call).error
        return answer([error] if error else [])
