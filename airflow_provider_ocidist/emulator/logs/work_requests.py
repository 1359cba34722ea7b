"""Work requests of Logging: the answer to every change of a log group or log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.store import Store, Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page

BASE = "/20200531/workRequests"
ACTIONS = {"CREATE": "CREATED", "UPDATE": "UPDATED", "MOVE": "UPDATED", "DELETE": "DELETED"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkRequest:
    """A change, which is done before a client can ask about it."""

    id: str
    operation: str
    compartment_id: str
    resource_id: str
    time: str = field(default_factory=now)


class WorkRequests:
    """Records changes and answers requests for them."""

    def __init__(self, store: Store) -> None:
        self._all: Table[WorkRequest] = Table(store, "log_work_request", WorkRequest)

    def routes(self) -> list[Route]:
        one = f"{BASE}/{{id}}"
        return [
            Route("GET", BASE, self.list),
            Route("GET", one, self.get),
            Route("GET", f"{one}/errors", self.list_nothing),
            Route("GET", f"{one}/logs", self.list_nothing),
        ]

    def reset(self) -> None:
        self._all.clear()

    def accepted(self, operation: str, compartment_id: str, resource_id: str) -> Response:
        """Record a change and return its answer, which does not name what was made: clients must look for it."""
        made = WorkRequest(
            id=new_ocid("logworkrequest"),
            operation=operation,
            compartment_id=compartment_id,
            resource_id=resource_id,
        )
        self._all.put(made.id, made)
        return answer(status=202, headers={"opc-work-request-id": made.id})

    async def get(self, call: Call) -> Response:
        return answer(_body(self._find(call)))

    def _find(self, call: Call) -> WorkRequest:
        found = self._all.get(call.params["id"])
        if found is None:
            raise not_found()
        return found

    async def list(self, call: Call) -> Response:
        compartment_id = call.required_query("compartmentId")
        wanted, status = call.query.get("id"), call.query.get("status", "SUCCEEDED")
        found = [
            each
            for each in self._all.values()
            if each.compartment_id == compartment_id and wanted in (None, each.id) and status == "SUCCEEDED"
        ]
        chosen, headers = page(call, found, lambda each: (each.time, each.id), default="DESC")
        return answer([_body(each) for each in chosen], headers=headers)

    async def list_nothing(self, call: Call) -> Response:
        self._find(call)
        return answer([])


def _body(request: WorkRequest) -> dict[str, Any]:
    action, _, entity = request.operation.partition("_")
    resource = {
        "actionType": ACTIONS[action],
        "entityType": entity.lower().replace("_", ""),
        "identifier": request.resource_id,
    }
    return {
        "id": request.id,
        "operationType": request.operation,
        "status": "SUCCEEDED",
        "compartmentId": request.compartment_id,
        "resources": [resource],
        "percentComplete": 100.0,
        "timeAccepted": request.time,
        "timeStarted": request.time,
        "timeFinished": request.time,
    }
