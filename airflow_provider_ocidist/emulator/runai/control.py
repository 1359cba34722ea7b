"""Control: what tests set and see of the stand-in, under `/_emulator` of its own address, without a token."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, replace

from starlette.responses import Response

from airflow_provider_ocidist.emulator import control
from airflow_provider_ocidist.emulator.control import BASE, RecordedCall, added, filtered, rule_of
from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.faults import Fault, Faults
from airflow_provider_ocidist.emulator.runai.quotas import Quota
from airflow_provider_ocidist.emulator.runai.refusals import not_found
from airflow_provider_ocidist.emulator.runai.tokens import Tokens
from airflow_provider_ocidist.emulator.runai.workloads import Workloads
from airflow_provider_ocidist.emulator.wire import Call, Route, answer


class RunaiControl:
    """The routes of `/_emulator`."""

    def __init__(self, workloads: Workloads, tokens: Tokens, faults: Faults) -> None:
        self._workloads = workloads
        self._tokens = tokens
        self._quotas = {project.id: project.quota for project in workloads.projects.values()}
        self.faults = faults
        self.calls: deque[RecordedCall] = deque(maxlen=control.MAX_CALLS)

    def routes(self) -> list[Route]:
        return [
            Route("POST", f"{BASE}/faults", self.add_fault, signed=False),
            Route("DELETE", f"{BASE}/faults", self.remove_faults, signed=False),
            Route("GET", f"{BASE}/calls", self.list_calls, signed=False),
            Route("DELETE", f"{BASE}/tokens", self.revoke, signed=False),
            Route("PUT", f"{BASE}/projects/{{id}}", self.set_quota, signed=False),
            Route("POST", f"{BASE}/reset", self.reset, signed=False),
        ]

    async def add_fault(self, call: Call) -> Response:
        fault = rule_of(Fault, await call.json())
        if fault.stale_s is not None:
            raise invalid("stale_s is not for Run:ai.")
        return added(self.faults, fault)

    async def remove_faults(self, _: Call) -> Response:
        self.faults.clear()
        return answer()

    async def list_calls(self, call: Call) -> Response:
        return answer(filtered(self.calls, call.query))

    async def revoke(self, _: Call) -> Response:
        self._tokens.revoke()
        return answer()

    async def set_quota(self, call: Call) -> Response:
        """Change what is given of a project's quota."""
        project = self._workloads.projects.get(call.params["id"])
        if project is None:
            raise not_found()
        changes = await call.json()
        rule_of(Quota, changes)
        project.quota = replace(project.quota, **changes)
        self._workloads.tick()
        return answer(asdict(project.quota))

    async def reset(self, _: Call) -> Response:
        """Return to the state of a fresh start."""
        self.faults.clear()
        self._workloads.reset()
        for project_id, quota in self._quotas.items():
            self._workloads.projects[project_id].quota = quota
        self.calls.clear()
        return answer()
