"""What the service's answers mean: states, causes, log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.run import NodeState, NodeStatus

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
"""Every lifecycle state of a job run; anything else is UNKNOWN and waited out."""

CAUSES = (
    ("out of host capacity", Cause.CAPACITY),
    ("maximum runtime", Cause.DEADLINE),
    ("limit", Cause.QUOTA),
    ("quota", Cause.QUOTA),
    ("preempt", Cause.PREEMPTED),
    ("container image", Cause.CONFIG),
)
"""Words in the service's lifecycle details, and what they mean; the first that fits counts."""


def node_status(rank: int, run_id: str, run: Any | None) -> NodeStatus:
    if run is None:
        return NodeStatus(rank=rank, run_id=run_id, state=NodeState.MISSING)
    details = run.lifecycle_details or ""
    return NodeStatus(
        rank=rank,
        run_id=run_id,
        state=STATES.get(run.lifecycle_state, NodeState.UNKNOWN),
        details=details or None,
        cause=next((cause for words, cause in CAUSES if words in details.lower()), None),
        started_at=_unix(run.time_started),
        finished_at=_unix(run.time_finished),
    )


def _unix(time: datetime | None) -> float | None:
    return time.timestamp() if time is not None else None


def log_line(rank: int, data: Mapping[str, Any]) -> LogLine:
    content = data["logContent"]
    time = datetime.fromisoformat(content["time"]).timestamp()
    return LogLine(id=content["id"], time=time, rank=rank, text=content["data"]["message"])
