"""RunRecord: what survives the process that waits for a run; and the run's result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.budget import Budget, budget_of
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.evidence import ANSWERED, Unanswered
from airflow_provider_ocidist.model.job import Restarts, TrainingJob
from airflow_provider_ocidist.model.plan import Expectations, Plan, Request
from airflow_provider_ocidist.model.refusal import Refusal
from airflow_provider_ocidist.model.report import Progress, Restart
from airflow_provider_ocidist.model.run_key import RunKey, Tries
from airflow_provider_ocidist.model.run_ref import RunRef
from airflow_provider_ocidist.model.run_status import Lacking, NodeState, NodeStatus, RunStatus

# Every class that describes a run is imported from here; modules beside this one define some of them.
__all__ = [
    "Ending",
    "Expectations",
    "Lacking",
    "NodeState",
    "NodeStatus",
    "Plan",
    "Request",
    "RunKey",
    "RunRecord",
    "RunRef",
    "RunStatus",
    "TrainingResult",
    "Tries",
    "Unchanged",
]


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
        """Unix time of the first cancel."""
        return self.since if self.began is None else self.began


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """How long a value has stayed the same to its watchers, each by its own clock."""

    of: str
    """Subject of the measurement, a key of `gangs.durations`."""
    mark: str
    """Digest of the observed state."""
    seconds: float = 0.0
    unread: float = 0.0
    """Last of these seconds, in which the state may have changed without being read."""


ENDING_LIMIT = 1800.0
"""Seconds that nodes get to end, beyond the grace of their own."""
CARRIED = 5.0
"""Least seconds of one watcher's measurement that are recorded for the next."""


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Everything that must survive the waiting process: in triggers and events.

    At most 4 KB for 16 nodes, and 25 KB for 128: 130 bytes for each, 200 while it is silent.

    Times are Unix times, in seconds, by the service's clock, so that they mean the same on every machine and after
    every restart. Only backend `local`, whose nodes and waiting processes share a machine, has that machine's.
    """

    ref: RunRef
    expects: Expectations = Expectations()
    deadline: float | None = None
    """Time at which the gang is ended, whatever it does; None: never."""
    start_deadline: float | None = None
    """Time by which every node has to run; None: no limit."""
    hang_timeout: float | None = None
    """Seconds without progress on any node, as in `limits`; None: not watched."""
    lost_timeout: float | None = None
    """Seconds without a heartbeat of a running node, as in `limits`; None: not watched."""
    save_timeout: float = 3600.0
    """Seconds beyond `lost_timeout` for which a node that saves may be silent."""
    lease: float | None = None
    """Seconds without a renewal after which the nodes end the run; set for a process that renews it, None for
    others."""
    ending: Ending | None = None
    unread_since: float | None = None
    """Time since which the run has ended while its nodes' reports, or their checkpoint, cannot be read."""
    proved: tuple[Lacking, ...] = ()
    """Subjects that a process has seen often enough to be missing, or damaged: the next has not."""
    unanswered: Unanswered = ANSWERED
    """Failed status requests since the service's last answer."""
    logs_since: tuple[float, ...] = ()
    """Times up to which log lines are in the task log already, by rank."""
    ending_limit: float = ENDING_LIMIT
    """Seconds for which to wait for nodes that are to end."""
    budget: Budget | None = None
    """Budget of all attempts of the task together; None: it is not limited."""
    unchanged: tuple[Unchanged, ...] = ()
    restarts: Restarts = Restarts()
    replace_timeout: float = 1800.0
    """Seconds in which the machine that takes the place of a lost one has to be there."""
    irreplaceable: str = ""
    """Why no lost node of this gang is replaced any more, though the job allows it; empty: it is."""
    refused: Refusal | None = None
    """Latest refusal of a machine in the place of a lost one; None: there was none since one was granted."""
    min_nodes: int | None = None
    """Least number of nodes with which the gang goes on without those that are not replaced; None: all."""
    grow_after: float = 600.0
    """Seconds after which a gang that has gone on so asks for the missing machines again."""
    members: tuple[int, ...] = ()
    """Ranks of the nodes that take part, by the last report that says so; empty: all."""
    task_began: float | None = None
    """Time at which the present try of its task began; None: it is not known, or no task waits for the gang."""
    named: str | None = None
    """Connection that a command has to name to reach the gang, unless the gang is at another; None: the usual one."""

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
            restarts=job.restarts,
            replace_timeout=limits.replaced_within,
            min_nodes=job.min_nodes,
            grow_after=limits.grow_after,
        )

    def to_json(self) -> dict[str, Any]:
        carried = tuple(each for each in self.unchanged if each.seconds >= CARRIED)
        return dict(codec.encode(replace(self, unchanged=carried)))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRecord:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
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
    """Run id, state, exit code, start and end of each node, by rank."""
    outputs: tuple[str, ...] = ()
    progress: Progress | None = None
    warning: str | None = None
    """Reason why the success is doubtful, if it is."""
    restarts: tuple[Restart, ...] = ()
    """Restarts of the training on its nodes, oldest first."""
    candidate: str = ""
    """Candidate of `backend.candidates` that the gang ran on; empty: the section as it is."""

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
