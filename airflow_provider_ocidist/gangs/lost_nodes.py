"""Lost nodes: when they are replaced, when the others go on without them, when they are asked for again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_provider_ocidist.agent.train import restarts
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import another_gang, durations
from airflow_provider_ocidist.gangs.actions import EndSilent, GiveUpSilent, GoOnWithout, NodeChange, Replace
from airflow_provider_ocidist.gangs.diagnoses import (
    Finding,
    diagnose,
    lost_before,
    not_replaced,
    silence_of,
)
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import Phase, Restart
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus


def replacement(record: RunRecord, status: RunStatus) -> NodeChange | None:
    """Return what replaces all ended nodes, if each was lost with its machine and the others train on.

    A silent node may live: the others are asked first to wait for another in its place; once they report that, it is
    ended; and once the service shows its end, it is replaced.
    """
    lost = [node for node in status.nodes if node.state.terminal]
    silent = [node for node in status.nodes if _is_silent(node, record)]
    stopped = [node for node in status.nodes if _is_stopped(node)]
    if not (record.ref.replaces and status.reports_readable) or record.irreplaceable:
        return None
    if not all(_is_gone(node, record, status) for node in lost) or not _go_on(status, [*silent, *stopped]):
        return None
    if durations.seconds(record, durations.FAILURE) >= record.replace_timeout:
        return None
    if not lost:
        return _end_of(silent, record, status)
    failures = [_loss(node, record, status) for node in lost]
    if not _may_replace(record, status, failures):
        return None
    return Replace(tuple(failures), launch=_launch_of(lost), over=_launch_over(status))


def _end_of(
    silent: Sequence[NodeStatus], record: RunRecord, status: RunStatus
) -> GiveUpSilent | EndSilent | None:
    """Return what ends silent nodes; None where all are ending, or where no budget allows others."""
    alive = [node for node in silent if node.state is not NodeState.ENDING]
    failures = [_loss(node, record, status) for node in alive]
    if not alive or not _may_replace(record, status, failures):
        return None
    agreed = all(node.report and len(node.report.restarts) < len(status.restarts) for node in alive)
    return EndSilent(tuple(failures)) if agreed else GiveUpSilent(tuple(failures), launch=_launch_of(alive))


def _is_silent(node: NodeStatus, record: RunRecord) -> bool:
    """Whether a member is ended for its silence, or is ending: not for ever, as then the gang is ended."""
    if record.lost_timeout is None or node.state not in durations.MAY_BEAT:
        return False
    # One whose program has ended may hold a finished model.
    if node.report is None or node.report.program_has_ended:
        return False
    silent = durations.seconds(record, durations.heartbeat_of(node.rank))
    return record.lost_timeout < silent <= record.lost_timeout + record.replace_timeout


def going_on_without(record: RunRecord, status: RunStatus) -> GoOnWithout | None:
    """Return the change to fewer nodes, if no machine has replaced the lost ones in time and `min_nodes` are left."""
    absent = [node for node in status.nodes if _is_absent(node, record, status)]
    present = [node for node in status.nodes if node not in absent]
    if not (absent and record.ref.replaces and status.reports_readable and _go_on(status)):
        return None
    if len(present) < (record.min_nodes or record.ref.nodes) or _is_ignored(record):
        return None
    # What else is lost with its machine is replaced afterwards.
    if any(each.state.terminal and not _is_gone(each, record, status) for each in present):
        return None
    failures = [_loss(node, record, status) for node in absent if _is_gone(node, record, status)]
    if failures and not _may_replace(record, status, failures):
        return None
    members = tuple(node.rank for node in present)
    lost = tuple(node.rank for node in absent if node.state.terminal)
    known = another_gang.lost_gang(
        Cause.CAPACITY,
        f"no machine came in the place of {in_words([node.rank for node in absent])}; "
        f"the training goes on with {in_words(members)}",
        status,
    )
    return None if known is None else GoOnWithout(replace(known, members=members, lost=lost))


def growth(record: RunRecord, status: RunStatus) -> EndSilent | Replace | None:
    """Return the request for missing machines, once a gang has trained without them for `grow_after`."""
    if not durations.is_fewer(record) or durations.seconds(record, durations.FEWER) < record.grow_after:
        return None
    if not _go_on(status.only(record.members)):
        return None
    absent = [node for node in status.nodes if node.rank not in record.members]
    if frozen := [node for node in absent if _is_frozen(node, record, status)]:
        return EndSilent(_capacity(frozen, "came late, and is silent"))
    missing = [node for node in absent if node.state.terminal]
    return Replace(_capacity(missing, "is asked for again")) if missing else None


def clearance(record: RunRecord, status: RunStatus) -> EndSilent | None:
    """Return the end of what has failed before it began, and stays in the way of the nodes that are to come."""
    if not record.ref.replaces:
        return None
    left = [node for node in status.nodes if node.is_left]
    # No failure: nothing of it is recorded, or charged.
    failures = [
        Restart(cause=node.cause or Cause.NODE, message=f"node {node.rank}: {node.details}", rank=node.rank)
        for node in left
    ]
    return EndSilent(tuple(failures)) if failures else None


def _capacity(nodes: Sequence[NodeStatus], what: str) -> tuple[Restart, ...]:
    # No failure: it is charged to no budget.
    return tuple(
        Restart(cause=Cause.CAPACITY, message=f"node {node.rank} {what}", rank=node.rank) for node in nodes
    )


def _is_frozen(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    """Whether a node that takes no part has been silent for as long as one that does may be."""
    if record.lost_timeout is None or not status.reports_readable or node.state is not NodeState.RUNNING:
        return False
    return durations.seconds(record, durations.heartbeat_of(node.rank)) > record.lost_timeout


def _is_ignored(record: RunRecord) -> bool:
    """Whether the live nodes have ignored the request to train on with fewer for so long that they never will."""
    absent = max(durations.seconds(record, of) for of in (durations.FAILURE, durations.WAITING))
    return absent >= record.replace_timeout + record.ending_limit


def _is_absent(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    """Whether a node is lost, and no machine has replaced it in time, or none will."""
    is_replaced = any(each.rank == node.rank for each in record.ref.replaced)
    if node.state is NodeState.PENDING:
        return is_replaced and durations.seconds(record, durations.WAITING) >= record.replace_timeout
    if not_replaced(node, record) is not None:
        return node.state.terminal
    too_late = durations.seconds(record, durations.FAILURE) >= record.replace_timeout
    return (bool(record.irreplaceable) or too_late) and _is_gone(node, record, status)


def _is_lost(node: NodeStatus, record: RunRecord) -> bool:
    """Whether a node has ended with its machine, and not by a fault of the program or the agent on it."""
    report = node.report
    if node.state is not NodeState.FAILED or (report is not None and report.cause is not None):
        return False
    has_succeeded = report is not None and report.has_succeeded
    return not has_succeeded and diagnose(node, record)[0] in another_gang.MADE_UP_FOR


def _is_gone(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    """Whether a node has ended with its machine, was ended for its silence, or was deleted when it was lost."""
    return _is_lost(node, record) or lost_before(node, record, status) is not None


def _go_on(status: RunStatus, besides: Collection[NodeStatus] = ()) -> bool:
    """Whether the live nodes, besides these, have trained, and can train on."""
    living = [node for node in status.nodes if not (node.state.terminal or node in besides)]
    leaving = any(
        node.state is NodeState.ENDING or (node.report is not None and node.report.phase is Phase.DONE)
        for node in living
    )
    begun = any(node.state is NodeState.RUNNING for node in living)
    return begun and not leaving and (status.can_go_on or bool(status.restarts))


def _is_stopped(node: NodeStatus) -> bool:
    """Whether a node that the service calls alive was stopped from outside, and is about to end: it is lost then."""
    may_end = node.state in (NodeState.RUNNING, NodeState.UNKNOWN)
    return may_end and node.report is not None and node.report.was_stopped


def _launch_of(nodes: Sequence[NodeStatus]) -> int | None:
    """Return the last launch, from 0, in which any of these has taken part; None: not all newest reports were read."""
    reports = [node.report for node in nodes if node.report_is_newest]
    if None in reports or len(reports) < len(nodes):
        return None
    return max(len(report.restarts) for report in reports if report)


def _launch_over(status: RunStatus) -> int | None:
    """Return the launch that live nodes have ended, from 0; None: all of them train on, or wait.

    Who saves begins another launch only where the nodes have agreed on it before: after a success it begins none.
    """
    saving = [
        node.report for node in status.nodes if node.is_saving and node.report and not node.report.stopped
    ]
    return max((len(report.restarts) for report in saving), default=None)


def _loss(node: NodeStatus, record: RunRecord, status: RunStatus) -> Restart:
    """Return why a node is lost, and how far the gang's training had come by then."""
    cause, message = _finding(node, record, status)
    known = another_gang.lost_gang(cause, message, status) or Restart(cause=cause, message=message)
    return replace(known, rank=node.rank)


