"""What to do next with a gang of nodes. Pure: no I/O, no clock, no Airflow.

Times come from two sources only: `now` and the times in a record are by the service's clock; how long something has
looked the same is in the record (`unchanged`), measured by the watcher. Times that nodes wrote are never compared
with either.
"""

from __future__ import annotations

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import durations, limits, lost_nodes, verdict
from airflow_provider_ocidist.gangs.actions import (
    Action,
    Cancel,
    EndSilent,
    Fail,
    GiveUpSilent,
    GoOnWithout,
    NodeChange,
    Replace,
    Succeed,
    Wait,
)
from airflow_provider_ocidist.gangs.diagnoses import CONSEQUENCES, Finding, failed_node, is_unexplained
from airflow_provider_ocidist.model.homes import how_to_end, words_of
from airflow_provider_ocidist.model.pauses import SAVED_WITHIN
from airflow_provider_ocidist.model.run import Ending, NodeState, RunRecord, RunStatus

CANCEL_AGAIN_AFTER = 15.0
"""Seconds after which a node that has not begun to end is cancelled again."""
REPORT_LIMIT = 120.0
"""Seconds after a failure during which unreadable reports are requested again: they decide whether to retry."""
UNREADABLE_LIMIT = 1800.0
"""Seconds after the end during which unreadable reports are requested again: they decide whether it is a success."""
NOT_NEEDED = "the training has ended; what waited to take part is ended too"


def decide(record: RunRecord, status: RunStatus, now: float) -> Action:
    """Return the next action for a gang. `now` is the Unix time at the service, in seconds.

    A gang ends in one of two ways: all of its nodes are terminal and the outcome is judged, or something is
    found that makes waiting pointless; then it is cancelled first and judged when it has ended.
    """
    record = durations.with_members(record, status)
    members = status.only(record.members)
    if status.ended:
        return _judge(record, members, now)
    if record.ending is not None:
        return _cancel_again(record, record.ending, status, now)
    change = lost_nodes.replacement(record, members) or lost_nodes.going_on_without(record, members)
    finding = _why_waiting_is_pointless(record, status, members, now, change)
    if finding is not None:
        cause, message = finding
        return Cancel(Ending(cause=cause, message=message, since=now))
    if members.ended:
        return Cancel(Ending(cause=Cause.CANCELED, message=NOT_NEEDED, since=now), of_the_rest=True)
    return change or lost_nodes.clearance(record, members) or lost_nodes.growth(record, status) or Wait()


def _why_waiting_is_pointless(
    record: RunRecord,
    status: RunStatus,
    members: RunStatus,
    now: float,
    change: NodeChange | None,
) -> Finding | None:
    """Return why the gang has to end; None: it goes on.

    `status`: of all nodes. `members`: of those that take part. `change`: what makes up for lost nodes.
    """
    match change:
        case GiveUpSilent() | EndSilent() | Replace(over=None):
            return limits.of_the_run(record, status, now)
        case GoOnWithout():
            # The nodes that are asked to go on live.
            return limits.of_the_run(record, status, now) or limits.lost_from_sight(record, members)
    # Also where a replacement is of use only if another launch is agreed on: it is made while the nodes save.
    return (
        _failed_and_saved(record, members)
        or limits.of_the_run(record, status, now)
        or limits.of_nodes(record, members, now)
    )


def _failed_and_saved(record: RunRecord, status: RunStatus) -> Finding | None:
    """Return the failure once it is explained and no node is saving: that checkpoint may be the only one."""
    finding = failed_node(record, status)
    since = durations.seconds(record, durations.FAILURE)
    if since < SAVED_WITHIN and any(node.is_saving for node in status.nodes):
        return None
    if since < REPORT_LIMIT and is_unexplained(record, status):
        return None
    return finding


def _judge(record: RunRecord, status: RunStatus, now: float) -> Action:
    """Return the outcome of a gang that has ended; Wait while it cannot be read."""
    failed = failed_node(record, status)
    since = now if record.unread_since is None else record.unread_since
    if failed is not None:
        ending = record.ending
        if ending is None and is_unexplained(record, status) and now < since + REPORT_LIMIT:
            return Wait()
        # The service may report a preemption only after the other nodes have reported the loss.
        explains = failed[0] is Cause.PREEMPTED and ending is not None and ending.cause in CONSEQUENCES
        return Fail(*failed) if ending is None or explains else Fail(ending.cause, ending.message)
    match verdict.outcome(record, status):
        case verdict.Success(warning):
            return Succeed(warning)
        case verdict.GangFailure(cause, message):
            return Fail(cause, message)
    # Without the reports nothing is known about checkpoints: wait for them until the limit.
    # What was not found often enough yet is looked for again, however long the pauses between looks are.
    if status.doubtful or now < since + UNREADABLE_LIMIT:
        return Wait()
    return Fail(
        Cause.SERVICE,
        f"every node has exited with 0, but {unread(record, status)}; once it can be read, a retry adopts this run",
    )


def unread(record: RunRecord, status: RunStatus) -> str:
    """Return which part of an ended run cannot be read."""
    if status.checkpoint_problem is not None:
        return status.checkpoint_problem
    return f"their reports cannot be read, in {record.ref.run_dir}"


def _cancel_again(record: RunRecord, ending: Ending, status: RunStatus, now: float) -> Action:
    if now - ending.first >= record.ending_limit:
        alive = _still_alive(record, status, now - ending.first)
        members = status.only(record.members)
        outcome = _judge(record, members, now) if members.ended else None
        if isinstance(outcome, Succeed):
            # What has not ended takes no part; it ends without a renewal of its lease.
            lease = f"its lease ends it in {record.ref.lease:.0f} s" if record.ref.lease else None
            return Succeed("; ".join(filter(None, (outcome.warning, alive, lease))))
        return Fail(ending.cause, f"{ending.message}; {alive}")
    ignored = any(node.state in (NodeState.PENDING, NodeState.RUNNING) for node in status.nodes)
    rounds = int((now - ending.since) // CANCEL_AGAIN_AFTER)
    if ignored and rounds >= 1:
        return Cancel(Ending(cause=ending.cause, message=ending.message, since=now, began=ending.first))
    return Wait()


def _still_alive(record: RunRecord, status: RunStatus, after: float) -> str:
    """Return which nodes have not ended, and how to end them."""
    alive = [node for node in status.nodes if not node.state.terminal]
    nodes = ", ".join(f"node {node.rank} ({node.state}, {node.run_id or 'no id'})" for node in alive)
    ref, words = record.ref, words_of(record.ref.backend)
    return (
        f"NOT ENDED {after:.0f} s after the first cancel, {words.cost}: {nodes}. "
        f"Cancel again with {how_to_end(ref, named=record.named)}; if that does not end them, contact {words.helper}"
    )
