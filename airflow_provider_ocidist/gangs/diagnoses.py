"""Diagnoses: why a node has failed, and which of several failed nodes is to blame. Pure."""

from __future__ import annotations

from airflow_provider_ocidist.agent.diagnose.outcome import names_exit_code
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import verdict
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import NodeReport
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus

CONSEQUENCES = (None, Cause.NODE, Cause.HANG)
"""Causes that nodes report when another one was lost."""

IN_VAIN = "no machine has taken its place"
"""Words of a finding after which a replacement was refused, or has not come."""

Finding = tuple[Cause, str]


def failed_node(record: RunRecord, status: RunStatus) -> Finding | None:
    """Return why the node that is to blame has failed; None if no node has."""
    failed = [node for node in status.nodes if _has_failed(node, record, status)]
    if not failed:
        return None
    # The node that names the cause may be the last one that the service reports as ended.
    named = [node for node in status.nodes if node.report is not None and node.report.cause is not None]
    blamed = min([*failed, *named], key=_blame_order)
    return (
        _waited_in_vain(blamed, status)
        or not_replaced(blamed, record)
        or lost_before(blamed, record, status)
        or diagnose(blamed, record)
    )


def node_of(record: RunRecord, status: RunStatus, message: str) -> NodeStatus | None:
    """Return the node that a message of `Fail` names; None if it concerns all nodes, or none that has failed."""
    return next((node for node in status.nodes if diagnose(node, record)[1] == message), None)


def is_unexplained(record: RunRecord, status: RunStatus) -> bool:
    """Whether a node has failed for a reason that only its report gives, which cannot be read now."""
    return (
        record.expects.reports
        and not status.reports_readable
        and any(node.state is NodeState.FAILED and node.cause is None for node in status.nodes)
    )


def not_replaced(node: NodeStatus, record: RunRecord) -> Finding | None:
    """Return the finding for a node in whose place no machine has come: it was lost for another reason."""
    cause, message = diagnose(node, record)
    before = [each for each in record.ref.replaced if each.rank == node.rank]
    if not before or node.report is not None or not MEANINGS[cause].no_machine:
        return None
    return before[-1].cause, f"{before[-1].message}; {IN_VAIN}: {message}"


def refused_in_place(record: RunRecord, status: RunStatus) -> Finding | None:
    """Return why there was no machine in the place of a lost one; None where there was, or none was asked for.

    Not why the gang has failed: that is the loss.
    """
    asked = {each.rank for each in record.ref.replaced}
    vain = [node for node in status.nodes if node.rank in asked and node.report is None]
    for node in vain:
        if node.cause is not None and MEANINGS[node.cause].no_machine:
            return node.cause, node.details or IN_VAIN
    now = status.at
    if (refused := record.refused) and (now is None or refused.holds(record.ref.nodes, now)):
        # The request itself was refused: nothing of it is there to be seen.
        return refused.cause, refused.message
    # One that was waited for has no reason of its own: it was cancelled.
    ending = record.ending
    return (Cause.CAPACITY, ending.message) if vain and ending and IN_VAIN in ending.message else None


def ended_for_silence(node: NodeStatus, record: RunRecord, status: RunStatus) -> Finding | None:
    """Return the finding for a member that was ended because it was silent, by whichever process.

    The others had agreed on a launch without it before, and it has not reported that it was asked to end.
    """
    report = node.report
    if node.state is not NodeState.CANCELED or report is None or not record.ref.replaces:
        return None
    if report.program_has_ended or len(report.restarts) >= len(status.restarts):
        return None
    return silence_of(node, record)


def deleted_when_lost(node: NodeStatus, record: RunRecord, status: RunStatus) -> Finding | None:
    """Return why a node was lost whose run somebody has deleted since; the others had agreed on a launch without it."""
    if node.state is not NodeState.MISSING or node.report is None or not record.ref.replaces:
        return None
    since = status.restarts[len(node.report.restarts) :]
    return next(((each.cause, each.message) for each in since if node.rank in each.lost), None)


def lost_before(node: NodeStatus, record: RunRecord, status: RunStatus) -> Finding | None:
    """Return why a node counts as lost, whose state at the service has another reason."""
    return ended_for_silence(node, record, status) or deleted_when_lost(node, record, status)


