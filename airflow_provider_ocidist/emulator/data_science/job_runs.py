"""Data Science job runs: accepted, run as a real process, ended; their records and routes."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.auth import tokens
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.control import NodeRules
from airflow_provider_ocidist.emulator.data_science import lifecycle
from airflow_provider_ocidist.emulator.data_science.jobs import (
    Job,
    Jobs,
    check_no_runs,
    filtered,
    generated_name,
    sorted_page,
)
from airflow_provider_ocidist.emulator.data_science.lifecycle import Ending, State
from airflow_provider_ocidist.emulator.data_science.rules import (
    check_common,
    check_environment,
    check_run,
    effective,
    merged_configuration,
)
from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state, not_found
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.logs.service import Logs, discard
from airflow_provider_ocidist.emulator.nodes import machine as nodes
from airflow_provider_ocidist.emulator.nodes import processes
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.nodes.machine import NodeError, NodeSpec
from airflow_provider_ocidist.emulator.nodes.processes import Node
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, check_if_match, new_etag, now

BASE = "/20190101/jobRuns"
FILTERS = ("id", "jobId", "createdBy", "displayName", "lifecycleState")
UPDATABLE = ("displayName", "freeformTags", "definedTags")
TOKEN_LIFETIME_S = 7 * 24 * 3600
"""Longer than a node lives: the service renews the token file, a node here has no need of it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRun:
    """A job run, as stored."""

    id: str
    job_id: str
    details: Mapping[str, Any]
    created_by: str
    state: str = State.ACCEPTED
    lifecycle_details: str = "Job run accepted."
    time_accepted: str = field(default_factory=now)
    time_started: str | None = None
    time_finished: str | None = None
    etag: str = field(default_factory=new_etag)
    infrastructure: Mapping[str, Any] | None = None
    log_details: Mapping[str, str] | None = None


