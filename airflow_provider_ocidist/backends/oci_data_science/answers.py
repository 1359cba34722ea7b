"""What the service's answers mean: states, causes, log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_ocidist.agent.train.shared_log import unmarked
from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.backports import moment
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.run import NodeState

STATES = {
    "ACCEPTED": NodeState.PENDING,
    "IN_PROGRESS": NodeState.RUNNING,
    "NEEDS_ATTENTION": NodeState.RUNNING,
    "CANCELING": NodeState.ENDING,
    "SUCCEEDED": NodeState.SUCCEEDED,
    "FAILED": NodeState.FAILED,
    "CANCELED": NodeState.CANCELED,
    "DELETED": NodeState.MISSING,
}
"""State of a node for every lifecycle state of a job run; anything else is UNKNOWN and waited out."""

CAUSES_IN_DETAILS = (
    ("out of host capacity", Cause.CAPACITY),
    ("maximum runtime", Cause.DEADLINE),
    ("limit", Cause.QUOTA),
    ("quota", Cause.QUOTA),
    ("preempt", Cause.PREEMPTED),
    ("container image", Cause.CONFIG),
)
"""Words in the service's lifecycle details, and the causes that they imply; the first match counts."""


def state_of(run: Any | None) -> NodeState:
    """Return a job run's status at the service; None: it has no such run."""
    return NodeState.MISSING if run is None else STATES.get(run.lifecycle_state, NodeState.UNKNOWN)


def is_final(lifecycle_state: str) -> bool:
    """Whether a job run in this state has ended; one that this version does not know may live."""
    return STATES.get(lifecycle_state, NodeState.UNKNOWN).terminal


def cause_in_details(run: Any | None) -> Cause | None:
    """Return the cause that the service's lifecycle details name, if any."""
    details = ((run and run.lifecycle_details) or "").lower()
    return next((cause for words, cause in CAUSES_IN_DETAILS if words in details), None)


def timestamp_of(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def log_line(ranks: Sequence[int], data: Mapping[str, Any]) -> LogLine:
    """Return a line of the log of a run that holds these nodes.

    Where there are several, the line itself names its node; a line without that mark was written before a node's
    agent had started, and counts as the first node's.
    """
    content = data["logContent"]
    time = moment(content["time"]).timestamp()
    text = content["data"]["message"]
    marked, rest = unmarked(text)
    if len(ranks) > 1 and marked is not None and marked in ranks:
        return LogLine(id=content["id"], time=time, rank=marked, text=rest)
    return LogLine(id=content["id"], time=time, rank=ranks[0], text=text)
