"""FaultyApp: what the doors of the emulator share as ASGI applications: faults, and a record of each request."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from airflow_provider_ocidist.emulator.bodies import FileAnswer
from airflow_provider_ocidist.emulator.connections import ABORT
from airflow_provider_ocidist.emulator.faults import Effect, FaultRule
from airflow_provider_ocidist.emulator.pacing import Dropped, Throttle, cut_after, paced_receive, paced_send

CallT = TypeVar("CallT")


class FaultyApp(ABC, Generic[CallT]):
    """Answers requests, as ASGI."""

    @abstractmethod
    def call_of(self, scope: Scope, receive: Receive) -> CallT: ...

    @abstractmethod
    def effect(self, scope: Scope) -> Effect:
        """Return the faults of a request."""

    @abstractmethod
    async def answer(self, call: CallT, effect: Effect) -> Response:
        """Return the answer to a request, whatever happens to it; raise nothing but Dropped and ClientDisconnect."""

    @abstractmethod
    def refusal(self, call: CallT, fault: FaultRule) -> Response:
        """Return the answer with which a fault refuses a request."""

    @abstractmethod
    def record(self, call: CallT, status: int, started: float) -> None: ...

    def finish(self, call: CallT, response: Response) -> None:
        """Add what every answer bears."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.time()
        effect = self.effect(scope)
        if effect.bytes_per_s:
            receive = paced_receive(receive, Throttle(effect.bytes_per_s))
            send = paced_send(send, Throttle(effect.bytes_per_s))
        call = self.call_of(scope, receive)
        try:
            response = await self._respond(call, effect)
            self.record(call, response.status_code, started)
            self.finish(call, response)
        except (Dropped, ClientDisconnect):
            self.record(call, 0, started)
            scope[ABORT]()
            return
        try:
            await response(scope, receive, _cut(send, effect.end))
        except Dropped:
            scope[ABORT]()

    async def _respond(self, call: CallT, effect: Effect) -> Response:
        if effect.latency_s:
            await asyncio.sleep(effect.latency_s)
        fault = effect.end
        if fault is not None and fault.drop == "before":
            raise Dropped
        if fault is not None and fault.status is not None:
            return self.refusal(call, fault)
        response = await self.answer(call, effect)
        if fault is not None and fault.drop == "after":
            if isinstance(response, FileAnswer):
                response.release()
            raise Dropped
        return response


def retry_after(fault: FaultRule) -> dict[str, str]:
    return {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}


def _cut(send: Send, fault: FaultRule | None) -> Send:
    return cut_after(send, fault.body_bytes) if fault is not None and fault.drop == "body" else send
