"""The phases of a workload as states of its nodes, refined by what the nodes report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.backends.node_config import KEY_VARIABLE
from airflow_provider_ocidist.backends.runai.names import (
    START_VARIABLE,
    SUSPENSION_VARIABLE,
    environment_of,
)
from airflow_provider_ocidist.backends.shared_run import states_while_running
from airflow_provider_ocidist.backports import Self, unix_time
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState

STATES = {
    "Creating": NodeState.PENDING,
    "Initializing": NodeState.PENDING,
    "Pending": NodeState.PENDING,
    "Resuming": NodeState.PENDING,
    "Running": NodeState.RUNNING,
    "Updating": NodeState.RUNNING,
    # A pod is missing or not ready: the nodes' own reports say whether that is the end.
    "Degraded": NodeState.RUNNING,
    "Stopping": NodeState.ENDING,
    "Stopped": NodeState.CANCELED,
    "Deleting": NodeState.ENDING,
    "Terminating": NodeState.ENDING,
    "Completed": NodeState.SUCCEEDED,
    "Failed": NodeState.FAILED,
    "Unknown": NodeState.UNKNOWN,
}
"""State of a node for every phase that the control plane's description lists."""
CAUSES_IN_REASONS = (
    ("NonPreemptibleOverQuota", Cause.QUOTA),
    ("OverLimit", Cause.QUOTA),
    ("ErrImagePull", Cause.CONFIG),
    ("ImagePullBackOff", Cause.CONFIG),
    ("InvalidImageName", Cause.CONFIG),
    ("OOMKilled", Cause.OOM),
    ("Preempt", Cause.PREEMPTED),
    ("Evict", Cause.PREEMPTED),
)
"""Texts in a reason or a message, and the causes that they imply; the first match counts."""
SUSPENDED = (
    "suspended by somebody in Run:ai; clear the task in Airflow to train again; "
    "to let it wait next time, set backend.when_suspended: wait"
)
PAUSED = "suspended by somebody in Run:ai: waiting until it is resumed"
DETAILS_OF_SUSPENSIONS = {
    True: PAUSED,
    False: SUSPENDED,
    None: "suspended by somebody in Run:ai; whether it waits to be resumed cannot be read now",
}
STOPPED = ("Stopping", "Stopped")
GOING = ("Deleting", "Terminating")


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What the control plane says of a workload. Times are Unix times."""

    id: str
    name: str
    phase: str
    message: str = ""
    reason: str | None = None
    created_at: float = 0.0
    completed_at: float | None = None
    phase_since: float | None = None
    """Time at which it came into its phase."""
    namespace: str = ""
    """Namespace of the pods."""
    project: str = ""
    """Id of the project."""
    waits: bool | None = False
    """Whether a suspension is a pause, and not the end; None if that is not shown now."""
    has_agent: bool | None = None
    """Whether its nodes report; None if the answer does not show its variables."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        environment = environment_of(answer)
        return cls(
            id=str(answer["id"]),
            name=str(answer["name"]),
            # Its case has changed between versions of the description.
            phase=str(answer.get("phase") or "Unknown").capitalize(),
            message=str(answer.get("phaseMessage") or ""),
            reason=answer.get("phaseReason"),
            created_at=unix_time(answer.get("createdAt")) or 0.0,
            completed_at=unix_time(answer.get("completedAt")),
            phase_since=unix_time(answer.get("phaseUpdatedAt")),
            namespace=str(answer.get("namespace") or ""),
            project=str(answer.get("projectId") or ""),
            waits=waits(environment),
            has_agent=START_VARIABLE in environment if KEY_VARIABLE in environment else None,
        )

    @property
    def is_going(self) -> bool:
        """Whether it is just being deleted."""
        return self.phase in GOING

    @property
    def is_paused(self) -> bool:
        """Whether no node of it lives, and it is to go on."""
        return self.waits is True and self.phase == "Stopped"

    @property
    def state(self) -> NodeState:
        """The state of all nodes, as far as the platform knows it."""
        if self.waits is not False and self.phase in STOPPED:
            # Also where that is not known: the nodes are silent, and none of them is lost.
            return NodeState.PENDING
        # A later version may know phases that this one does not.
        return STATES.get(self.phase, NodeState.UNKNOWN)

    @property
    def details(self) -> str | None:
        """The platform's words, its reason before them; ours for a suspension, for which it has none."""
        if self.phase in STOPPED:
            return DETAILS_OF_SUSPENSIONS[self.waits]
        words = [self.reason] if self.reason and self.reason not in self.message else []
        return ": ".join([*words, *([self.message] if self.message else [])]) or None

    @property
    def cause(self) -> Cause | None:
        if self.phase in STOPPED:
            return Cause.CANCELED
        text = f"{self.reason or ''} {self.message}"
        waits = Cause.CAPACITY if self.phase == "Pending" and text.strip() else None
        return next((cause for sign, cause in CAUSES_IN_REASONS if sign in text), waits)


def waits(environment: Mapping[str, str]) -> bool:
    """Whether a suspension is a pause for a workload with these variables, and not the end."""
    return environment.get(SUSPENSION_VARIABLE) == "wait"


def node_states(
    state: NodeState,
    reports: Sequence[NodeReport | None] | None,
    nodes: int,
    *,
    has_agent: bool | None = True,
) -> list[NodeState]:
    """Return each node's state: the workload's, refined by the nodes' own reports where they have an agent.

    `has_agent`: None where that is not shown now. Then a node without a report may run, or not have begun.
    """
    if has_agent is None and reports is not None:
        has_agent = any(report is not None for report in reports)
        if not has_agent and state is NodeState.RUNNING:
            return [NodeState.UNKNOWN] * nodes
    if (
        reports is None
        or not has_agent
        or state not in (NodeState.RUNNING, NodeState.FAILED, NodeState.SUCCEEDED)
    ):
        return [state] * nodes
    if state is NodeState.SUCCEEDED:
        # A workload has succeeded when node 0 has, whatever the others did.
        return [NodeState.FAILED if _has_failed(report) else state for report in reports]
    if state is NodeState.FAILED:
        # The first failure ends the others, and what a node has finished by then counts.
        well = [report is not None and report.has_succeeded and report.cause is None for report in reports]
        return [NodeState.SUCCEEDED if each else NodeState.FAILED for each in well]
    return states_while_running(reports)


def _has_failed(report: NodeReport | None) -> bool:
    return report is not None and report.phase is Phase.DONE and not _is_well(report)


def _is_well(report: NodeReport | None) -> bool:
    return (
        report is not None and report.phase is Phase.DONE and report.cause is None and report.exit_code == 0
    )
