"""The state of a gang at one moment: its nodes at the service, and what they have reported."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_provider_ocidist.backports import StrEnum, dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart


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
    """The state is one that this version does not know: wait, and log it."""

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = {NodeState.SUCCEEDED, NodeState.FAILED, NodeState.CANCELED, NodeState.MISSING}


class Lacking(StrEnum):
    """What the store may lack of a gang that has ended; one look without it proves nothing."""

    REPORT = "report"
    """The report of a node that has succeeded for the service."""
    CHECKPOINT = "checkpoint"
    """The newest checkpoint, or a part of it."""


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node: its state at the service, and its own report. Times are Unix times, in seconds."""

    rank: int
    run_id: str
    state: NodeState
    details: str | None = None
    """Message of the service, as it is."""
    cause: Cause | None = None
    """Cause that the message implies, where the backend knows it."""
    started_at: float | None = None
    finished_at: float | None = None
    report: NodeReport | None = None
    report_is_newest: bool = True
    """Whether the report is the newest that the node has written; of many gangs, not every report is read at each
    look."""
    sign: str | None = None
    """Mark that changes with each write of the report, whether that was read or not; None: compare the report
    itself."""
    exited: int | None = None
    """Exit code of its container, where the service shows that; its agent reports that of the training."""
    tail: str | None = None
    """Last output of a failed program without an agent."""
    is_left: bool = False
    """Whether what was made for it has failed before it began, and stays in the way of another."""

    @property
    def beat(self) -> str | None:
        """A value that changes with each heartbeat of the node; None: there was none yet."""
        return self.sign or (str(self.report.heartbeat_at) if self.report else None)

    @property
    def is_saving(self) -> bool:
        """Whether it runs, as far as is known, and uploads what its program has left."""
        may_run = self.state in (NodeState.RUNNING, NodeState.UNKNOWN)
        return may_run and self.report is not None and self.report.phase is Phase.SAVING

    @property
    def exit_code(self) -> int | None:
        reported = self.report.exit_code if self.report else None
        return self.exited if reported is None else reported


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """A gang at one moment."""

    nodes: tuple[NodeStatus, ...]
    reports_readable: bool = True
    """Whether the run directory could be read just now; if not, the absence of a report means nothing."""
    checkpoint_problem: str | None = None
    """Reason why the newest checkpoint cannot be used, or is not known; looked at when the gang has ended."""
    checkpoint_readable: bool = True
    """Whether the place of the checkpoints could be read just now."""
    doubtful: tuple[Lacking, ...] = ()
    """Subjects that count as unreadable only because they were not seen to be missing, or damaged, often enough."""
    proved: tuple[Lacking, ...] = ()
    """Subjects that are missing, or damaged, and were seen to be so often enough."""
    stored: CheckpointRef | None = None
    """Newest whole checkpoint at its place, of any attempt; read where the reports are incomplete."""
    at: float | None = None
    """Unix time of this look by the service's clock, which all times of a record use; None: it gave none."""
    lost_seconds: float = 0.0
    """Seconds of the nodes that were replaced by these (`RunRef.lost_seconds`)."""

    def only(self, ranks: Collection[int]) -> RunStatus:
        """Return the state of these nodes alone; empty: of all."""
        return (
            replace(self, nodes=tuple(each for each in self.nodes if each.rank in ranks)) if ranks else self
        )

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
    def can_go_on(self) -> bool:
        """Whether there is a state to go on from: a node has reported a step or a checkpoint, be it a restored one.

        `gangs.verdict.has_trained` shows whether this attempt has trained.
        """
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
    def members(self) -> tuple[int, ...]:
        """Ranks of the nodes that take part, as far as they report it; empty: all."""
        return self.restarts[-1].members if self.restarts else ()

    @property
    def of_members(self) -> RunStatus:
        """The state of the nodes that take part, as far as they report it."""
        return self.only(self.members)

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

    @property
    def cost_before(self) -> float | None:
        """Cost of those earlier attempts (`spent_before`), each at its own price; None where no node says it."""
        costs = [node.report.cost_before for node in self.nodes if node.report]
        return max((cost for cost in costs if cost is not None), default=None)
