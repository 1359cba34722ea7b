"""Models of a run: Plan before, RunRef and RunStatus during, TrainingResult after."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from airflow_provider_ocidist.backports import StrEnum, dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.budget import Budget, budget_of
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.evidence import ANSWERED, Unanswered
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.report import NodeReport, Progress, Restart


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """Whose gang it is: one task of one DAG run, cleared so many times, tried so many times.

    The same key never creates twice: every name, tag and retry token is derived from it.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    generation: int = 0
    """Grows when the task is cleared (Airflow's `max_tries`); a retry keeps it."""
    attempt: int = 1
    """Grows when a gang of this generation has ended without success and another is wanted."""

    @property
    def task_digest(self) -> str:
        """Names the task, whatever its generation and attempt: 16 hexadecimal digits."""
        return _digest(self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def task_name(self) -> str:
        """Readable, unique for each task and generation: the folder of its checkpoints."""
        return f"{self.stem}{self.generation}"

    @property
    def stem(self) -> str:
        """What `task_name` begins with in every generation; the generation follows."""
        return f"{_slug(self.dag_id)[:40]}-{_slug(self.task_id)[:40]}-{self.task_digest}-g"

    @staticmethod
    def stem_in(task_name: str) -> tuple[str, int] | None:
        """Return stem and generation of a `task_name`; None: it is none."""
        before, mark, generation = task_name.rpartition("-g")
        return (before + mark, int(generation)) if before and generation.isdecimal() else None

    @property
    def name(self) -> str:
        """Readable, unique for each attempt: the display name of the job, the run directory, the rendezvous id."""
        return f"{self.task_name}-a{self.attempt}"

    @staticmethod
    def attempt_in(name: str) -> int | None:
        """Return the attempt of a `name`; None: it is none."""
        before, _, attempt = name.rpartition("-a")
        return int(attempt) if before and attempt.isdecimal() else None

    def token(self, *parts: object) -> str:
        """Return the idempotency token of one request of this attempt."""
        return f"ocidist-{_digest(self.name, *parts, length=40)}"


def _digest(*parts: object, length: int = 16) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:length]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "x"


@dataclass(frozen=True, kw_only=True)
class Tries:
    """Which try of its task asks for a gang, in Airflow's numbers."""

    try_number: int = field(metadata=codec.key("number"))
    """From 1; it grows with every retry and every clear."""
    max_tries: int
    retries: int | None = None
    """The task's current value; None: not known."""

    @property
    def cleared_after(self) -> int | None:
        """After how many tries the task was cleared last, 0 for never; None where the numbers do not show it.

        Exact unless `retries` was edited since and the task was not cleared.
        """
        if self.retries is None:
            return None
        after = self.max_tries - self.retries
        return after if 0 <= after < self.try_number else None


@dataclass(frozen=True, kw_only=True)
class Request:
    """One literal request of a plan."""

    verb: str
    """As the service names it, `CreateJob`."""
    body: Mapping[str, Any]
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What must be there, besides exit codes of 0, before a run counts as a success."""

    checkpoint: bool = False
    outputs: tuple[str, ...] = ()
    """URIs of the folders that the job's required outputs go to."""
    reports: bool = True
    """Whether every node has an agent that reports; where not, a node's silence means nothing."""
    training: bool = False
    """Whether something has to show that there was a training: a step, loss, checkpoint or output."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that `submit` will send, in order. Printing it is the dry run; making it never creates anything."""

    key: RunKey
    backend: str
    nodes: int
    topology: str
    """How the backend lays out the nodes, in its own term."""
    reason: str
    """Which topology it is, and why."""
    requests: tuple[Request, ...]
    run_dir: str
    checkpoints_uri: str | None = None
    code: str | None = None
    """Local path whose content travels with the job; None when nothing does."""
    expects: Expectations = Expectations()
    lease: float | None = None
    """Seconds without a lease renewal after which the nodes end a run; None: never."""
    compartment_id: str | None = None
    region: str | None = None
    """The connection's; None if only its profile names one."""
    tries: Tries | None = None
    """Which try of the task asks; None where no Airflow task does."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Which machines are asked for, and where: what a lack of capacity is remembered by. Empty: it cannot lack."""
    candidate: str = ""
    """What of `backend.candidates` it was made of, for people; empty: the section as it is."""
    price: float | None = None
    """Of a node for an hour; None: not known."""