@dataclass(slots=True)
class Live:
    """What exists only while a run does."""

    job: Job
    canceled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class JobRuns:
    """Keeps runs, and keeps each live one moving in a task of its own."""

    def __init__(
        self,
        context: Context,
        jobs: Jobs,
        logs: Logs,
        retries: RetryTokens,
        rules: NodeRules,
        pool: AddressPool,
    ) -> None:
        self._context = context
        self._jobs = jobs
        self._logs = logs
        self._retries = retries
        self._rules = rules
        self._pool = pool
        self._folder = context.folder / "runs"
        self._folder.mkdir(exist_ok=True)
        self._runs: Table[JobRun] = Table(context.store, "job_run", JobRun)
        self._live: dict[str, Live] = {}
        self._closed = False
        self._end_lost_runs()

    def _end_lost_runs(self) -> None:
        """No process outlives its emulator, so what the records call alive has ended."""
        for run in self._runs.values():
            if State(run.state) not in lifecycle.TERMINAL:
                self._end(run, lifecycle.after_restart(State(run.state)))
        for folder in self._folder.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def routes(self) -> list[Route]:
        one = f"{BASE}/{{id}}"
        return [
            Route("POST", BASE, self.create),
            Route("GET", BASE, self.list),
            Route("GET", one, self.get),
            Route("PUT", one, self.update),
            Route("DELETE", one, self.delete),
            Route("POST", f"{one}/actions/cancelJobRun", self.cancel),
            Route("POST", f"{one}/actions/changeCompartment", self.change_compartment),
            Route("DELETE", "/20190101/jobs/{id}", self.delete_job),
        ]

    async def create(self, call: Call) -> Response:
        details = await call.json()
        known = self._retries.find(call, details)
        run = self._runs.get(known) if known else None
        if run is None:
            run = self._accept(call, details)
        return answer(self._body(run), etag=run.etag)

    def _accept(self, call: Call, details: Mapping[str, Any]) -> JobRun:
        if self._closed:
            raise ApiError(503, "ServiceUnavailable", "The emulator is stopping.")
        check_run(details)
        job = self._jobs.active(details["jobId"])
        self._jobs.check_references(details)
        check_environment(merged_configuration(job.details, details)["environmentVariables"])
        if job.artifact_name is None and not _container(job, details):
            raise incorrect_state("The job has no artifact, and no container image to run instead.")
        run = self._new(call, job, details)
        self._runs.put(run.id, run)
        self._retries.remember(call, details, run.id)
        self._live[run.id] = live = Live(job)
        live.task = asyncio.create_task(self._run_to_end(run.id, live))
        return run

    def _new(self, call: Call, job: Job, details: Mapping[str, Any]) -> JobRun:
        run_id = new_ocid("datasciencejobrun")
        name = details.get("displayName") or generated_name("jobrun")
        return JobRun(
            id=run_id,
            job_id=job.id,
            details={**details, "displayName": name},
            created_by=call.actor,
            infrastructure=effective(job.details, details, "jobInfrastructureConfiguration"),
            log_details=self._log_details(run_id, job, details),
        )

    def _log_details(self, run_id: str, job: Job, details: Mapping[str, Any]) -> dict[str, str] | None:
        wanted = effective(job.details, details, "jobLogConfiguration") or {}
        if not wanted.get("enableLogging"):
            return None
        log_id = wanted.get("logId")
        if wanted.get("enableAutoLogCreation"):
            log_id = self._logs.add_log(wanted["logGroupId"], run_id)
        return {"logGroupId": wanted["logGroupId"], "logId": log_id}

    async def _run_to_end(self, run_id: str, live: Live) -> None:
        try:
            ending = await self._provision_and_run(run_id, live)
        except NodeError as error:
            ending = lifecycle.not_started(str(error))
        except Exception as error:
            logger.exception("%s: the emulator failed to run it", run_id)
            ending = lifecycle.not_started(f"Internal error: {error}")
        finally:
            del self._live[run_id]
        if live.canceled.is_set():
            ending = lifecycle.after_cancel()
        self._end(self._get(run_id), ending)

    async def _provision_and_run(self, run_id: str, live: Live) -> Ending:
        run = self._get(run_id)
        rule = self._rules.find(run.details["displayName"])
        delay = rule.delay_s if rule and rule.delay_s is not None else self._context.options.provisioning_s
        if await _happens(live.canceled, None if rule and rule.never_starts else delay):
            return lifecycle.after_cancel()
        if rule and rule.failure:
            return lifecycle.not_started(rule.failure)
        address = self._pool.take()
        folder = self._folder / run_id.rpartition(".")[2]
        try:
            return await self._run_node(run, live, self._spec(run, live.job, folder, address))
        finally:
            self._pool.give_back(address)
            if not self._context.options.keep_node_files:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _run_node(self, run: JobRun, live: Live, spec: NodeSpec) -> Ending:
        command = await asyncio.to_thread(nodes.prepare, spec)
        if live.canceled.is_set():
            return lifecycle.after_cancel()
        if run.log_details is None:
            return await self._supervise(run, live, await processes.start(command, discard))
        output = self._logs.output(run.id, run.log_details["logId"])
        try:
            return await self._supervise(run, live, await processes.start(command, output.write))
        finally:
            output.close()

    async def _supervise(self, run: JobRun, live: Live, node: Node) -> Ending:
        """Wait for the node's end, whoever brings it about. Leaves no process."""
        try:
            self._change(run.id, State.IN_PROGRESS, lifecycle.RUNNING_TEXT, time_started=now())
            minutes = self._configuration(run, live.job).get("maximumRuntimeInMinutes")
            limit = None if minutes is None else minutes * self._context.options.minute_s
            if await _first(node, live.canceled, limit):
                return lifecycle.after_exit(await node.exited)
            await stop(node, self._context.options.grace_s)
            return lifecycle.after_timeout(minutes or 0)
        finally:
            node.kill()
            await asyncio.shield(node.exited)

    def _configuration(self, run: JobRun, job: Job) -> dict[str, Any]:
        return merged_configuration(job.details, run.details)

    def _spec(self, run: JobRun, job: Job, folder: Path, address: str) -> NodeSpec:
        configuration = self._configuration(run, job)
        installation = self._context.installation
        return NodeSpec(
            folder=folder,
            service_environment=self._service_environment(run, job, address),
            user_environment=configuration["environmentVariables"],
            arguments=configuration.get("commandLineArguments") or "",
            artifact=self._jobs.artifact(job),
            container=_container(job, run.details),
            token=self._token(run),
            session_key=installation.session_key_file,
            region=installation.ids.region,
            endpoint=self._context.url,
        )

    def _service_environment(self, run: JobRun, job: Job, address: str) -> dict[str, str]:
        """The variables that the service documents for every job run."""
        return {
            "TENANCY_OCID": self._context.ids.tenancy_id,
            "PROJECT_OCID": run.details["projectId"],
            "PROJECT_COMPARTMENT_OCID": self._jobs.projects.compartment_of(run.details["projectId"]),
            "JOB_OCID": job.id,
            "JOB_COMPARTMENT_OCID": job.details["compartmentId"],
            "JOB_ARTIFACT_FILE_NAME": job.artifact_name or "",
            "JOB_RUN_OCID": run.id,
            "JOB_RUN_COMPARTMENT_OCID": run.details["compartmentId"],
            "FQDN": address,
        }

    def _token(self, run: JobRun) -> str:
        """Return the run's resource principal session token."""
        installation = self._context.installation
        tenancy_id = installation.ids.tenancy_id
        claims = {
            "sub": run.id,
            "tenant": tenancy_id,
            "ptype": "resource",
            "res_type": "datasciencejobrun",
            "res_id": run.id,
            "res_tenant": tenancy_id,
            "res_compartment": run.details["compartmentId"],
        }
        session = installation.session.public_key()
        return tokens.issue(installation.issuer, session, claims, lifetime_s=TOKEN_LIFETIME_S)

    def _get(self, run_id: str) -> JobRun:
        run = self._runs.get(run_id)
        if run is None:
            raise not_found()
        return run

    def _change(self, run_id: str, state: State, details: str, **changes: Any) -> None:
        run = self._get(run_id)
        if state is State.IN_PROGRESS and State(run.state) is State.CANCELING:
            return
        lifecycle.check_move(State(run.state), state)
        changed = replace(run, state=state, lifecycle_details=details, etag=new_etag(), **changes)
        self._runs.put(run_id, changed)

    def _end(self, run: JobRun, ending: Ending) -> None:
        self._change(run.id, ending.state, ending.details, time_finished=now())

    async def get(self, call: Call) -> Response:
        run = self._get(call.params["id"])
        return answer(self._body(run), etag=run.etag)

    async def list(self, call: Call) -> Response:
        self._jobs.identity.check_compartment(call.required_query("compartmentId"))
        found = filtered(call, [_summary(run) for run in self._runs.values()], FILTERS)
        chosen, headers = sorted_page(call, found, "timeAccepted")
        return answer(chosen, headers=headers)

    async def update(self, call: Call) -> Response:
        details = await call.json()
        run = self._get(call.params["id"])
        check_if_match(call, run.etag)
        check_common(details)
        changes = {name: details[name] for name in UPDATABLE if details.get(name) is not None}
        return self._changed(run, changes)

    async def change_compartment(self, call: Call) -> Response:
        details = await call.json()
        run = self._get(call.params["id"])
        check_if_match(call, run.etag)
        changed = {**run.details, "compartmentId": details.get("compartmentId", "")}
        self._jobs.check_references(changed)
        self._changed(run, changed)
        return answer()

    def _changed(self, run: JobRun, changes: Mapping[str, Any]) -> Response:
        run = replace(run, details={**run.details, **changes}, etag=new_etag())
        self._runs.put(run.id, run)
        return answer(self._body(run), etag=run.etag)

    async def cancel(self, call: Call) -> Response:
        run = self._get(call.params["id"])
        check_if_match(call, run.etag)
        lifecycle.check_cancel(State(run.state))
        self._change(run.id, State.CANCELING, "Job run is being canceled.")
        self._live[run.id].canceled.set()
        return answer()

    async def delete(self, call: Call) -> Response:
        run = self._get(call.params["id"])
        check_if_match(call, run.etag)
        lifecycle.check_delete(State(run.state))
        self._mark_deleted(run)
        return answer()

    def _mark_deleted(self, run: JobRun) -> None:
        self._change(run.id, State.DELETED, "Job run was deleted.")

    async def delete_job(self, call: Call) -> Response:
        """Delete a job, with its runs if asked; not while one of them is active."""
        job = self._jobs.active(call.params["id"])
        check_if_match(call, job.etag)
        runs = [run for run in self._runs.values() if run.job_id == job.id and run.state != State.DELETED]
        check_no_runs(len(runs), delete_runs=call.query.get("deleteRelatedJobRuns", "").lower() == "true")
        for run in runs:
            lifecycle.check_delete(State(run.state))
        for run in runs:
            self._mark_deleted(run)
        self._jobs.remove(job)
        return answer()

    async def close(self) -> None:
        """Accept nothing more, and end what runs. Its records tell of it when the emulator starts again."""
        self._closed = True
        await self.end_all()
        self._pool.close()

    async def end_all(self) -> None:
        """Kill every node, now."""
        lives = list(self._live.values())
        tasks = [live.task for live in lives if live.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def reset(self) -> None:
        await self.end_all()
        self._runs.clear()

    def _body(self, run: JobRun) -> dict[str, Any]:
        return {
            **run.details,
            **_summary(run),
            "jobInfrastructureConfigurationDetails": run.infrastructure,
            "logDetails": run.log_details,
        }


def _container(job: Job, run_details: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = effective(job.details, run_details, "jobEnvironmentConfiguration")
    return found


def _summary(run: JobRun) -> dict[str, Any]:
    details = run.details
    return {
        "id": run.id,
        "jobId": run.job_id,
        "timeAccepted": run.time_accepted,
        "timeStarted": run.time_started,
        "timeFinished": run.time_finished,
        "createdBy": run.created_by,
        "projectId": details["projectId"],
        "compartmentId": details["compartmentId"],
        "displayName": details["displayName"],
        "lifecycleState": run.state,
        "lifecycleDetails": run.lifecycle_details,
        "freeformTags": details.get("freeformTags") or {},
        "definedTags": details.get("definedTags") or {},
    }


async def _happens(event: asyncio.Event, within_s: float | None) -> bool:
    """Wait for an event, but no longer than that; None waits for ever."""
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def _first(node: Node, canceled: asyncio.Event, limit_s: float | None) -> bool:
    """Wait until the node exits, is canceled or runs out of time; say whether it exited by itself."""
    cancel = asyncio.ensure_future(canceled.wait())
    ends: set[asyncio.Future[Any]] = {node.exited, cancel}
    try:
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        cancel.cancel()
    return node.exited.done() and not canceled.is_set()


async def stop(node: Node, grace_s: float) -> None:
    """End a node: SIGTERM, then SIGKILL once the grace is over."""
    node.terminate()
    await asyncio.wait({node.exited}, timeout=grace_s)
    node.kill()
    await node.exited
