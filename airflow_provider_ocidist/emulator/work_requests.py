"""Work requests: what those of all services have in common, on the wire and in the doing."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state, not_found
from airflow_provider_ocidist.emulator.store import RecordStore, Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page


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

    def __init__(self, path: str, store: RecordStore, kind: str, decode: type[Request]) -> None:
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

    def newest_first(self, call: Call, found: Sequence[Request]) -> Response:
        """Return a page of requests."""
        chosen, headers = page(call, found, lambda each: (each.time_accepted, each.id), default="DESC")
        return answer([self.body_of(each) for each in chosen], headers=headers)

    @abstractmethod
    async def list(self, call: Call) -> Response: ...

    @abstractmethod
    async def list_errors(self, call: Call) -> Response: ...

    @abstractmethod
    async def list_logs(self, call: Call) -> Response: ...


UNFINISHED = ("ACCEPTED", "IN_PROGRESS")


@dataclass(frozen=True, slots=True)
class Work:
    """What the work requests of one operation do to what they are about."""

    do: Callable[[Any], object]
    """Function that does the work; if it raises ApiError or OSError, the work request has failed."""
    undo: Callable[[Any], object] = lambda _: None
    """Function that restores the resource after the work was canceled or has failed."""


class DeferredWork(AcceptedWork[Request]):
    """Work that is done a while after its answer, also by an emulator that was started again meanwhile."""

    done: ClassVar[str] = "SUCCEEDED"
    cancelable: ClassVar[tuple[str, ...]] = UNFINISHED

    def __init__(
        self,
        path: str,
        store: RecordStore,
        kind: str,
        decode: type[Request],
        *,
        begins_after_s: float,
        takes_s: float = 0.0,
    ) -> None:
        super().__init__(path, store, kind, decode)
        self._begins_after_s = begins_after_s
        self._takes_s = takes_s
        self._work: dict[str, Work] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def routes(self) -> list[Route]:
        return [*super().routes(), Route("DELETE", f"{self._path}/{{id}}", self.cancel)]

    def serve(self, operation: str, work: Work, *, at_once: bool = False) -> None:
        """Register an operation, and continue its requests that a restart has interrupted."""
        self._work[operation] = work
        for request in self._requests.values():
            if request.operation == operation and request.status in UNFINISHED:
                self.run(request, at_once=at_once)

    def run(self, request: Request, *, at_once: bool = False) -> None:
        """Record a request, and do its work: now, or in a task of its own."""
        self._requests.put(request.id, request)
        if at_once:
            self._start(request.id)
            self._finish(request.id)
            return
        task = asyncio.get_running_loop().create_task(self._run_later(request.id))
        self._running[request.id] = task
        task.add_done_callback(lambda _: self._running.pop(request.id, None))

    async def _run_later(self, request_id: str) -> None:
        await asyncio.sleep(self._begins_after_s)
        self._start(request_id)
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        self._finish(request_id)

    def _start(self, request_id: str) -> None:
        self._change(request_id, "IN_PROGRESS", time_started=now())

    def _finish(self, request_id: str) -> None:
        request = self._stored(request_id)
        work, subject = self._work[request.operation], self.subject_of(request)
        try:
            work.do(subject)
        except (ApiError, OSError) as error:
            work.undo(subject)
            known = error if isinstance(error, ApiError) else ApiError(500, "InternalServerError", str(error))
            self._change(request_id, "FAILED", known, time_finished=now())
        else:
            self._change(request_id, self.done, time_finished=now())

    def _stored(self, request_id: str) -> Request:
        request = self._requests.get(request_id)
        assert request is not None
        return request

    def _change(self, request_id: str, status: str, error: ApiError | None = None, **times: str) -> None:
        request = self._stored(request_id)
        noted = self.noted(request, status, error)
        self._requests.put(request_id, replace(request, status=status, **times, **noted))

    def end(self, request: Request) -> None:
        """Cancel a request. Raises ApiError where its status does not allow that."""
        if request.status not in self.cancelable:
            raise incorrect_state(f"The work request is {request.status} and cannot be canceled.")
        if task := self._running.pop(request.id, None):
            task.cancel()
        self._work[request.operation].undo(self.subject_of(request))
        self._change(request.id, "CANCELED", time_finished=now())

    def reset(self) -> None:
        self.close()
        super().reset()

    def close(self) -> None:
        """Leave what is not done to the next emulator of this state folder."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    @abstractmethod
    def subject_of(self, request: Request) -> Any:
        """Return what the work of a request takes."""

    @abstractmethod
    def noted(self, request: Request, status: str, error: ApiError | None) -> Mapping[str, Any]:
        """Return the fields that a change of status sets besides: log entries, errors, the etag."""

    @abstractmethod
    async def cancel(self, call: Call) -> Response: ...


def accepted(request: Accepted) -> Response:
    """Return the answer that the work will be done."""
    return answer(status=202, headers={"opc-work-request-id": request.id})


def entry(message: str) -> dict[str, str]:
    """Return an entry of a log, of now."""
    return {"message": message, "timestamp": now()}
