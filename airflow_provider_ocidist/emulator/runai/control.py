"""Control: what tests set and see of the stand-in, under `/_emulator` of its own address, without a token."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

from starlette.responses import Response

from airflow_provider_ocidist.emulator.api_control import ApiControl
from airflow_provider_ocidist.emulator.control import BASE
from airflow_provider_ocidist.emulator.control_rules import rule_of
from airflow_provider_ocidist.emulator.faults import Faults
from airflow_provider_ocidist.emulator.recorded_calls import new_record
from airflow_provider_ocidist.emulator.runai.quotas import Pool, Quota
from airflow_provider_ocidist.emulator.runai.refusals import not_found
from airflow_provider_ocidist.emulator.runai.tokens import Tokens
from airflow_provider_ocidist.emulator.runai.workloads import SubmittedWorkloads
from airflow_provider_ocidist.emulator.wire import Call, Route, answer


class RunaiControl:
    """The routes of `/_emulator`."""

    def __init__(self, workloads: SubmittedWorkloads, tokens: Tokens, faults: Faults) -> None:
        self._workloads = workloads
        self._tokens = tokens
        self._quotas = {project.id: project.quota for project in workloads.projects.values()}
        self.faults = faults
        self.calls = new_record()
        self.stale_since = 0.0
        """Unix time of the newest rule for stale answers: none is older."""
        self._api = ApiControl(
            BASE, calls=lambda: self.calls, faults=lambda: self.faults, stale=self._keep_answers
        )

    def routes(self) -> list[Route]:
        return [
            *self._api.routes(),
            Route("DELETE", f"{BASE}/tokens", self.revoke, signed=False),
            Route("PUT", f"{BASE}/projects/{{id}}", self.set_quota, signed=False),
            Route("PUT", f"{BASE}/node-pools/{{name}}", self.set_pool, signed=False),
            Route("POST", f"{BASE}/reset", self.reset, signed=False),
        ]

    def _keep_answers(self, _: float) -> None:
        self.stale_since = time.time()

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

    async def set_pool(self, call: Call) -> Response:
        """Bound the GPUs of a pool of nodes; null: it has room for everything."""
        name = call.params["name"]
        if name not in self._workloads.pools:
            raise not_found()
        pool = self._workloads.pools[name] = rule_of(Pool, await call.json())
        self._workloads.tick()
        return answer(asdict(pool))

    async def reset(self, _: Call) -> Response:
        """Return to the state of a fresh start."""
        self._api.clear_faults()
        self._workloads.reset()
        for project_id, quota in self._quotas.items():
            self._workloads.projects[project_id].quota = quota
        self._workloads.pools = dict.fromkeys(self._workloads.pools, Pool())
        self.calls.clear()
        return answer()
