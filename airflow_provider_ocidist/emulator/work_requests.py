"""Work requests: what those of all services have in common on the wire."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.store import Store, Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """A request whose work is done after its answer, as stored."""

    id: str
    operation: str
    compartment_id: str
    status: str = "ACCEPTED"
    time_accepted: str = field(default_factory=now)
    time_started: str | None = None
    time_finished: str | None = None

    def body(self, resources: Sequence[Mapping[str, Any]], percent: float) -> dict[str, Any]:
        """Return it as a client gets it."""
        return {
            "id": self.id,
            "operationType": self.operation,
            "status": self.status,
            "compartmentId": self.compartment_id,
            "resources": list(resources),
            "percentComplete": percent,
            "timeAccepted": self.time_accepted,
            "timeStarted": self.time_started,
            "timeFinished": self.time_finished,
        }


Request = TypeVar("Request", bound=Accepted)


class AcceptedWork(ABC, Generic[Request]):
    """The work requests of one service."""

    def __init__(self, path: str, store: Store, kind: str, decode: type[Request]) -> None:
        self._path = path
        self._requests: Table[Request] = Table(store, kind, decode)

    def routes(self) -> list[Route]:
        one = f"{self._path}/{{id}}"
        return [
            Route("GET", self._path, self.list),
            Route("GET", one, self.get),
            Route("GET", f"{one}/errors", self.list_errors),
            Route("GET", f"{one}/logs", self.list_logs),
        ]

    def reset(self) -> None:
        self._requests.clear()

    def known(self, call: Call) -> Request:
        """Return the request that a call names. Raises ApiError when there is none."""
        found = self._requests.get(call.params["id"])
        if found is None:
            raise not_found()
        return found

    async def get(self, call: Call) -> Response:
        return answer(self.body_of(self.known(call)))

    @abstractmethod
    def body_of(self, request: Request) -> dict[str, Any]:
        """Return a request as a client gets it."""

    @abstractmethod
    async def list(self, call: Call) -> Response: ...

    @abstractmethod
    async def list_errors(self, call: Call) -> Response: ...

    @abstractmethod
    async def list_logs(self, call: Call) -> Response: ...


def accepted(request: Accepted) -> Response:
    """Return the answer that the work will be done."""
    return answer(status=202, headers={"opc-work-request-id": request.id})


def entry(message: str) -> dict[str, str]:
    """Return an entry of a log, of now."""
    return {"message": message, "timestamp": now()}
