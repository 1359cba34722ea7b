"""Jobs and their runs, as the page shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection as Texts
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_ocidist.emulator.data_science.job_runs import JobRun
from airflow_provider_ocidist.emulator.data_science.jobs import Job
from airflow_provider_ocidist.emulator.data_science.lifecycle import TERMINAL, State
from airflow_provider_ocidist.emulator.data_science.node_history import NodeHistory
from airflow_provider_ocidist.emulator.data_science.resources import Collection
from airflow_provider_ocidist.emulator.status_page.secrets import hide, hide_value, secrets_in

Body = dict[str, Any]
MAX_RUNS = 200
MAX_VALUE_CHARS = 2000


class TrainingView:
    """Reads the records of jobs and runs: asking the service for all of its lists would take too long."""

    def __init__(self, jobs: Collection[Job], runs: Collection[JobRun], nodes: NodeHistory) -> None:
        self._jobs = jobs
        self._runs = runs
        self._nodes = nodes

    def counts(self) -> dict[str, int]:
        runs = self._runs.values()
        active = sum(State(run.state) not in TERMINAL for run in runs)
        return {"jobs": len(self._jobs.values()), "runs": len(runs), "active": active}

    def jobs(self, *, search: str, start: int, limit: int) -> Body:
        """Return a page of jobs, newest first, each with how many of its runs are in which state."""
        wanted = [job for job in self._jobs.values() if search.lower() in f"{_name(job)} {job.id}".lower()]
        ordered = sorted(wanted, key=lambda job: job.time_created, reverse=True)[start : start + limit]
        states: dict[str, Counter[str]] = {job.id: Counter() for job in ordered}
        for run in self._runs.values():
            if run.job_id in states:
                states[run.job_id][run.state] += 1
        return {"jobs": [_job_body(job, states[job.id]) for job in ordered], "total": len(wanted)}

    def job(self, job_id: str) -> Body:
        """Return a job, its settings and its newest runs. Raises 404."""
        job = self._jobs.get(job_id)
        runs = self.runs(job_id)
        secrets = self.secrets(job_id)
        artifact = {"name": job.artifact_name, "size": job.artifact_size} if job.artifact_name else None
        return {
            **_job_body(job, Counter(run.state for run in runs)),
            "artifact": artifact,
            "settings": list(settings(job.details)),
            "runs": [{**_run_body(run, secrets), "nodes": self._nodes_of(run)} for run in runs],
        }

    def runs(self, job_id: str) -> list[JobRun]:
        """Return the newest runs of a job."""
        found = [run for run in self._runs.values() if run.job_id == job_id]
        return sorted(found, key=lambda run: run.time_created, reverse=True)[:MAX_RUNS]

    def secrets(self, job_id: str) -> set[str]:
        """Return the secrets that a job and its runs were created with, and that their nodes may print."""
        job = self._jobs.get(job_id)
        return secrets_in([job.details, *(run.details for run in self.runs(job_id))])

    def _nodes_of(self, run: JobRun) -> list[Body]:
        return [asdict(node) for node in self._nodes.of(run.id)]


def _name(item: Job | JobRun) -> str:
    return str(item.details["displayName"])


def _job_body(job: Job, states: Mapping[str, int]) -> Body:
    return {
        "id": job.id,
        "name": _name(job),
        "state": job.state,
        "created": job.time_created,
        "states": states,
    }


def _run_body(run: JobRun, secrets: Texts[str]) -> Body:
    return {
        "id": run.id,
        "name": _name(run),
        "state": run.state,
        "details": hide(run.lifecycle_details, secrets) if run.lifecycle_details else None,
        "accepted": run.time_created,
        "started": run.time_started,
        "finished": run.time_finished,
        "groups": [
            {"name": each["name"], "state": each["lifecycleState"], "details": each["lifecycleDetails"]}
            for each in run.node_groups or ()
        ],
    }


def settings(details: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield what a job was created with as lines of name and value, without the secrets."""
    secrets = secrets_in(details)
    for name, value in details.items():
        if name.startswith("job") or name in ("freeformTags", "definedTags"):
            for path, text in _lines(name, value):
                yield path, hide_value(path.rpartition(".")[2], text, secrets)[:MAX_VALUE_CHARS]


def _lines(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _lines(f"{name}.{key}", each)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for place, each in enumerate(value):
            yield from _lines(f"{name}[{place}]", each)
    elif value not in (None, []):
        yield name, " ".join(map(str, value)) if isinstance(value, list) else str(value)
