"""Lost nodes: when they are replaced, when the others go on without them, when they are asked for again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import another_gang, durations
from airflow_provider_ocidist.gangs.actions import GoOnWithout, Replace
from airflow_provider_ocidist.gangs.diagnoses import diagnose, not_replaced
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import Phase, Restart
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus


def replacement(record: RunRecord, status: RunStatus) -> Replace | None:
    """Return what replaces the nodes that have ended, where each is lost with its machine, and the others go on."""
    lost = [node for node in status.nodes if node.state.terminal]
    if not (lost and record.ref.replaces and status.reports_readable) or record.irreplaceable:
        return None
    if not all(_is_lost(node, record) for node in lost) or not _go_on(status):
        return None
    if durations.seconds(record, durations.FAILURE) >= record.replace_timeout:
        return None
    failures = [_loss(node, record, status) for node in lost]
    return Replace(tuple(failures)) if _may_replace(record, status, failures) else None


def going_on_without(record: RunRecord, status: RunStatus) -> GoOnWithout | None:
    """Return with whom the training goes on where no machine comes in the place of lost ones, and enough are left."""
    absent = [node for node in status.nodes if _is_absent(node, record)]
    present = [node for node in status.nodes if node not in absent]
    if not (absent and record.ref.replaces and status.reports_readable and _go_on(status)):
        return None
    if len(present) < (record.min_nodes or record.ref.nodes) or _is_not_heeded(record):
        return None
    # What else is lost with its machine is replaced afterwards.
    if any(each.state.terminal and not _is_lost(each, record) for each in present):
        return None
    failures = [_loss(node, record, status) for node in absent if _is_lost(node, record)]
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


def growth(record: RunRecord, status: RunStatus) -> Replace | None:
    """Return which missing machines are asked for again, once a gang has gone on without them for a while."""
    if not durations.is_fewer(record) or durations.seconds(record, durations.FEWER) < record.grow_after:
        return None
    if not _go_on(status.only(record.members)):
        return None
    absent = [node for node in status.nodes if node.rank not in record.members]
    if frozen := [node for node in absent if _is_frozen(node, record, status)]:
        return Replace(_capacity(frozen, "came late, and is silent"), first_ends=True)
    missing = [node for node in absent if node.state.terminal]
    return Replace(_capacity(missing, "is asked for again")) if missing else None


def _capacity(nodes: Sequence[NodeStatus], what: str) -> tuple[Restart, ...]:
    # No failure: it is charged to no budget.
    return tuple(
        Restart(cause=Cause.CAPACITY, message=f"node {node.rank} {what}", rank=node.rank) for node in nodes
    )


def _is_frozen(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    """Whether a node that takes no part has been silent for as long as one that does may be."""
    if record.lost_timeout is None or not status.reports_readable or node.state is not NodeState.RUNNING:
        return False
    return durations.seconds(record, durations.node(node.rank)) > record.lost_timeout


def _is_not_heeded(record: RunRecord) -> bool:
    """Whether the nodes that live were to go on with fewer for so long that they will not."""
    absent = max(durations.seconds(record, of) for of in (durations.FAILURE, durations.WAITING))
    return absent >= record.replace_timeout + record.ending_limit


def _is_absent(node: NodeStatus, record: RunRecord) -> bool:
    """Whether a node is lost, and no machine has come in its place in time, or none will."""
    is_replaced = any(each.rank == node.rank for each in record.ref.replaced)
    if node.state is NodeState.PENDING:
        return is_replaced and durations.seconds(record, durations.WAITING) >= record.replace_timeout
    if not_replaced(node, record) is not None:
        return node.state.terminal
    too_late = durations.seconds(record, durations.FAILURE) >= record.replace_timeout
    return (bool(record.irreplaceable) or too_late) and _is_lost(node, record)


def _is_lost(node: NodeStatus, record: RunRecord) -> bool:
    """Whether a node has ended for a reason that lies outside of what runs on it."""
    report = node.report
    if node.state is not NodeState.FAILED or (report is not None and report.cause is not None):
        return False
    has_succeeded = report is not None and report.phase is Phase.DONE and report.exit_code == 0
    return not has_succeeded and diagnose(node, record)[0] in another_gang.MADE_UP_FOR


def _go_on(status: RunStatus) -> bool:
    """Whether the nodes that live have trained, and are able to train on."""
    living = [node for node in status.nodes if not node.state.terminal]
    leaving = any(
        node.state is NodeState.ENDING or (node.report is not None and node.report.phase is Phase.DONE)
        for node in living
    )
    begun = any(node.state is NodeState.RUNNING for node in living)
    return begun and not leaving and (status.has_trained or bool(status.restarts))


def _loss(node: NodeStatus, record: RunRecord, status: RunStatus) -> Restart:
    """Return why a node is lost, and how far the gang had come then."""
    cause, message = diagnose(node, record)
    known = another_gang.lost_gang(cause, message, status) or Restart(cause=cause, message=message)
    return replace(known, rank=node.rank)


def _may_replace(record: RunRecord, status: RunStatus, failures: Sequence[Restart]) -> bool:
    """Whether the budget allows it, for the machines and for the launches, which the nodes may have agreed on."""
    ended = [node.report for node in status.nodes if node.report and node.state.terminal]
    launch = max((len(report.restarts) for report in ended), default=-1)
    if len(status.restarts) <= launch and another_gang.why_no_gang(
        record.restarts, status.restarts, failures[0]
    ):
        return False
    for number, failure in enumerate(failures):
        # Those that are lost at once are no crash loop, and each costs one of the budget.
        at_once = [replace(each, step=-1) for each in failures[:number]]
        if another_gang.why_no_gang(record.restarts, [*record.ref.replaced, *at_once], failure) is not None:
            return False
    return True
