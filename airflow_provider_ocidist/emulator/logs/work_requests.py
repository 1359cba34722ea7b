"""Work requests of Logging: the answer to every change of a log group or log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.store import RecordStore
from airflow_provider_ocidist.emulator.wire import Call, answer, now
from airflow_provider_ocidist.emulator.work_requests import Accepted, AcceptedWork, accepted

BASE = "/20200531/workRequests"
ACTIONS = {"CREATE": "CREATED", "UPDATE": "UPDATED", "MOVE": "UPDATED", "DELETE": "DELETED"}


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingWorkRequest(Accepted):
    """A change, which is done before a client can ask about it."""

    resource_id: str


class LoggingWorkRequests(AcceptedWork[LoggingWorkRequest]):
    """Records changes and answers requests for them."""

    def __init__(self, store: RecordStore) -> None:
        super().__init__(BASE, store, "log_work_request", LoggingWorkRequest)

    def accepted(self, operation: str, compartment_id: str, resource_id: str) -> Response:
        """Record a change and return its answer, which does not name what was made: clients must look for it."""
        at = now()
        made = LoggingWorkRequest(
            id=new_ocid("logworkrequest"),
            operation=operation,
            compartment_id=compartment_id,
            resource_id=resource_id,
            status="SUCCEEDED",
            time_accepted=at,
            time_started=at,
            time_finished=at,
        )
        self._requests.put(made.id, made)
        return accepted(made)

    def body_of(self, request: LoggingWorkRequest) -> dict[str, Any]:
        action, _, entity = request.operation.partition("_")
        resource = {
            "actionType": ACTIONS[action],
            "entityType": entity.lower().replace("_", ""),
            "identifier": request.resource_id,
        }
        return request.body([resource], 100.0)

    async def list(self, call: Call) -> Response:
        compartment_id = call.required_query("compartmentId")
        wanted, status = call.query.get("id"), call.query.get("status", "SUCCEEDED")
        found = [
            each
            for each in self._requests.values()
            if each.compartment_id == compartment_id and wanted in (None, each.id) and status == "SUCCEEDED"
        ]
        return self.newest_first(call, found)

    async def list_errors(self, call: Call) -> Response:
        self.known(call)
        return answer([])

    list_logs = list_errors