def silence_of(node: NodeStatus, record: RunRecord) -> Finding:
    """Return the finding for a node that was silent for as long as none may be."""
    phase = f" in phase {node.report.phase}" if node.report else ""
    limit = f" for {record.lost_timeout:.0f} s (limits.lost_timeout)" if record.lost_timeout else ""
    return Cause.NODE, f"node {node.rank} was lost{phase}: it sent no heartbeat{limit}"


def diagnose(node: NodeStatus, record: RunRecord) -> Finding:
    """Return why a node has ended, from the service's state and the node's report."""
    report, run = node.report, words_of(record.ref.backend).node
    if node.cause is Cause.PREEMPTED and (report is None or report.cause in CONSEQUENCES):
        return Cause.PREEMPTED, f"node {node.rank}: {node.details}"
    if report is not None and report.cause is not None:
        message, exit_code = report.message or "failed", report.exit_code
        code = "" if exit_code is None or names_exit_code(message, exit_code) else f" (exit code {exit_code})"
        return report.cause, f"node {node.rank}: {message}{code}"
    details = node.details or "the service gives no reason"
    if node.state is NodeState.SUCCEEDED:
        return Cause.NODE, f"node {node.rank}: {_contradiction(report)}"
    if node.state is NodeState.MISSING:
        return Cause.CANCELED, f"node {node.rank}: its {run} {node.run_id} was deleted outside this task"
    if node.state is NodeState.CANCELED:
        return Cause.CANCELED, f"node {node.rank}: its {run} was cancelled outside this task ({details})"
    if node.cause is not None:
        return node.cause, f"node {node.rank}: {details}"
    if report is not None and report.message is not None:
        return Cause.NODE, f"node {node.rank}: {report.message}"
    if report is None and not record.expects.reports:
        return Cause.USER, f"node {node.rank}: {details}; its log says more"
    if report is None:
        return Cause.NODE, f"node {node.rank} ended before its agent could report: {details}"
    return Cause.NODE, f"node {node.rank} was lost in phase {report.phase}: {details}"


def _contradiction(report: NodeReport | None) -> str:
    """Return what contradicts the service's state SUCCEEDED of a node."""
    if report is None:
        return (
            "the service reports SUCCEEDED, but the agent wrote no report, so the result cannot be verified"
        )
    what = report.message or (
        "it was stopped before its program had ended"
        if report.stopped
        else f"it exited with {report.exit_code}"
    )
    return f"{what}, though the service reports SUCCEEDED"


def _has_failed(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    if verdict.end(node, record.expects, status) is not verdict.NodeEnd.FAILED:
        return False
    # A listing of the run directory may be stale: a missing report counts once all nodes have ended.
    silent = node.state is NodeState.SUCCEEDED and node.report is None
    return status.ended or not silent


def _blame_order(node: NodeStatus) -> tuple[bool, bool, bool, bool, float]:
    """Return the order of failed nodes, the root cause first.

    Nodes that were only asked to stop name no cause; those that have lost a preempted node name `NODE` or `HANG`.
    """
    said = node.report.cause if node.report is not None else None
    return (
        said in CONSEQUENCES,
        node.cause is not Cause.PREEMPTED,
        said is None,
        node.cause is None,
        node.finished_at or float("inf"),
    )


def _waited_in_vain(node: NodeStatus, status: RunStatus) -> Finding | None:
    """Return the finding for a node that gave up waiting for others without a machine: it is not at fault itself."""
    report = node.report
    if report is None or report.cause is not Cause.NODE or report.trained_for is not None:
        return None
    absent = [
        each
        for each in status.nodes
        if each.state is NodeState.PENDING and each.report is None and each.run_id != node.run_id
    ]
    if not absent:
        return None
    cause = next((each.cause for each in absent if each.cause and MEANINGS[each.cause].no_machine), None)
    why = next((each.details for each in absent if each.details), "no machine was free")
    who = in_words([each.rank for each in absent])
    return (
        cause or Cause.CAPACITY,
        f"{who} had no machine while others waited for it: {why}; {report.message}",
    )
