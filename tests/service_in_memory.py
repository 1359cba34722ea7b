"""A service in memory that runs gangs: no node, no clock, every state as the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.base import Backend, LogPart
from airflow_provider_ocidist.backends.capabilities import KeepsTime, SpansRegions
from airflow_provider_ocidist.backends.recorded_gangs import RecordedGangs
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart
from airflow_provider_ocidist.model.run import Ending, NodeState, NodeStatus, Plan, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

LIVE, DONE, FAILED = NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.FAILED

_REPORTS = {
    DONE: {
        rank: NodeReport(
            rank=rank, phase=Phase.DONE, address="a", started_at=0.0, heartbeat_at=1.0, exit_code=0
        )
        for rank in range(8)
    }
}
"""What nodes have reported, by their state and rank."""


class NoDirectories(RunDirectories):
    """Nothing is kept in run directories, and nothing found there."""

    def __init__(self) -> None:
        nowhere = RunDirStores(open_store)
        super().__init__(nowhere, nowhere)

    def renew(self, ref: RunRef) -> None:
        raise BackendError(f"{ref.key.name}: knows no leases", cause=Cause.CONFIG)

    def claim(self, gang: Plan | RunRef, try_number: int) -> int:
        return try_number

    def claimed_by(self, gang: Plan | RunRef | Attempt) -> int:
        return 0

    def save_cursor(self, ref: RunRef, cursor: LogCursor) -> None:
        pass

    def load_cursor(self, ref: RunRef) -> LogCursor | None:
        return None

    def stop_requested(self, gang: Plan | RunRef) -> bool:
        return False


class KeptClaims(NoDirectories):
    """The claims of gangs, and who is to stop, in memory."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def claim(self, gang: Plan | RunRef, try_number: int) -> int:
        return self.model.claim(gang, try_number)

    def claimed_by(self, gang: Plan | RunRef | Attempt) -> int:
        return self.model.claimed_by(gang)

    def stop_requested(self, gang: Plan | RunRef) -> bool:
        return gang.run_dir in self.model.called_off

    def hand_on(self, plan: Plan, restarts: tuple[Restart, ...]) -> None:
        self.model._do("hand_on", plan.key.name, restarts)


class KnownGangs(RecordedGangs):
    """What the model knows of gangs, without any work directory."""

    def __init__(self, model: Model) -> None:
        super().__init__(RunDirStores(open_store), lambda attempt: self._of(attempt.key))
        self.model = model

    def _of(self, key: RunKey) -> list[RunRef]:
        return [ref for ref in self.model.existing.values() if ref.key == key]

    def recorded(self, key: RunKey, place: Place | None, noted: Sequence[Attempt]) -> list[Attempt]:
        known = [*self.model.recorded, *noted]
        return [each for each in known if each.key.task_digest == key.task_digest]

    def attempts(self, plan: Plan, noted: Sequence[Attempt] = ()) -> list[Attempt]:
        self.model._do("attempts", plan.key.name, list(noted))
        return sorted([*self.model.recorded, *noted], key=lambda each: each.order)

    def record(self, attempt: Attempt) -> None:
        self.model._do("record", attempt.key.name)

    def find(self, plan: Plan) -> list[RunRef]:
        refs = self.model.existing.values()
        return [ref for ref in refs if ref.key.task_digest == plan.key.task_digest]

    def begin(self, plan: Plan, known: Sequence[Attempt] | None = None) -> list[RunRef]:
        self.model._do("begin", plan, known)
        return self.find(plan)

    def _attempt_of(self, ref: RunRef) -> Attempt | None:
        return next((each for each in self.model.recorded if each.key == ref.key), None)

    def ends(self, gang: Plan | RunRef) -> list[End]:
        self.model._do("ends", gang.key.name)
        known = [each for each in self.model.recorded if each.key.generation == gang.key.generation]
        return [each.end for each in known if each.end]

    def close(self, ref: RunRef, end: End) -> None:
        self.model._do("close", ref.job_id, end)