def _finding(node: NodeStatus, record: RunRecord, status: RunStatus) -> Finding:
    """Return why a node is lost; one that has not ended is silent."""
    if not node.state.terminal:
        return silence_of(node, record)
    return lost_before(node, record, status) or diagnose(node, record)


def _may_replace(record: RunRecord, status: RunStatus, failures: Sequence[Restart]) -> bool:
    """Whether `restarts` allows both the machines and the launch, which the nodes may have agreed on already."""
    lost = {each.rank for each in failures}
    ended = [
        node.report for node in status.nodes if node.report and (node.state.terminal or node.rank in lost)
    ]
    launch = max((len(report.restarts) for report in ended), default=-1)
    launches = status.restarts if len(status.restarts) <= launch else ()
    if restarts.why_not_allowed(record.restarts, launches, failures[0]) is not None:
        return False
    nodes = {node.rank: node for node in status.nodes}
    for number, failure in enumerate(failures):
        assert failure.rank is not None
        if restarts.is_crash_loop(_failures_before(nodes[failure.rank], record), failure):
            return False
        # Those that are lost at once are no crash loop, and each costs one of the budget.
        charged = [*record.ref.replaced, *failures[:number]]
        if restarts.why_not_allowed(record.restarts, charged, failure) is not None:
            return False
    return True


def _failures_before(node: NodeStatus, record: RunRecord) -> list[Restart]:
    """Return what had failed before the launch in which a node was lost began, or before the node itself did.

    Of what is lost together, the service may show one later than the other, whose replacement has begun by then: that
    is no earlier failure. Neither is the one for which the node has waited when it was lost.
    """
    its_predecessors = [each for each in record.ref.replaced if each.rank == node.rank]
    of_the_gang = node.report.restarts if node.report and node.report.was_launched else ()
    return [*its_predecessors, *of_the_gang]
