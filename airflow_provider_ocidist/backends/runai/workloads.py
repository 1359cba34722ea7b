"""Workloads: the workloads at one control plane, in as few requests as it allows, and what is known of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends.node_config import KEY_VARIABLE
from airflow_provider_ocidist.backends.runai import names
from airflow_provider_ocidist.backends.runai.phases import Workload
from airflow_provider_ocidist.backends.runai.plans import PATHS
from airflow_provider_ocidist.errors import RunNotFound
from airflow_provider_ocidist.model.evidence import Absent
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.work_dir.parallel import in_parallel

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.runai.client import Client

WORKLOADS = "/api/v1/workloads"
FEW = 4
"""Most gangs that are requested one by one; more of them take a list of their projects' workloads since the oldest."""
EVERY_PROJECT = ""
EARLIER = 3600.0
"""Seconds by which that list begins before the oldest gang, since the clocks of two machines differ."""
FINAL = ("Completed", "Failed")

Answer = Mapping[str, Any]
"""A workload as the control plane describes it."""


class Workloads:
    """The workloads that one connection reaches. Safe to share between threads."""

    def __init__(self, client: Callable[[], Client]) -> None:
        """`client`: returns the client of now."""
        self._client = client
        self._ended: dict[str, Workload] = {}
        self._absent: dict[str, Absent] = {}
        self._reporting: dict[str, bool] = {}
        """Whether the nodes of a workload report, by its id; the service shows that only with what was submitted."""
        self._namespaces: dict[str, str] = {}
        self._projects: dict[str, str] = {}
        """Projects by the workload's id, as last seen."""

    # find

    def get(self, workload_id: str, doing: str) -> Answer:
        """Return one workload. Raises RunNotFound and other BackendErrors."""
        found: Answer = self._client().get(f"{WORKLOADS}/{workload_id}", doing)
        return found

    def named(self, name: str) -> list[Answer]:
        found = self._pages(f"looking for the workload {name}", filterBy=f"name=={name}")
        return [item for item in found if item.get("name") == name]

    def newest(self) -> Iterator[Answer]:
        return self._pages("listing workloads", sortBy="createdAt", sortOrder="desc")

    def environment_of(self, workload: Answer) -> Mapping[str, str]:
        """Return the variables of a workload's nodes."""
        environment = names.environment_of(workload)
        if KEY_VARIABLE in environment:
            return environment
        return names.environment_of(self._as_submitted(str(workload["id"])))

    def _as_submitted(self, workload_id: str) -> Answer:
        """Return what a workload was submitted with: older versions show its variables nowhere else."""
        for kind in PATHS.values():
            with suppress(RunNotFound):
                return self.get(f"{kind}/{workload_id}", "reading how a workload was submitted")
        return {}

    def as_submitted(self, ref: RunRef) -> Answer:
        """Return what a gang's workload was submitted with. Raises RunNotFound and other BackendErrors."""
        return self.get(f"{ref.topology}/{ref.job_id}", f"reading how {ref.key.name} was submitted")

    def _pages(self, doing: str, **query: str) -> Iterator[Answer]:
        return self._client().pages(WORKLOADS, "workloads", doing, **query)

    # look

    def look(self, refs: Sequence[RunRef]) -> dict[str, Workload]:
        """Return what the control plane says of each gang, by id; those that it does not find are not among them."""
        wanted = {ref.job_id: ref for ref in refs if ref.job_id not in self._ended}
        found: dict[str, Workload] = {}
        if len(wanted) > FEW:
            since = min(ref.submitted_at for ref in wanted.values()) - EARLIER
            for project in self._projects_of(wanted):
                found |= {each.id: each for each in self._since(since, project) if each.id in wanted}
        rest = [job_id for job_id in wanted if job_id not in found]
        found |= {each.id: each for each in in_parallel(self._now, rest) if each is not None}
        for workload in found.values():
            self._absent.pop(workload.id, None)
            self._projects[workload.id] = workload.project
            if workload.namespace:
                self._namespaces[workload.id] = workload.namespace
            if workload.phase in FINAL:
                self._ended[workload.id] = workload
        return {**found, **{ref.job_id: self._ended[ref.job_id] for ref in refs if ref.job_id in self._ended}}

    def _projects_of(self, wanted: Collection[str]) -> Sequence[str]:
        """Return the projects whose workloads are listed; where too many were never seen, those of the whole tenant."""
        known = {job_id: self._projects[job_id] for job_id in wanted if self._projects.get(job_id)}
        return sorted(set(known.values())) if len(wanted) - len(known) <= FEW else [EVERY_PROJECT]

    def _since(self, time_s: float, project: str) -> Iterator[Workload]:
        filters = f"createdAt>={datetime.fromtimestamp(time_s, timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')}"
        if project != EVERY_PROJECT:
            filters += f",projectId=={project}"
        return map(Workload.of, self._pages("asking for the phases of the workloads", filterBy=filters))

    def _now(self, workload_id: str) -> Workload | None:
        try:
            return Workload.of(self.get(workload_id, "asking for the phase of a workload"))
        except RunNotFound:
            return None

    def state_without(self, ref: RunRef) -> NodeState:
        """Return the state of a gang that was not found: deleted, where that is certain.

        A workload that was just created may be unknown for a moment, and one that these credentials may not see is
        not found, too. So it counts as deleted when it is listed as such, or was not found at looks over minutes.
        """
        name = names.workload_name(ref.key)
        doing = f"looking whether {ref.key.name} was deleted"
        deleted = self._pages(doing, deleted="true", filterBy=f"name=={name}")
        if any(item.get("id") == ref.job_id for item in deleted):
            return NodeState.MISSING
        now, before = time.monotonic(), self._absent.get(ref.job_id)
        absent = self._absent[ref.job_id] = before.again() if before else Absent(now)
        return NodeState.MISSING if absent.is_gone(now) else NodeState.UNKNOWN

    def has_agent(self, workload: Workload) -> bool:
        """Whether the nodes report: a container with a start of its own does not."""
        if workload.has_agent is not None:
            return workload.has_agent
        if workload.id not in self._reporting:
            found = names.environment_of(self._as_submitted(workload.id))
            self._reporting[workload.id] = names.START_VARIABLE in found
        return self._reporting[workload.id]

    def namespace_of(self, ref: RunRef) -> str | None:
        """Return the namespace of a gang's pods; None once the gang is gone."""
        if ref.job_id not in self._namespaces:
            found = self._now(ref.job_id)
            if found is None or not found.namespace:
                return None
            self._namespaces[ref.job_id] = found.namespace
        return self._namespaces[ref.job_id]

    def forget(self, ref: RunRef) -> None:
        for known in (self._ended, self._absent, self._namespaces, self._reporting, self._projects):
            known.pop(ref.job_id, None)

    # act

    def create(self, path: str, body: Mapping[str, Any]) -> str:
        """Create a workload by one request; return its id. Raises BackendError."""
        doing = f"creating the workload {body['name']}"
        answer = self._client().call("POST", f"{WORKLOADS}/{path}", doing, attempts=1, json=body)
        return str(answer["workloadId"])

    def suspend(self, ref: RunRef) -> None:
        self._act("POST", ref, "/suspend", "suspending")

    def resume(self, ref: RunRef) -> None:
        self._act("POST", ref, "/resume", "resuming")

    def delete(self, ref: RunRef) -> None:
        with suppress(RunNotFound):
            self._act("DELETE", ref, "", "deleting")

    def _act(self, method: str, ref: RunRef, act: str, doing: str) -> None:
        path = f"{WORKLOADS}/{ref.topology}/{ref.job_id}{act}"
        self._client().call(method, path, f"{doing} the workload of {ref.key.name}")
