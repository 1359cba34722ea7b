"""Data Science job runs: accepted, executed as real processes, ended; their records and routes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator import trees
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.data_science import lifecycle
from airflow_provider_ocidist.emulator.data_science.artifacts import Artifacts
from airflow_provider_ocidist.emulator.data_science.execution import Execution
from airflow_provider_ocidist.emulator.data_science.jobs import Job, Jobs
from airflow_provider_ocidist.emulator.data_science.layout import Layout, effective, layout_of, mounts_of
from airflow_provider_ocidist.emulator.data_science.lifecycle import GroupState, RunEnd, State
from airflow_provider_ocidist.emulator.data_science.node_history import NodeHistory
from airflow_provider_ocidist.emulator.data_science.node_plans import RunFacts, mount_notes, orders_of
from airflow_provider_ocidist.emulator.data_science.resources import (
    BASE,
    Body,
    Collection,
    ResourceKind,
    StoredResource,
    named,
    shared_body,
)
from airflow_provider_ocidist.emulator.data_science.rules import check_run
from airflow_provider_ocidist.emulator.data_science.storage_mounts import StorageMounts
from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.logs.service import Logs
from airflow_provider_ocidist.emulator.nodes.capacity import Capacity
from airflow_provider_ocidist.emulator.nodes.life import LifeEnd, OutputSink
from airflow_provider_ocidist.emulator.nodes.machine import NodeError
from airflow_provider_ocidist.emulator.nodes.processes import can_mount
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRun(StoredResource):
    """A job run, as stored. Its creation is what the service calls its acceptance."""

    job_id: str
    state: str = State.ACCEPTED
    lifecycle_details: str = "Job run accepted."
    time_started: str | None = None
    time_finished: str | None = None
    infrastructure: Mapping[str, Any] | None = None
    mounts: tuple[Mapping[str, Any], ...] = ()
    log_details: Mapping[str, str] | None = None
    node_groups: tuple[Mapping[str, str], ...] | None = None
    """Node groups; None for a single-node run."""

    @property
    def is_over(self) -> bool:
        return State(self.state) in lifecycle.TERMINAL


class Discard:
    """Takes the output of a run whose job does not log: the service drops it as well."""

    def write(self, stream: int, data: bytes) -> None:
        """Drop the output."""

    def close(self) -> None:
        """There is nothing to close."""


class JobRunLives:
    """Keeps runs, and keeps each live one moving in a task of its own."""

    def __init__(
        self,
        context: Context,
        identity: Identity,
        jobs: Jobs,
        artifacts: Artifacts,
        logs: Logs,
        retries: RetryTokens,
        capacity: Capacity,
        mounts: StorageMounts,
    ) -> None:
        self._context = context
        self._mounts = mounts
        self._jobs = jobs
        self._artifacts = artifacts
        self._logs = logs
        self._capacity = capacity
        self._folder = context.folder / "runs"
        self._folder.mkdir(exist_ok=True)
        self.all = Collection(
            context.store, JOB_RUN, identity, retries, make=self._accept, check_change=self._check_change
        )
        self.nodes = NodeHistory()
        self._live: dict[str, Execution] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._end_lost_runs()

    def _end_lost_runs(self) -> None:
        """End the runs that the records call alive: no process outlives its emulator."""
        for run in self.all.values():
            if not run.is_over:
                self._end(run.id, lifecycle.after_restart(State(run.state)))
        for folder in self._folder.iterdir():
            trees.remove(folder)

    def routes(self) -> list[Route]:
        one = f"{BASE}/jobRuns/{{id}}"
        return [
            *self.all.routes(),
            Route("DELETE", one, self.delete),
            Route("POST", f"{one}/actions/cancelJobRun", self.cancel),
        ]

    def _accept(self, call: Call, details: Mapping[str, Any]) -> JobRun:
        if self._closed:
            raise ApiError(503, "ServiceUnavailable", "The emulator is stopping.")
        check_run(details)
        job = self._jobs.all.existing(details["jobId"])
        self._jobs.check_references(details)
        layout = layout_of(job.details, details)
        if job.artifact_name is None and not all(group.container for group in layout.groups):
            raise incorrect_state("The job has no artifact, and no container image to run instead.")
        run = self._new(call, job, layout, details)
        self._start(run, job, layout)
        return run

    def _new(self, call: Call, job: Job, layout: Layout, details: Mapping[str, Any]) -> JobRun:
        run_id = new_ocid("datasciencejobrun")
        groups = tuple(
            {"name": group.name, "lifecycleState": GroupState.CREATING, "lifecycleDetails": "Accepted."}
            for group in layout.groups
        )
        return JobRun(
            id=run_id,
            job_id=job.id,
            details=named(details, "jobrun"),
            created_by=call.actor,
            infrastructure=effective(job.details, details, "jobInfrastructureConfiguration"),
            mounts=tuple(mounts_of(job.details, details)),
            log_details=self._log_details(run_id, job, details),
            node_groups=groups if layout.multi_node else None,
        )

    def _log_details(self, run_id: str, job: Job, details: Mapping[str, Any]) -> dict[str, str] | None:
        wanted = effective(job.details, details, "jobLogConfiguration") or {}
        if not wanted.get("enableLogging"):
            return None
        log_id = wanted.get("logId")
        if wanted.get("enableAutoLogCreation"):
            log_id = self._logs.add_log(wanted["logGroupId"], run_id)
        return {"logGroupId": wanted["logGroupId"], "logId": log_id}

    def _start(self, run: JobRun, job: Job, layout: Layout) -> None:
        """Execute a run in a task. It begins when its caller next waits, and by then the record is stored."""
        folder = self._folder / run.id.rpartition(".")[2]
        orders = orders_of(self._facts(run, job), layout, self._context, folder)
        execution = Execution(orders, self._capacity, self._context.options, RunNotes(self, run.id))
        self._live[run.id] = execution
        self._tasks[run.id] = asyncio.create_task(self._run_to_end(run, execution))

    async def _run_to_end(self, run: JobRun, execution: Execution) -> None:
        run_id = run.id
        try:
            async with self._mounts.in_use(run.mounts):
                ending = await execution.run()
        except NodeError as error:
            ending = lifecycle.not_started(str(error))
        except Exception as error:
            logger.exception("%s: the emulator failed to run it", run_id)
            ending = lifecycle.not_started(f"Internal error: {error}")
        finally:
            if not self._context.options.keep_node_files:
                trees.remove(self._folder / run_id.rpartition(".")[2])
            del self._live[run_id]
            del self._tasks[run_id]
        if not execution.abandoned:
            canceled = self.all.get(run_id).state == State.CANCELING
            self._end(run_id, lifecycle.after_cancel() if canceled else ending)

    def _facts(self, run: JobRun, job: Job) -> RunFacts:
        details = run.details
        environment = {
            "TENANCY_OCID": self._context.ids.tenancy_id,
            "PROJECT_OCID": details["projectId"],
            "PROJECT_COMPARTMENT_OCID": self._jobs.projects.compartment_of(details["projectId"]),
            "JOB_OCID": job.id,
            "JOB_COMPARTMENT_OCID": job.details["compartmentId"],
            "JOB_ARTIFACT_FILE_NAME": job.artifact_name or "",
            "JOB_RUN_OCID": run.id,
            "JOB_RUN_COMPARTMENT_OCID": details["compartmentId"],
        }
        return RunFacts(
            run_id=run.id,
            compartment_id=details["compartmentId"],
            display_name=details["displayName"],
            environment=environment,
            artifact=self._artifacts.of(job),
            mounts=self._mounts.folders(run.mounts),
            private_mounts=can_mount(),
            notes=lambda: [*mount_notes(run.mounts, private=can_mount()), *self._mounts.problems(run.mounts)],
            output=lambda rank: self._output(run, rank),
        )

    def _output(self, run: JobRun, rank: int | None) -> OutputSink:
        if run.log_details is None:
            return Discard()
        return self._logs.output(run.id, run.log_details["logId"], rank)

    def move(self, run_id: str, state: State, details: str, **fields: Any) -> None:
        """Record the next state of a run."""
        run = self.all.get(run_id)
        lifecycle.check_move(State(run.state), state)
        self.all.change(run, state=state, lifecycle_details=details, **fields)

    def _end(self, run_id: str, ending: RunEnd) -> None:
        """Record how a run ended, and with it those of its groups that have not ended before."""
        group_state = GroupState.FAILED if ending.state is State.FAILED else GroupState.DELETED
        for group in self.all.get(run_id).node_groups or ():
            self.group_is(run_id, group["name"], group_state, ending.details)
        self.move(run_id, ending.state, ending.details, time_finished=now())

    def group_is(self, run_id: str, name: str, state: GroupState, details: str) -> None:
        """Record the state of a node group, unless it is over."""
        run = self.all.get(run_id)
        over = (GroupState.DELETED, GroupState.FAILED)
        groups = tuple(
            {"name": name, "lifecycleState": state, "lifecycleDetails": details}
            if group["name"] == name and group["lifecycleState"] not in over
            else group
            for group in run.node_groups or ()
        )
        if groups:
            self.all.change(run, node_groups=groups)

    def _check_change(self, _: JobRun, details: Mapping[str, Any]) -> None:
        self._jobs.check_references(details)

    async def cancel(self, call: Call) -> Response:
        run = self.all.asked(call)
        lifecycle.check_cancel(State(run.state))
        self.move(run.id, State.CANCELING, "Job run is being canceled.")
        self._live[run.id].cancel()
        return answer()

    async def delete(self, call: Call) -> Response:
        run = self.all.asked(call)
        lifecycle.check_delete(State(run.state))
        self.remove(run.id)
        return answer()

    def remove(self, run_id: str) -> None:
        self.move(run_id, State.DELETED, "Job run was deleted.")

    async def close(self) -> None:
        """Accept no more runs, and end the active ones. Their records show it after a restart."""
        self._closed = True
        await self.end_all()
        self._capacity.close()

    async def end_all(self) -> None:
        """Kill every node, now."""
        # Until there is none: while some end, others may be accepted.
        while self._tasks:
            for execution in self._live.values():
                execution.abandon()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def reset(self) -> None:
        await self.end_all()
        self.nodes.clear()
        self.all.clear()


class RunNotes:
    """What an execution may write down of its own run."""

    def __init__(self, runs: JobRunLives, run_id: str) -> None:
        self._runs = runs
        self._run_id = run_id

    def is_started(self) -> None:
        if self._state is State.ACCEPTED:
            text = lifecycle.RUNNING_TEXT
            self._runs.move(self._run_id, State.IN_PROGRESS, text, time_started=now())

    def needs_attention(self, *, needed: bool) -> None:
        if needed and self._state is State.IN_PROGRESS:
            self._runs.move(self._run_id, State.NEEDS_ATTENTION, lifecycle.ATTENTION_TEXT)
        elif not needed and self._state is State.NEEDS_ATTENTION:
            self._runs.move(self._run_id, State.IN_PROGRESS, lifecycle.RUNNING_TEXT)

    def group_is(self, name: str, state: GroupState, details: str) -> None:
        self._runs.group_is(self._run_id, name, state, details)

    def node_accepted(self, rank: int, group: str) -> None:
        self._runs.nodes.accepted(self._run_id, rank, group)

    def node_has_address(self, rank: int, address: str) -> None:
        self._runs.nodes.has_address(self._run_id, rank, address)

    def node_started(self, rank: int) -> None:
        self._runs.nodes.started(self._run_id, rank)

    def node_ended(self, end: LifeEnd) -> None:
        self._runs.nodes.ended(self._run_id, end)

    @property
    def _state(self) -> State:
        return State(self._runs.all.get(self._run_id).state)


def _summary(run: JobRun) -> Body:
    return {
        **shared_body(run),
        "projectId": run.details["projectId"],
        "jobId": run.job_id,
        "timeAccepted": run.time_created,
        "timeStarted": run.time_started,
        "timeFinished": run.time_finished,
        "lifecycleDetails": run.lifecycle_details,
    }


def _body(run: JobRun) -> Body:
    return {
        **run.details,
        **_summary(run),
        "jobInfrastructureConfigurationDetails": run.infrastructure,
        "jobStorageMountConfigurationDetailsList": list(run.mounts),
        "logDetails": run.log_details,
        "nodeGroupDetailsList": list(run.node_groups or ()),
    }


JOB_RUN = ResourceKind(
    name="job_run",
    decode=JobRun,
    path="jobRuns",
    states=frozenset(State),
    summary=_summary,
    body=_body,
    filters=("id", "jobId", "createdBy", "displayName", "lifecycleState"),
)
