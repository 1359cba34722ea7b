"""Workloads: the workloads at one control plane, in as few requests as it allows, and what is known of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends.node_config import KEY_VARIABLE
from airflow_provider_ocidist.backends.runai import names
from airflow_provider_ocidist.backends.runai.client import Garbled
from airflow_provider_ocidist.backends.runai.phases import STOPPED, Workload, waits
from airflow_provider_ocidist.backends.runai.plans import PATHS
from airflow_provider_ocidist.errors import BackendError, RunNotFound
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
UNSHOWN_LIMIT = 3600.0
"""Seconds after which a suspension is the end of a workload of which it is not shown whether it waits."""

Answer = Mapping[str, Any]
"""A workload as the control plane describes it."""


class NotShown(BackendError):
    """A workload is there, and what it was submitted with is not found: whose it is cannot be seen."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the workload {name} is there, and what it was submitted with is not found (404): it may be this task's, "
            "and run; a workload of this name that ocidist has not made has to be deleted",
            status_code=404,
            retryable=True,
        )
        # The service may have accepted a gang of this task: a first try, too, asks until the answers agree.
        self.after_acceptance = True


class Workloads:
    """The workloads that one connection reaches. Safe to share between threads."""

    def __init__(self, client: Callable[[], Client]) -> None:
        """`client`: returns the client of now."""
        self._client = client
        self._ended: dict[str, Workload] = {}
        self._absent: dict[str, Absent] = {}
        self._variables: dict[str, Mapping[str, str]] = {}
        """Variables of workloads by their ids, where the service shows them only with what was submitted."""
        self._unshown_since: dict[str, float] = {}
        """Times since which it is not shown whether a suspended workload waits, by its id."""
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
        """Return the variables of a workload's nodes. Raises as `_as_submitted`."""
        environment = names.environment_of(workload)
        if KEY_VARIABLE in environment:
            return environment
        return names.environment_of(self._as_submitted(str(workload["id"]), str(workload["name"])))

    def _as_submitted(self, workload_id: str, name: str) -> Answer:
        """Return what a workload was submitted with: older versions show its variables nowhere else.

        Raises NotShown, as for a moment after the submission; and other BackendErrors.
        """
        for kind in PATHS.values():
            with suppress(RunNotFound):
                return self.get(f"{kind}/{workload_id}", "reading how a workload was submitted")
        raise NotShown(name)

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
                listed = [each for each in self._since(since, project) if each.id in wanted]
                found |= {each.id: each for each in in_parallel(self._completed, listed)}
        rest = [job_id for job_id in wanted if job_id not in found]
        found |= {each.id: each for each in in_parallel(self.now, rest) if each is not None}
        for workload in found.values():
            # Also those of a list.
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

    def now(self, workload_id: str) -> Workload | None:
        """Return one workload; None where it is not found. Raises other BackendErrors."""
        try:
            answer = self.get(workload_id, "asking for the phase of a workload")
        except RunNotFound:
            return None
        self._absent.pop(workload_id, None)
        return self._completed(Workload.of(answer))

    def _completed(self, workload: Workload) -> Workload:
        """Return a workload with what a suspension means to it, if that is shown now."""
        if workload.has_agent is not None or workload.phase not in STOPPED:
            return workload
        found = self._variables_of(workload)
        if found is not None:
            self._unshown_since.pop(workload.id, None)
            return replace(workload, waits=waits(found))
        now = time.monotonic()
        is_over = now - self._unshown_since.setdefault(workload.id, now) >= UNSHOWN_LIMIT
        return replace(workload, waits=False if is_over else None)

    def _variables_of(self, workload: Workload) -> Mapping[str, str] | None:
        """Return the variables of a workload's nodes; None where they are not shown now.

        Without an answer for one gang the look goes on at the others.
        """
        if workload.id not in self._variables:
            try:
                found = names.environment_of(self._as_submitted(workload.id, workload.name))
            except BackendError:
                return None
            kept = (names.START_VARIABLE, names.SUSPENSION_VARIABLE)
            self._variables[workload.id] = {name: found[name] for name in kept if name in found}
        return self._variables[workload.id]

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

    def has_agent(self, workload: Workload) -> bool | None:
        """Whether the nodes report: a container with a start of its own does not. None if it is not shown now."""
        if workload.has_agent is not None:
            return workload.has_agent
        found = self._variables_of(workload)
        return None if found is None else names.START_VARIABLE in found

    def namespace_of(self, ref: RunRef) -> str | None:
        """Return the namespace of a gang's pods; None once the gang is gone."""
        if ref.job_id not in self._namespaces:
            found = self.now(ref.job_id)
            if found is None or not found.namespace:
                return None
            self._namespaces[ref.job_id] = found.namespace
        return self._namespaces[ref.job_id]

    def forget(self, ref: RunRef) -> None:
        for known in (
            self._ended,
            self._absent,
            self._namespaces,
            self._variables,
            self._projects,
            self._unshown_since,
        ):
            known.pop(ref.job_id, None)

    # act

    def create(self, path: str, body: Mapping[str, Any]) -> str:
        """Create a workload by one request; return its id. Raises BackendError, retryable where it may be there."""
        doing = f"creating the workload {body['name']}"
        try:
            answer = self._client().call("POST", f"{WORKLOADS}/{path}", doing, attempts=1, json=body)
        except Garbled as error:
            # The request may have been carried out.
            raise BackendError(str(error), retryable=True) from error
        found = answer.get("workloadId") if isinstance(answer, Mapping) else None
        if not found:
            raise BackendError(f"{doing}: the answer names no workload", retryable=True)
        return str(found)

    def suspend(self, ref: RunRef) -> None:
        self._act("POST", ref, "/suspend", "suspending")

    def resume(self, ref: RunRef) -> None:
        self._act("POST", ref, "/resume", "resuming")

    def delete(self, ref: RunRef) -> None:
        """Delete the workload of a gang. Raises RunNotFound and other BackendErrors."""
        self._act("DELETE", ref, "", "deleting")

    def _act(self, method: str, ref: RunRef, act: str, doing: str) -> None:
        path = f"{WORKLOADS}/{ref.topology}/{ref.job_id}{act}"
        self._client().call(method, path, f"{doing} the workload of {ref.key.name}")
