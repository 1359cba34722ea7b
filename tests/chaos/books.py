"""The service's own books: which gangs a task has, which of their runs live; and what the marks of the nodes show."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from oci.pagination import list_call_get_all_results

from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from scripts.emulator_process import Access

TERMINAL = {"SUCCEEDED", "FAILED", "CANCELED", "DELETED"}
TAGS = ("ocidist-task", "ocidist-generation", "ocidist-attempt", "ocidist-rank")


@dataclass(frozen=True)
class Gang:
    """One job of a task, with its runs."""

    job_id: str
    attempt: tuple[str, str]
    """Generation and attempt."""
    runs: Mapping[str, str]
    """State by run id."""
    ranks: tuple[str, ...] = field(default=())

    @property
    def live(self) -> bool:
        return any(state not in TERMINAL for state in self.runs.values())


class Books:
    """What the emulator has, asked for through the real SDK."""

    def __init__(self, access: Access) -> None:
        self._emulator = access
        self.access = OciAccess(
            auth="config_file", config_file=access.config_file, profile=access.profile, endpoint=access.url
        )
        self._client = clients.client(self.access, "data_science")
        self._control = httpx.Client(base_url=f"{access.url}/_emulator", trust_env=False, timeout=30)

    def gangs(self, task: str) -> list[Gang]:
        """Return the gangs of a task, by its digest, the half-made ones too; among the newest of all."""
        runs = defaultdict(dict)
        ranks = defaultdict(list)
        for run in self._newest(self._client.list_job_runs):
            if (run.freeform_tags or {}).get(TAGS[0]) == task:
                runs[run.job_id][run.id] = run.lifecycle_state
                ranks[run.job_id].append(run.freeform_tags[TAGS[3]])
        return [
            Gang(
                job.id,
                (job.freeform_tags[TAGS[1]], job.freeform_tags[TAGS[2]]),
                runs[job.id],
                tuple(sorted(ranks[job.id])),
            )
            for job in self._newest(self._client.list_jobs)
            if (job.freeform_tags or {}).get(TAGS[0]) == task
        ]

    def live_gangs(self) -> dict[str, set[str]]:
        """Return by task the jobs that have a run which has not ended, among the newest runs."""
        found = defaultdict(set)
        for run in self._newest(self._client.list_job_runs):
            if run.lifecycle_state not in TERMINAL:
                found[(run.freeform_tags or {}).get(TAGS[0], "nobody")].add(run.job_id)
        return dict(found)

    def untagged(self) -> list[str]:
        """Return the ids of what no tag leads to, and of runs whose job does not exist."""
        jobs = self._all(self._client.list_jobs)
        runs = self._all(self._client.list_job_runs)
        known = {job.id for job in jobs}
        lost = [job.id for job in jobs if not set(TAGS[:3]) <= set(job.freeform_tags or {})]
        lost += [run.id for run in runs if not set(TAGS) <= set(run.freeform_tags or {})]
        return lost + [run.id for run in runs if run.job_id not in known]

    def slow_down(self, pace: float = 1.0) -> None:
        """Make every step of a submission long enough to be hit, and the runs of a gang unlike; `pace` in seconds."""
        for rule in (
            {"method": "POST", "path": "/20190101/jobs.*", "latency_s": pace},
            {"method": "POST", "path": "/20190101/jobRuns", "latency_s": 0.8 * pace},
            {"method": "POST", "path": "/20190101/jobRuns", "latency_s": 1.2 * pace, "probability": 0.5},
            {"method": "PUT", "path": "/n/.*", "latency_s": 0.1 * pace},
        ):
            self._control.post("/faults", json=rule).raise_for_status()

    def nodes_never_start(self) -> None:
        """Leave all nodes waiting for a machine, where only what is created counts."""
        self._control.post("/nodes", json={"never_starts": True}).raise_for_status()

    def in_flight(self, at: float) -> list[str]:
        """Return what was being asked of the service at that moment, nodes left out. Ask a second later."""
        calls = self._control.get("/calls", params={"path": "/20190101/.*"}).json()
        return [
            f"{call['method']} {_bare(call['path'])}"
            for call in calls
            if call["time"] <= at <= call["time"] + call["duration_s"] + 0.02
        ]

    def _newest(self, operation: Any) -> list[Any]:
        answer = operation(self._emulator.compartment_id, sort_by="timeCreated", sort_order="DESC", limit=100)
        return [item for item in answer.data if item.lifecycle_state != "DELETED"]

    def _all(self, operation: Any) -> list[Any]:
        answer = list_call_get_all_results(operation, self._emulator.compartment_id, limit=100).data
        return [item for item in answer if item.lifecycle_state != "DELETED"]


def _bare(path: str) -> str:
    """Return a path without identifiers and query."""
    parts = path.partition("?")[0].split("/")[2:]
    return "/".join("ID" if part.startswith("ocid1.") else part for part in parts)


@dataclass(frozen=True)
class Life:
    """One process of the training, by the file that it kept touching. Unix times, in seconds."""

    run: str
    rank: int
    start: float
    end: float
    resumed: int
    """The step that it went on from."""
    finished: bool


def lives(marks: Path) -> list[Life]:
    found = []
    for beat in marks.glob("*.json"):
        told = json.loads(beat.read_text())
        finished = beat.with_suffix(".end").exists()
        found.append(
            Life(told["run"], told["rank"], told["at"], beat.stat().st_mtime, told["resumed"], finished)
        )
    return sorted(found, key=lambda life: life.start)


def wait_until_ended(books: Books, task: str, within_s: float) -> float | None:
    """Return after how many seconds nothing of a task lived any more; None when some still does."""
    began = time.monotonic()
    while any(gang.live for gang in books.gangs(task)):
        if time.monotonic() - began > within_s:
            return None
        time.sleep(0.3)
    return time.monotonic() - began
