"""What to do next with a gang of nodes. Pure: no I/O, no clock, no Airflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_ocidist.agent.report import Phase
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.run import Ending, Expectations, NodeState, NodeStatus, RunRecord, RunStatus

CANCEL_AGAIN_AFTER = 15.0
"""Seconds after which a node that has not begun to end is told once more."""
SAVING_LIMIT = 120.0
"""Seconds after a failure during which nodes that are saving checkpoints are left alone."""
UNREADABLE_LIMIT = 1800.0
"""Seconds for which reports that cannot be read are waited for after the end: they say whether it is a success."""
HANG_MARGIN = 60.0
"""Seconds that a node has to find out about its own hang, with stacks, before it is ended from outside."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End all nodes; remember why."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Succeed:
    """Every node did its part, and what the job promises is there."""


@dataclass(frozen=True, slots=True)
class Fail:
    """All nodes have ended, and not well."""

    cause: Cause
    message: str


Action = Wait | Cancel | Succeed | Fail
Finding = tuple[Cause, str]


def decide(record: RunRecord, status: RunStatus, now: float) -> Action:
    """Return the next action for a gang. `now` is a Unix time, in seconds.

    A gang ends in one of two ways: all of its nodes are terminal and the outcome is judged, or something is
    found that makes waiting pointless; then it is cancelled first and judged when it has ended.
    """
    if status.ended:
        return _judge(record, status, now)
    if record.ending is not None:
        return _insist(record.ending, status, now)
    for look in _LOOKS:
        finding = look(record, status, now)
        if finding is not None:
            cause, message = finding
            return Cancel(Ending(cause=cause, message=message, since=now))
    return Wait()


def _judge(record: RunRecord, status: RunStatus, now: float) -> Action:
    failed = _failed_node(record, status, 0.0)
    if record.ending is not None and failed is not None:
        return Fail(record.ending.cause, record.ending.message)
    if failed is not None:
        return Fail(*failed)
    unmet = _unmet(record, status)
    if unmet is None:
        return Succeed()
    if status.reports_readable:
        return Fail(Cause.USER, unmet)
    # Without the reports nothing is known about checkpoints: not a failure by ignorance, while there is time.
    since = now if record.unread_since is None else record.unread_since
    if now < since + UNREADABLE_LIMIT:
        return Wait()
    return Fail(
        Cause.SERVICE,
        f"every node has exited with 0, but {unread(record, status)}; once it can be read, a retry takes this run",
    )


def unread(record: RunRecord, status: RunStatus) -> str:
    """Return what of a run that has ended cannot be read."""
    return status.checkpoint_problem or f"what they reported cannot be read, in {record.ref.run_dir}"