@dataclass(frozen=True, kw_only=True)
class RunRef:
    """Points at what was created; small JSON that lives in XCom, task state, triggers."""

    backend: str
    key: RunKey
    nodes: int
    job_id: str
    run_ids: tuple[str, ...]
    """By rank; rank 0 is the main run. Empty text for a node that was never created. Nodes may share a run."""
    run_dir: str
    submitted_at: float
    """Unix time, by the service's clock: when the first node was asked for."""
    checkpoints_uri: str | None = None
    compartment_id: str | None = None
    log_group_id: str | None = None
    log_id: str | None = None
    has_own_log: bool = False
    """Whether the backend keeps its nodes' lines itself, without a log group."""
    topology: str = "job_runs"
    """As in the plan; the default is for records of older versions."""
    lease: float | None = None
    """Seconds without a lease renewal after which its nodes end a run, as configured; None: never."""
    candidate: str = ""
    """As in the plan."""
    price: float | None = None
    """Of a node for an hour; None: not known."""

    @classmethod
    def of(cls, plan: Plan, job_id: str, run_ids: tuple[str, ...], **own: Any) -> RunRef:
        """Return where the gang of a plan is, created just now. `own`: what only its backend sets."""
        return cls(
            **{
                "backend": plan.backend,
                "key": plan.key,
                "nodes": plan.nodes,
                "job_id": job_id,
                "run_ids": run_ids,
                "run_dir": plan.run_dir,
                "submitted_at": time.time(),
                "checkpoints_uri": plan.checkpoints_uri,
                "compartment_id": plan.compartment_id,
                "topology": plan.topology,
                "lease": plan.lease,
                **own,
            }
        )

    def sharing_texts(self) -> RunRef:
        """Return an equal reference whose texts are shared with other gangs': a thousand wait in one process."""
        shared = ("backend", "compartment_id", "log_group_id", "log_id", "topology")
        texts: dict[str, Any] = {
            name: sys.intern(text) for name in shared if (text := getattr(self, name)) is not None
        }
        key = replace(self.key, dag_id=sys.intern(self.key.dag_id), task_id=sys.intern(self.key.task_id))
        return replace(self, key=key, **texts)

    @property
    def has_log(self) -> bool:
        """Whether the lines of its nodes can be read."""
        return self.has_own_log or self.log_group_id is not None

    @property
    def main_run_id(self) -> str:
        return self.run_ids[0]

    @property
    def complete(self) -> bool:
        """Whether every node was created; False after a submission that was cut off."""
        return all(self.run_ids)

    def to_json(self) -> dict[str, Any]:
        return dict(codec.encode(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRef:
        return codec.decode(cls, value)


class NodeState(StrEnum):
    """What is known of one node: from the service, or from the node itself where the service reports none."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    MISSING = "MISSING"
    """The service no longer has it."""
    UNKNOWN = "UNKNOWN"
    """A state that this version does not know: wait, and log it."""

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = {NodeState.SUCCEEDED, NodeState.FAILED, NodeState.CANCELED, NodeState.MISSING}


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node: its state at the service, and its own report. Times are Unix times, in seconds."""

    rank: int
    run_id: str
    state: NodeState
    details: str | None = None
    """The service's own words."""
    cause: Cause | None = None
    """The cause that those words imply, where the backend knows it."""
    started_at: float | None = None
    finished_at: float | None = None
    report: NodeReport | None = None
    report_is_newest: bool = True
    """False where the node has written a newer one: of many gangs, not every report is always read."""
    sign: str | None = None
    """Changes with each write of the report, whether that was read or not; None: compare the report itself."""
    exited: int | None = None
    """The exit code of its container, where the service shows that; its agent reports that of the training."""
    tail: str | None = None
    """What a program without an agent has printed last, once it has failed."""

    @property
    def beat(self) -> str | None:
        """A value that changes with each heartbeat of the node; None: there was none yet."""
        return self.sign or (str(self.report.heartbeat_at) if self.report else None)

    @property
    def exit_code(self) -> int | None:
        reported = self.report.exit_code if self.report else None
        return self.exited if reported is None else reported


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A gang at one moment."""

    nodes: tuple[NodeStatus, ...]
    reports_readable: bool = True
    """False when the run directory could not be read just now: then absence of a report means nothing."""
    checkpoint_problem: str | None = None
    """Why the newest checkpoint is not to be trusted, or not known; looked at when the gang has ended."""
    checkpoint_readable: bool = True
    """False when the place of the checkpoints could not be read just now."""
    stored: CheckpointRef | None = None
    """The newest whole checkpoint at its place, of any attempt; read where the reports are incomplete."""
    at: float | None = None
    """Unix time of this look by the service's clock, which all times of a record use; None: it gave none."""

    @property
    def ended(self) -> bool:
        return all(node.state.terminal for node in self.nodes)

    @property
    def progress(self) -> Progress | None:
        """The progress, from the node that reports most: not every process prints its steps."""
        reported = [node.report.progress for node in self.nodes if node.report and node.report.progress]
        return max(
            reported, key=lambda progress: -1 if progress.step is None else progress.step, default=None
        )

    @property
    def checkpoint(self) -> CheckpointRef | None:
        found = [node.report.checkpoint for node in self.nodes if node.report and node.report.checkpoint]
        found += [self.stored] if self.stored else []
        return max(found, key=lambda checkpoint: checkpoint.order, default=None)

    @property
    def has_trained(self) -> bool:
        """Whether a node has reported a step or a checkpoint. One that only waited for the others reports neither."""
        progress = self.progress
        return self.checkpoint is not None or (progress is not None and progress.step is not None)

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """Why the nodes have launched the training again, the first one first, and how long each took."""
        reports = [node.report for node in self.nodes if node.report]
        found = max((report.restarts for report in reports), key=len, default=())
        took: dict[int, float] = {}
        for each in (each for report in reports for each in report.recoveries):
            took[each.launch] = max(each.seconds, took.get(each.launch, 0.0))
        return tuple(
            replace(restart, seconds=took.get(launch)) for launch, restart in enumerate(found, start=1)
        )

    @property
    def is_crash_loop(self) -> bool:
        """Whether nodes have found that the training fails at the same step again and again."""
        return any(node.report is not None and node.report.crash_loop for node in self.nodes)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(uri for node in self.nodes if node.report for uri in node.report.outputs)

    @property
    def spent_before(self) -> float:
        """Node-seconds of the task's earlier attempts since its last clear, as its nodes have counted them."""
        return max((node.report.spent_before or 0.0 for node in self.nodes if node.report), default=0.0)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why a gang is being ended before its time."""

    cause: Cause
    message: str
    since: float
    """Unix time of the last cancel."""
    began: float | None = None
    """Unix time of the first cancel; None: that was the last one."""

    @property
    def first(self) -> float:
        return self.since if self.began is None else self.began


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """How long a value has stayed the same to its watchers, each by its own clock."""

    of: str
    mark: str
    """Digest of how it looks."""
    seconds: float = 0.0
    unread: float = 0.0
    """The last of these seconds, in which it may have changed without being read."""


ENDING_LIMIT = 1800.0
"""Seconds that nodes get to end, beyond the grace of their own."""
CARRIED = 5.0
"""Minimum seconds that one watcher's measurement needs to be recorded for the next."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything that must survive the waiting process: in triggers and events.

    At most 4 KB for 16 nodes, and 25 KB for 128: 130 bytes for each, 200 while it is silent.

    Times are Unix times, in seconds, by the service's clock, so that they mean the same on every machine and after
    every restart.
    """

    ref: RunRef
    expects: Expectations = Expectations()
    deadline: float | None = None
    start_deadline: float | None = None
    hang_timeout: float | None = None
    lost_timeout: float | None = None
    save_timeout: float = 3600.0
    lease: float | None = None
    """Set for a process that may end the run, and so renews its lease; None for mere watchers."""
    ending: Ending | None = None
    unread_since: float | None = None
    """Since when the run has ended, and what its nodes reported, or their checkpoint, cannot be read."""
    unanswered: Unanswered = ANSWERED
    """Failed status requests since the service's last answer."""
    logs_since: tuple[float, ...] = ()
    """By rank: log lines up to this time are in the task log already."""
    ending_limit: float = ENDING_LIMIT
    """Seconds for which nodes that are to end are waited for."""
    budget: Budget | None = None
    """What all attempts of the task together may use; None: it is not limited."""
    unchanged: tuple[Unchanged, ...] = ()

    @classmethod
    def of(
        cls,
        ref: RunRef,
        job: TrainingJob | AgentConfig,
        expects: Expectations,
        task_deadline: float | None = None,
    ) -> RunRecord:
        """Start the record of a gang from its job, or from its nodes' configuration.

        `task_deadline` is a Unix time that its Airflow task was given.
        """
        limits = job.limits
        own = ref.submitted_at + limits.max_runtime if limits.max_runtime is not None else None
        return cls(
            ref=ref,
            expects=expects,
            deadline=min((time for time in (own, task_deadline) if time is not None), default=None),
            start_deadline=ref.submitted_at + limits.start_timeout,
            hang_timeout=limits.hang_timeout,
            lost_timeout=limits.lost_timeout,
            save_timeout=limits.save_timeout,
            lease=ref.lease,
            logs_since=(ref.submitted_at,) * ref.nodes,
            ending_limit=ENDING_LIMIT + limits.stop_grace,
            budget=budget_of(limits, ref.price),
        )

    def to_json(self) -> dict[str, Any]:
        carried = tuple(each for each in self.unchanged if each.seconds >= CARRIED)
        return dict(codec.encode(replace(self, unchanged=carried)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRecord:
        record = codec.decode(cls, value)
        return replace(record, ref=record.ref.sharing_texts())


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result that a successful task returns; small enough for XCom."""

    checkpoint: CheckpointRef | None
    job_id: str
    run_ids: tuple[str, ...]
    run_dir: str
    nodes: tuple[Mapping[str, Any], ...]
    """By rank: run id, state, exit code, start and end."""
    outputs: tuple[str, ...] = ()
    progress: Progress | None = None
    warning: str | None = None
    """Why the success is doubtful, if it is."""
    restarts: tuple[Restart, ...] = ()
    """Why the nodes have launched the training again meanwhile."""
    candidate: str = ""
    """Which of `backend.candidates` it has become; empty: the section as it is."""

    @classmethod
    def of(cls, record: RunRecord, status: RunStatus, warning: str | None = None) -> TrainingResult:
        """Build the result; the one builder for the blocking, the deferred and the re-attached path."""
        return cls(
            checkpoint=status.checkpoint,
            job_id=record.ref.job_id,
            run_ids=record.ref.run_ids,
            run_dir=record.ref.run_dir,
            nodes=tuple(_node_summary(node) for node in status.nodes),
            outputs=status.outputs,
            progress=status.progress,
            warning=warning,
            restarts=status.restarts,
            candidate=record.ref.candidate,
        )

    def to_json(self) -> dict[str, Any]:
        value = {"checkpoint_uri": self.checkpoint.uri if self.checkpoint else None, **codec.encode(self)}
        return dict(json.loads(json.dumps(value)))


def _node_summary(node: NodeStatus) -> dict[str, Any]:
    return {
        "rank": node.rank,
        "run_id": node.run_id,
        "state": str(node.state),
        "exit_code": node.exit_code,
        "started_at": node.started_at,
        "finished_at": node.finished_at,
    }
