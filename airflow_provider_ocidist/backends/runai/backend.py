"""Gangs as workloads of Run:ai: one workload holds all nodes, and their run directory what its REST does not say."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backends import run_dir_files
from airflow_provider_ocidist.backends.base import LOG_LINES, LogLine, LogPart
from airflow_provider_ocidist.backends.cancels import EndAnswer, cancel_at_both
from airflow_provider_ocidist.backends.capabilities import (
    ChecksBeforehand,
    Finding,
    HasCommandLine,
    KeepsTime,
    ListsGangs,
    NamesSecrets,
    OpensById,
    PreparesCancels,
    ShowsWhatItCreated,
    Suspends,
)
from airflow_provider_ocidist.backends.kubernetes.pod_logs import Turns
from airflow_provider_ocidist.backends.node_config import (
    KEY_VARIABLE,
    expectations,
    key_in,
    secrets_of_nodes,
    shared_fields,
)
from airflow_provider_ocidist.backends.runai import command_lines, names, pod_logs, preflight
from airflow_provider_ocidist.backends.runai.options import KIND, Fields
from airflow_provider_ocidist.backends.runai.phases import Workload, node_states
from airflow_provider_ocidist.backends.runai.plans import CLUSTER_ID, PATHS, asked_for, make_plan
from airflow_provider_ocidist.backends.runai.projects import chosen, projects_of, with_ids
from airflow_provider_ocidist.backends.runai.suspensions import Suspensions
from airflow_provider_ocidist.backends.runai.workloads import FINAL, Answer, NotShown, Workloads
from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.backends.work_dir_backend import WorkDirBackend, refuse_if_stopped
from airflow_provider_ocidist.errors import (
    AgentError,
    BackendError,
    Cause,
    RunNotFound,
)
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import (
    Ending,
    NodeState,
    NodeStatus,
    Plan,
    Request,
    RunKey,
    RunRecord,
    RunRef,
)
from airflow_provider_ocidist.work_dir.reports import Reported

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.runai.client import Client

CLUSTERS = "/api/v1/clusters"
LOOKS, BETWEEN_LOOKS = 10, 1.0
"""Number of looks at a list, and seconds between them, for a workload whose name is taken: lists may lag."""
NAME_TAKEN = re.compile(r"already (exists?|in use|taken)|not unique|duplicate", re.IGNORECASE)
"""Words by which a refusal with status 400 says that a name is taken; "does not exist" is about something else."""


class Runai(
    KeepsTime,
    PreparesCancels,
    OpensById,
    ListsGangs,
    HasCommandLine,
    NamesSecrets,
    ShowsWhatItCreated,
    ChecksBeforehand,
    Suspends,
    WorkDirBackend[Mapping[str, Workload]],
):
    """Creates workloads in a project and watches them; all that concerns single nodes is in their reports."""

    kind = KIND
    conn_types = ("runai",)
    reads = Fields

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self._service_clock = ServiceClock()
        self._workloads = Workloads(lambda: self._client)
        self._urgent_workloads = Workloads(lambda: self._urgent_client)
        self._suspensions = Suspensions(self._run_dirs)
        self._turns = Turns()

    def _take(self, fields: Mapping[str, Any]) -> None:
        super()._take(fields)
        self._fields = Fields.of(fields)
        self._cluster = pod_logs.api_of(self._fields)
        self._made: dict[bool, Client] = {}
        """Clients by whether they are for cancels, which have connections and a token of their own."""
        self._making = threading.Lock()

    def _work_dir(self) -> str | None:
        return self._fields.work_dir

    @property
    def _client(self) -> Client:
        return self._client_for(urgent=False)

    @property
    def _urgent_client(self) -> Client:
        return self._client_for(urgent=True)

    def _client_for(self, *, urgent: bool) -> Client:
        from airflow_provider_ocidist.backends.runai.client import Client

        with self._making:
            if urgent not in self._made:
                self._made[urgent] = Client(self._fields, urgent=urgent, service_clock=self._service_clock)
            return self._made[urgent]

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        return make_plan(job, key, self._fields)

    @staticmethod
    def equivalents(plan: Plan) -> dict[str, str]:
        return command_lines.equivalents(plan)

    # beforehand

    def preflight(self, job: TrainingJob) -> list[Finding]:
        plan = self._preflight_plan(job)
        (request,) = plan.requests
        return [
            *self._admission(request.body, plan.nodes),
            self._work_dir_finding(plan),
        ]

    def _admission(self, body: Mapping[str, Any], nodes: int) -> Iterator[Finding]:
        """Yield whether the control plane takes the account, its project, and as many GPUs."""
        try:
            projects = projects_of(self._client)
            clusters = self._client.get(CLUSTERS, "looking for the cluster")
        except BackendError as error:
            yield Finding.failed("sign-in", str(error), preflight.ACCESS)
            return
        yield Finding.passed("sign-in", f"the control plane takes the service account ({self._fields.url})")
        try:
            project = chosen(projects, str(body["projectId"]))
        except BackendError as error:
            yield Finding.failed(
                "project", str(error), "correct backend.project, or give the account an access rule"
            )
            return
        yield Finding.passed("project", f"the account may use project {project['name']}")
        given = str(body["clusterId"])
        yield preflight.cluster_of(clusters, str(project["clusterId"]) if given == CLUSTER_ID else given)
        yield from preflight.node_pools_of(project, body["spec"])
        yield preflight.quota_of(project, body["spec"], nodes)

    # submit

    def _adopted(self, plan: Plan, found: Sequence[RunRef]) -> RunRef | None:
        return next((ref for ref in found if ref.key == plan.key), None) or self._existing(plan)

    def _existing(self, plan: Plan, *, is_last: bool = True) -> RunRef | None:
        """Return the gang that exists under the plan's name. Raises BackendError where that is another's.

        `is_last`: whether to raise for one of which it cannot be seen yet whose it is; else it is left out.
        """
        (request,) = plan.requests
        for workload in self._workloads.named(request.body["name"]):
            try:
                found = self._opened(workload)
            except NotShown:
                if is_last:
                    raise
                continue
            if found is not None and (found.key, found.run_dir) == (plan.key, plan.run_dir):
                return found
            if Workload.of(workload).is_going:
                # Another's, whose name is free in a moment.
                continue
            if found is None or found.key == plan.key:
                place = f"the nodes meet in {found.run_dir}" if found else "ocidist has not made it"
                raise BackendError(
                    f"a workload named {workload['name']} exists already and belongs to another run: {place}; "
                    "delete it, or name the work_dir that it has",
                    cause=Cause.CONFIG,
                )
        return None

    def _created(self, plan: Plan, stop: threading.Event | None) -> RunRef:
        run_dir_files.write(plan, self._run_dirs)
        refuse_if_stopped(plan, stop)
        (request,) = plan.requests
        body = with_ids(request.body, self._client)
        for attempt in range(LOOKS):
            try:
                workload_id = self._workloads.create(PATHS[request.verb], body)
                return _ref_of(plan, workload_id, self.now())
            except BackendError as error:
                refused, taken = error, _is_taken(error)
            # Also a request that was not answered may have been taken; and 400 has no words that are promised.
            again = (taken or refused.retryable) and attempt < LOOKS - 1
            if not (taken or refused.retryable or refused.status_code == 400):
                raise refused
            if taken or refused.retryable:
                time.sleep(BETWEEN_LOOKS if attempt else 0.1)
            try:
                found = self._existing(plan, is_last=not again)
            except BackendError as error:
                if again or taken or refused.retryable:
                    raise
                raise refused from error
            if found is not None:
                return found
            if not again and taken:
                raise _still_taken(refused) from refused
            if not again:
                raise refused
        raise AssertionError("unreachable")

    # find

    def _gangs_of(self, attempt: Attempt) -> list[RunRef]:
        found = map(self._opened, self._workloads.named(names.workload_name(attempt.key)))
        return [ref for ref in found if ref is not None and ref.run_dir == attempt.place.run_dir]

    def _opened(self, workload: Answer) -> RunRef | None:
        """Return the gang that a workload is; None where ocidist has not made it.

        Raises NotShown and other BackendErrors.
        """
        try:
            environment = self._workloads.environment_of(workload)
        except NotShown:
            if Workload.of(workload).is_going:
                return None
            raise
        key = key_in(environment)
        if key is None:
            return None
        with suppress(AgentError):
            config = names.config_in(environment)
            return RunRef(
                backend=KIND,
                key=key,
                job_id=str(workload["id"]),
                run_ids=names.pod_names(str(workload["name"]), config.nodes),
                submitted_at=Workload.of(workload).created_at,
                topology="distributed" if config.nodes > 1 else "trainings",
                has_own_log=True,
                **shared_fields(config),
            )
        return None

    def open(self, resource_id: str) -> RunRecord:
        workload = self._workloads.get(resource_id, f"looking for the workload {resource_id}")
        ref = self._opened(workload)
        if ref is None:
            raise RunNotFound(f"{resource_id} was not started by ocidist", cause=Cause.CONFIG)
        config = names.config_in(self._workloads.environment_of(workload))
        return RunRecord.of(ref, config, expectations(config))

    def secrets_of(self, ref: RunRef) -> set[str]:
        doing = f"reading the variables of {ref.key.name}"
        with suppress(RunNotFound):
            workload = self._workloads.get(ref.job_id, doing)
            return secrets_of_nodes([self._workloads.environment_of(workload)])
        return set()

    def created(self, ref: RunRef) -> tuple[Request, ...]:
        found = self._workloads.as_submitted(ref)
        (verb,) = [verb for verb, path in PATHS.items() if path == ref.topology]
        return (Request(verb=verb, body=asked_for(found)),)

    def planned(self, plan: Plan) -> tuple[Request, ...]:
        (request,) = plan.requests
        return (replace(request, body=asked_for(with_ids(request.body, self._client))),)

    def recent(self, limit: int, name: str = "") -> list[RunRef]:
        found: list[RunRef] = []
        for workload in self._workloads.newest():
            ref = self._opened(workload) if KEY_VARIABLE in names.environment_of(workload) else None
            if ref is not None and name in ref.key.name:
                found.append(ref)
            if len(found) == limit:
                break
        return found

    # look

    def now(self) -> float:
        at_the_service = self._service_clock.now()
        return time.time() if at_the_service is None else at_the_service

    def _look(self, refs: Sequence[RunRef]) -> Mapping[str, Workload]:
        return self._workloads.look(refs)

    def _reads_all(self, ref: RunRef, seen: Mapping[str, Workload]) -> bool:
        return _is_over(seen.get(ref.job_id))

    def _nodes(
        self, ref: RunRef, seen: Mapping[str, Workload], reported: Mapping[int, Reported] | None
    ) -> list[NodeStatus]:
        workload = seen.get(ref.job_id)
        reports = None if reported is None else [_report_of(reported, rank) for rank in range(ref.nodes)]
        if workload is not None:
            self._suspensions.seen(ref, workload, partial(self._workloads.now, ref.job_id))
        state = self._workloads.state_without(ref) if workload is None else workload.state
        has_agent = workload is None or self._workloads.has_agent(workload)
        states = node_states(state, reports, ref.nodes, has_agent=has_agent)
        return [
            NodeStatus(
                rank=rank,
                run_id=ref.run_ids[rank],
                state=own,
                details=workload.details if workload else None,
                cause=workload.cause if workload and own is not NodeState.SUCCEEDED else None,
                started_at=report.started_at if report else None,
                finished_at=_finished_at(own, workload, report),
                report=report,
            )
            for rank, (own, report) in enumerate(zip(states, reports or [None] * ref.nodes, strict=True))
        ]

    def forget(self, ref: RunRef) -> None:
        super().forget(ref)
        for workloads in (self._workloads, self._urgent_workloads):
            workloads.forget(ref)
        self._suspensions.forget(ref)

    def logs_of(
        self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = LOG_LINES
    ) -> list[LogPart]:
        """Return the lines of the pods, where the connection has a way into the cluster; else the nodes' last ones.

        The control plane has no logs.
        """
        if self._cluster is None:
            return [LogPart(self._last_lines(ref, since)) for ref, since in wanted]
        gangs = [(ref, self._workloads.namespace_of(ref), since) for ref, since in wanted]
        return pod_logs.read(self._cluster, gangs, most, self._turns)

    def _last_lines(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        reported = self._reports.read({ref.run_dir: True}).get(ref.run_dir) or {}
        lines = [
            line for rank, each in reported.items() if each.report for line in last_lines(rank, each.report)
        ]
        return sorted((line for line in lines if line.time >= since[line.rank]), key=lambda line: line.time)

    # suspend and resume

    def suspend(self, ref: RunRef) -> None:
        self._workloads.suspend(ref)

    def resume(self, ref: RunRef) -> None:
        self._workloads.resume(ref)

    # end

    def ready_to_cancel(self, ref: RunRef) -> None:
        self._urgent_client.ready()
        self._urgent_dirs.at(ref.run_dir)

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        """Delete the workload: one that is only suspended could be resumed. What it has saved stays."""
        cancel_at_both(self._end, self.directories, ref, ending)

    def _end(self, ref: RunRef) -> EndAnswer:
        try:
            self._urgent_workloads.delete(ref)
        except RunNotFound as error:
            return self._unless_gone(ref, error)
        except BackendError as error:
            return EndAnswer(error)
        return EndAnswer()

    def _unless_gone(self, ref: RunRef, error: RunNotFound) -> EndAnswer:
        """Return what a 404 means: a workload that was just created may be hidden for a moment."""
        workloads = self._urgent_workloads
        try:
            workload = workloads.now(ref.job_id)
            if workload is None:
                is_deleted = workloads.state_without(ref) is NodeState.MISSING
                return EndAnswer() if is_deleted else EndAnswer(unseen=error)
        except BackendError as refused:
            return EndAnswer(refused)
        # One that is only stopped could be resumed.
        if workload.is_going or workload.phase in FINAL:
            return EndAnswer()
        words = f"{error}; all the same it is shown as {workload.phase}"
        return EndAnswer(BackendError(words, status_code=404, retryable=True))

    def delete(self, ref: RunRef) -> None:
        with suppress(RunNotFound):
            self._workloads.delete(ref)


def _ref_of(plan: Plan, workload_id: str, at: float) -> RunRef:
    (request,) = plan.requests
    pods = names.pod_names(request.body["name"], plan.nodes)
    return RunRef.of(plan, workload_id, pods, submitted_at=at, has_own_log=True)


def _is_taken(error: BackendError) -> bool:
    """Whether a refusal says that a workload of the name is there."""
    return error.status_code == 409 or (error.status_code == 400 and bool(NAME_TAKEN.search(str(error))))


def _still_taken(error: BackendError) -> BackendError:
    return BackendError(
        f"{error}; the one before of this name is just being deleted, or is not shown",
        status_code=error.status_code,
        retryable=True,
    )


def _is_over(workload: Workload | None) -> bool:
    return workload is None or workload.state.terminal


def _report_of(reported: Mapping[int, Reported], rank: int) -> NodeReport | None:
    return reported[rank].report if rank in reported else None


def _finished_at(state: NodeState, workload: Workload | None, report: NodeReport | None) -> float | None:
    """Return when a node ended: by its own report, else with the workload."""
    if not state.terminal:
        return None
    own = report.ran_until if report else None
    return own or (workload.completed_at if workload else None)


def last_lines(rank: int, report: NodeReport) -> Iterable[LogLine]:
    """Return the last lines that a node printed, which its last report holds; all of them bear the time of its end."""
    if report.phase is Phase.DONE and report.tail:
        at = report.ran_until
        for number, text in enumerate(report.tail.splitlines()):
            yield LogLine(id=f"{rank}-tail-{number}", time=at, rank=rank, text=text)