def _insist(ending: Ending, status: RunStatus, now: float) -> Action:
    deaf = any(node.state in (NodeState.PENDING, NodeState.RUNNING) for node in status.nodes)
    rounds = int((now - ending.since) // CANCEL_AGAIN_AFTER)
    if deaf and rounds >= 1:
        return Cancel(Ending(cause=ending.cause, message=ending.message, since=now))
    return Wait()


def _unmet(record: RunRecord, status: RunStatus) -> str | None:
    """Return what the job promises and does not have; every node has exited with 0."""
    if status.checkpoint_problem is not None:
        return status.checkpoint_problem
    if record.expects.checkpoint and status.checkpoint is None:
        return (
            "the program exited with 0 on every node but wrote no checkpoint: it probably trained nothing. "
            "Read its first lines of output, or set checkpoints.required: false"
        )
    missing = [
        uri for uri in record.expects.outputs if not any(_lies_in(found, uri) for found in status.outputs)
    ]
    if missing:
        return f"the program exited with 0 on every node but these outputs are missing: {', '.join(missing)}"
    return None


def _lies_in(uri: str, folder: str) -> bool:
    return f"{uri.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _failed_node(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    failed = [node for node in status.nodes if node.state.terminal and node.state is not NodeState.SUCCEEDED]
    return _diagnose(min(failed, key=_guilt), record.expects) if failed else None


def node_of(record: RunRecord, status: RunStatus, message: str) -> NodeStatus | None:
    """Return the node of which a message of `Fail` tells; None where it tells of all, or of none that has failed."""
    return next((node for node in status.nodes if _diagnose(node, record.expects)[1] == message), None)


def _guilt(node: NodeStatus) -> tuple[bool, bool, float]:
    """Order failed nodes, the root of the trouble first: nodes that were only told to stop name no cause."""
    named = node.report is not None and node.report.cause is not None
    return (not named, node.cause is None, node.finished_at or float("inf"))


def _failed_and_saved(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    """Return the failure once nobody is saving any more: what is being carried to safety may be all that is left."""
    finding = _failed_node(record, status, now)
    ended = [
        node.finished_at for node in status.nodes if node.state.terminal and node.finished_at is not None
    ]
    saving = any(_is_saving(node) for node in status.nodes)
    if finding is not None and saving and ended and now - min(ended) < SAVING_LIMIT:
        return None
    return finding


def _is_saving(node: NodeStatus) -> bool:
    return node.state is NodeState.RUNNING and node.report is not None and node.report.phase is Phase.SAVING


def _diagnose(node: NodeStatus, expects: Expectations) -> Finding:
    report = node.report
    if report is not None and report.cause is not None:
        code = f" (exit code {report.exit_code})" if report.exit_code is not None else ""
        return report.cause, f"node {node.rank}: {report.message or 'failed'}{code}"
    details = node.details or "the service gives no reason"
    if node.state is NodeState.MISSING:
        return Cause.CANCELED, f"node {node.rank}: job run {node.run_id} is gone: somebody deleted it"
    if node.state is NodeState.CANCELED:
        return Cause.CANCELED, f"node {node.rank}: the job run was cancelled outside this task ({details})"
    if node.cause is not None:
        return node.cause, f"node {node.rank}: {details}"
    if report is not None and report.message is not None:
        return Cause.NODE, f"node {node.rank}: {report.message}"
    if report is None and not expects.reports:
        return Cause.USER, f"node {node.rank}: {details}; its log says more"
    if report is None:
        return Cause.NODE, f"node {node.rank} ended before its agent could report: {details}"
    return Cause.NODE, f"node {node.rank} was lost in phase {report.phase}: {details}"


def _past_deadline(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    if record.deadline is None or now < record.deadline:
        return None
    limit = record.deadline - record.ref.submitted_at
    return (
        Cause.DEADLINE,
        f"not finished within {limit:.0f} s (limits.max_runtime or the task's execution_timeout)",
    )


def _never_started(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    if record.start_deadline is None or now < record.start_deadline:
        return None
    waiting = [node for node in status.nodes if node.state is NodeState.PENDING]
    if not waiting:
        return None
    ranks = ", ".join(str(node.rank) for node in waiting)
    limit = record.start_deadline - record.ref.submitted_at
    why = "no machine was free, or it cannot write to the work directory, as its log would say"
    return Cause.CAPACITY, f"node {ranks} did not start within {limit:.0f} s (limits.start_timeout): {why}"


def _lost_from_sight(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    if record.lost_timeout is None or not status.reports_readable:
        return None
    for node in status.nodes:
        seen = _last_seen(node, record.expects)
        known = _known_at(node, now)
        if seen is not None and known - seen > record.lost_timeout:
            return (
                Cause.NODE,
                f"node {node.rank} has shown no sign of life for {known - seen:.0f} s (limits.lost_timeout)",
            )
    return None


def _known_at(node: NodeStatus, now: float) -> float:
    """Return as of when a node is known: whoever has not been asked is not silent."""
    return now if node.report_at is None else min(now, node.report_at)


def _last_seen(node: NodeStatus, expects: Expectations) -> float | None:
    if node.state is not NodeState.RUNNING:
        return None
    if node.report is not None:
        return node.report.heartbeat_at
    return node.started_at if expects.reports else None


def _stuck(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    if record.hang_timeout is None or not status.reports_readable:
        return None
    reports = [node.report for node in status.nodes if node.report is not None]
    phases = {report.phase for report in reports}
    if (
        len(reports) < len(status.nodes)
        or Phase.TRAINING not in phases
        or phases - {Phase.TRAINING, Phase.DONE}
    ):
        return None
    moved = [
        report.progress.updated_at for report in reports if report.progress and report.progress.updated_at
    ]
    moved += [report.finished_at for report in reports if report.finished_at is not None]
    known = min(_known_at(node, now) for node in status.nodes)
    if not moved or known - max(moved) <= record.hang_timeout + HANG_MARGIN:
        return None
    return (
        Cause.HANG,
        f"no output, step or checkpoint on any node for {known - max(moved):.0f} s (limits.hang_timeout)",
    )


_LOOKS: tuple[Callable[[RunRecord, RunStatus, float], Finding | None], ...] = (
    _failed_and_saved,
    _past_deadline,
    _never_started,
    _lost_from_sight,
    _stuck,
)