class Model(Backend, SpansRegions, KeepsTime):
    """A service in memory. What was asked of it is in `calls`."""

    kind = "model"

    def __init__(self) -> None:
        self.directories = KeptClaims(self)
        self.gangs = KnownGangs(self)
        self.existing: dict[str, RunRef] = {}
        self.states: dict[str, list[NodeState]] = {}
        self.reports: dict[int, NodeReport] = {}
        """By rank, of all gangs: what a node has reported that has ended in another way than well."""
        self.recorded: list[Attempt] = []
        self.claims: dict[str, int] = {}
        self.called_off: set[str] = set()
        """Run directories with a stop request."""
        self.calls: list[tuple[Any, ...]] = []
        self.run_dir = "oci://b@n/work"
        self.compartment_id = "here"
        self.region: str | None = "fra"
        self.ends_at_once = True
        self.refusals: dict[str, list[BackendError]] = {}
        self.clock = 0.0
        """How far the service's clock is ahead of ours."""
        self.on_submit: Callable[[], object] = lambda: None

    @classmethod
    def connect(cls, fields: Mapping[str, Any]) -> Model:
        del fields
        return cls()

    def reconnect(self, fields: Mapping[str, Any]) -> None:
        """Has no credentials."""

    def forget(self, ref: RunRef) -> None:
        """Has no cache."""

    def done(self, verb: str) -> list[Any]:
        return [call[1] for call in self.calls if call[0] == verb]

    def _do(self, verb: str, *what: Any) -> None:
        self.calls.append((verb, *what))
        if self.refusals.get(verb):
            raise self.refusals[verb].pop(0)

    def plan(self, job: TrainingJob, key: RunKey) -> Plan:
        return Plan(
            key=key,
            backend="model",
            nodes=job.nodes,
            topology="job_runs",
            reason="",
            requests=(),
            run_dir=f"{self.run_dir}/{key.name}",
            compartment_id=self.compartment_id,
            region=self.region,
        )

    def submit(
        self, plan: Plan, stop: threading.Event | None = None, found: Sequence[RunRef] | None = None
    ) -> RunRef:
        self._do("submit", plan, stop, found)
        self.on_submit()
        for ref in found or ():
            if ref.key == plan.key:
                return self.has(plan.key, [*self.states[ref.job_id], *[LIVE] * (plan.nodes - ref.nodes)])
        return self.has(plan.key, [LIVE] * plan.nodes)

    def has(self, key: RunKey, states: Sequence[NodeState], *, missing: int = 0, **changes: Any) -> RunRef:
        """Put a gang there, as an earlier try has left it."""
        job_id = f"job-{key.name}"
        run_ids = (*(f"{job_id}-run-{number}" for number in range(len(states))), *[""] * missing)
        fields = {
            "backend": "model",
            "key": key,
            "nodes": len(run_ids),
            "job_id": job_id,
            "run_ids": run_ids,
            "run_dir": f"{self.run_dir}/{key.name}",
            "submitted_at": time.time(),
            "compartment_id": self.compartment_id,
        }
        ref = RunRef(**{**fields, **changes})
        self.existing[ref.job_id] = ref
        self.states[ref.job_id] = list(states)
        return ref

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        for ref in refs:
            self._do("status", ref.job_id)
        return [RunStatus(nodes=tuple(self._nodes(ref))) for ref in refs]

    def _nodes(self, ref: RunRef) -> list[NodeStatus]:
        states = self.states[ref.job_id]
        return [
            NodeStatus(
                rank=rank,
                run_id=run_id,
                state=states[rank] if run_id else NodeState.MISSING,
                finished_at=1.0,
                report=(
                    (self.reports.get(rank) or _REPORTS.get(states[rank], {}).get(rank)) if run_id else None
                ),
            )
            for rank, run_id in enumerate(ref.run_ids)
        ]

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        self._do("cancel", ref.job_id, ending)
        if self.ends_at_once:
            self.end(ref)

    def end(self, ref: RunRef) -> None:
        states = self.states[ref.job_id]
        self.states[ref.job_id] = [state if state.terminal else NodeState.CANCELED for state in states]

    def delete(self, ref: RunRef) -> None:
        self._do("delete", ref.job_id)
        del self.existing[ref.job_id]

    def claim(self, gang: Plan | RunRef, number: int) -> int:
        self._do("claim", gang.key.name, number)
        holder = max(number, self.claims.get(gang.key.name, 0))
        self.claims[gang.key.name] = holder
        return holder

    def claimed_by(self, gang: Plan | RunRef | Attempt) -> int:
        self._do("claimed_by", gang.key.name)
        return self.claims.get(gang.key.name, 0)

    def logs_of(self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = 0) -> list[LogPart]:
        del most
        return [LogPart() for _ in wanted]

    def near(self, ref: RunRef) -> Backend:
        assert isinstance(ref, RunRef)
        return self

    def now(self) -> float:
        return time.time() + self.clock
