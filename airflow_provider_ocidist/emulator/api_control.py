"""ApiControl: the control routes of every API of the emulator, for its recorded calls and its faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from starlette.responses import Response

from airflow_provider_ocidist.emulator.control_rules import added, check_room, rule_of
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.faults import FaultRule, Faults
from airflow_provider_ocidist.emulator.recorded_calls import RecordedCall, filtered
from airflow_provider_ocidist.emulator.wire import Call, Route, answer


class ApiControl:
    """The routes `calls` and `faults` below the address of one API's control."""

    def __init__(
        self,
        base: str,
        *,
        calls: Callable[[], deque[RecordedCall]],
        faults: Callable[[], Faults],
        stale: Callable[[float], object],
        after_removal: Callable[[], object] = lambda: None,
    ) -> None:
        """`stale`: prepares for answers as they were so many seconds before, or refuses; see `no_stale`."""
        self._base = base
        self._calls = calls
        self._faults = faults
        self._stale = stale
        self._after_removal = after_removal

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{self._base}/calls", self.list_calls, signed=False),
            Route("DELETE", f"{self._base}/calls", self.forget_calls, signed=False),
            Route("POST", f"{self._base}/faults", self.add_fault, signed=False),
            Route("DELETE", f"{self._base}/faults", self.remove_faults, signed=False),
        ]

    async def list_calls(self, call: Call) -> Response:
        """Return the calls so far, the oldest first; `method`, `path` (with the query) and `host` filter them."""
        return answer(filtered(list(self._calls()), call.query))

    async def forget_calls(self, _: Call) -> Response:
        self._calls().clear()
        return answer()

    async def add_fault(self, call: Call) -> Response:
        fault = rule_of(FaultRule, await call.json())
        check_room(self._faults())
        if fault.stale_s is not None:
            self._stale(fault.stale_s)
        return added(self._faults(), fault)

    async def remove_faults(self, _: Call) -> Response:
        self.clear_faults()
        return answer()

    def clear_faults(self) -> None:
        self._faults().clear()
        self._after_removal()


def no_stale(api: str) -> Callable[[float], None]:
    """Return what refuses faults with old answers at an API that keeps none."""

    def refuse(seconds: float) -> None:
        del seconds
        raise invalid(f"stale_s is not for {api}.")

    return refuse
