"""What to do next with a gang of nodes. Pure: no I/O, no clock, no Airflow.

Times come from two sources only: `now` and the times in a record are by the service's clock; how long something has
looked the same is in the record (`unchanged`), measured by the watcher. Times that nodes wrote are never compared
with either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import another_gang, durations, verdict
from airflow_provider_ocidist.gangs.spending import spent_of
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import OVER_THE_LONGEST, NodeReport, Phase, Restart
from airflow_provider_ocidist.model.run import (
    Ending,
    NodeState,
    NodeStatus,
    RunRecord,
    RunStatus,
)

CANCEL_AGAIN_AFTER = 15.0
"""Seconds after which a node that has not begun to end is cancelled again."""
SAVING_LIMIT = 120.0
"""Seconds after a failure during which nodes that are saving checkpoints are left alone."""
REPORT_LIMIT = 120.0
"""Seconds after a failure during which unreadable reports are requested again: they decide whether to retry."""
UNREADABLE_LIMIT = 1800.0
"""Seconds after the end during which unreadable reports are requested again: they decide whether it is a success."""
HANG_MARGIN = 60.0
"""Seconds that a node has to report its own hang, with stacks, before it is cancelled."""
BUDGET_MARGIN = 300.0
"""Seconds of start-up, as of an image's download, that the agents do not count and the service does."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End all nodes; record why."""

    ending: Ending
    of_the_rest: bool = False
    """Whether all nodes that took part have ended, none of them with a failure."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Make a node in the place of each one that is lost: the others wait for it."""

    failures: tuple[Restart, ...]
    """Why each is lost, with its rank."""


@dataclass(frozen=True, slots=True)
class GoOnWithout:
    """Have the training launched again without the nodes in whose place no machine has come."""

    change: Restart
    """Why, with the ranks that go on."""


@dataclass(frozen=True, slots=True)
class Succeed:
    """Every node succeeded, and the promised checkpoint and outputs exist."""

    warning: str | None = None
    """Doubt about the success, for the log."""


@dataclass(frozen=True, slots=True)
class Fail:
    """All nodes have ended, and the gang has failed."""

    cause: Cause
    message: str


NOT_NEEDED = "the training has ended; what waited to take part is ended too"
_CONSEQUENCES = (None, Cause.NODE, Cause.HANG)
"""Causes that nodes report when another one was lost."""

Action = Wait | Cancel | Replace | GoOnWithout | Succeed | Fail
Finding = tuple[Cause, str]


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
    change = _replacement(record, members) or _going_on_without(record, members)
    for look in _LOOKS if change is None else (_past_deadline, _over_budget):
        # All cost money, also those that take no part.
        finding = look(record, status if look is _over_budget else members, now)
        if finding is not None:
            cause, message = finding
            return Cancel(Ending(cause=cause, message=message, since=now))
    if members.ended:
        return Cancel(Ending(cause=Cause.CANCELED, message=NOT_NEEDED, since=now), of_the_rest=True)
    return change or _growth(record, status) or Wait()


def _replacement(record: RunRecord, status: RunStatus) -> Replace | None:
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


def _going_on_without(record: RunRecord, status: RunStatus) -> GoOnWithout | None:
    """Return with whom the training goes on where no machine comes in the place of lost ones, and enough are left."""
    absent = [node for node in status.nodes if _is_absent(node, record)]
    present = [node for node in status.nodes if node not in absent]
    if not (absent and record.ref.replaces and status.reports_readable and _go_on(status)):
        return None
    if len(present) < (record.min_nodes or record.ref.nodes):
        return None
    # What else is lost with its machine is replaced afterwards.
    if any(each.state.terminal and not _is_lost(each, record) for each in present):
        return None
    failures = [_loss(node, record, status) for node in absent if _is_lost(node, record)]
    if failures and not _may_replace(record, status, failures):
        return None
    members = tuple(node.rank for node in present)
    known = another_gang.lost_gang(
        Cause.CAPACITY,
        f"no machine came in the place of {in_words([node.rank for node in absent])}; "
        f"the training goes on with {in_words(members)}",
        status,
    )
    return None if known is None else GoOnWithout(replace(known, members=members))


def _is_absent(node: NodeStatus, record: RunRecord) -> bool:
    """Whether a node is lost, and no machine has come in its place in time, or none will."""
    is_replaced = any(each.rank == node.rank for each in record.ref.replaced)
    if node.state is NodeState.PENDING:
        return is_replaced and durations.seconds(record, durations.WAITING) >= record.replace_timeout
    if _not_replaced(node, record) is not None:
        return node.state.terminal
    too_late = durations.seconds(record, durations.FAILURE) >= record.replace_timeout
    return (bool(record.irreplaceable) or too_late) and _is_lost(node, record)


def _growth(record: RunRecord, status: RunStatus) -> Replace | None:
    """Return which missing machines are asked for again, once a gang has gone on without them for a while."""
    if not durations.is_fewer(record) or durations.seconds(record, durations.FEWER) < record.grow_after:
        return None
    missing = [node for node in status.nodes if node.rank not in record.members and node.state.terminal]
    if not missing or not _go_on(status.only(record.members)):
        return None
    return Replace(
        tuple(
            Restart(cause=Cause.CAPACITY, message=f"node {node.rank} is asked for again", rank=node.rank)
            for node in missing
        )
    )


def _is_lost(node: NodeStatus, record: RunRecord) -> bool:
    """Whether a node has ended for a reason that lies outside of what runs on it."""
    report = node.report
    if node.state is not NodeState.FAILED or (report is not None and report.cause is not None):
        return False
    has_succeeded = report is not None and report.phase is Phase.DONE and report.exit_code == 0
    return not has_succeeded and _diagnose(node, record)[0] in another_gang.MADE_UP_FOR


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
    cause, message = _diagnose(node, record)
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


def _judge(record: RunRecord, status: RunStatus, now: float) -> Action:
    failed = _failed_node(record, status)
    since = now if record.unread_since is None else record.unread_since
    if failed is not None:
        ending = record.ending
        if ending is None and _is_unexplained(record, status) and now < since + REPORT_LIMIT:
            return Wait()
        # The service may report a preemption only after the other nodes have reported the loss.
        explains = failed[0] is Cause.PREEMPTED and ending is not None and ending.cause in _CONSEQUENCES
        return Fail(*failed) if ending is None or explains else Fail(ending.cause, ending.message)
    match verdict.outcome(record, status):
        case verdict.Success(warning):
            return Succeed(warning)
        case verdict.GangFailure(cause, message):
            return Fail(cause, message)
    # Without the reports nothing is known about checkpoints: wait for them until the limit.
    if now < since + UNREADABLE_LIMIT:
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
        return Fail(ending.cause, f"{ending.message}; {_still_alive(record, status, now - ending.first)}")
    ignored = any(node.state in (NodeState.PENDING, NodeState.RUNNING) for node in status.nodes)
    rounds = int((now - ending.since) // CANCEL_AGAIN_AFTER)
    if ignored and rounds >= 1:
        return Cancel(Ending(cause=ending.cause, message=ending.message, since=now, began=ending.first))
    return Wait()


def _still_alive(record: RunRecord, status: RunStatus, after: float) -> str:
    """Return which nodes have not ended, and how to end them."""
    alive = [node for node in status.nodes if not node.state.terminal]
    nodes = ", ".join(f"node {node.rank} ({node.state}, {node.run_id or 'no id'})" for node in alive)
    known_id = next((node.run_id for node in alive if node.run_id), record.ref.job_id)
    words = words_of(record.ref.backend)
    return (
        f"NOT ENDED {after:.0f} s after the first cancel, {words.cost}: {nodes}. "
        f"Cancel again with `ocidist cancel {known_id}` or {words.where}; "
        f"if that does not end them, contact {words.helper}"
    )


def _failed_node(record: RunRecord, status: RunStatus) -> Finding | None:
    failed = [node for node in status.nodes if _has_failed(node, record, status)]
    if not failed:
        return None
    # The node that names the cause may be the last one that the service reports as ended.
    named = [node for node in status.nodes if node.report is not None and node.report.cause is not None]
    blamed = min([*failed, *named], key=_blame_order)
    return _waited_in_vain(blamed, status) or _not_replaced(blamed, record) or _diagnose(blamed, record)


def _not_replaced(node: NodeStatus, record: RunRecord) -> Finding | None:
    """Return the finding for a node in whose place no machine has come: it was lost for another reason."""
    cause, message = _diagnose(node, record)
    before = [each for each in record.ref.replaced if each.rank == node.rank]
    if not before or node.report is not None or not MEANINGS[cause].no_machine:
        return None
    return before[-1].cause, f"{before[-1].message}; no machine has taken its place: {message}"


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
    ranks = ", ".join(str(each.rank) for each in absent)
    cause = next((each.cause for each in absent if each.cause and MEANINGS[each.cause].no_machine), None)
    why = next((each.details for each in absent if each.details), "no machine was free")
    return (
        cause or Cause.CAPACITY,
        f"node {ranks} had no machine while others waited for it: {why}; {report.message}",
    )


def _has_failed(node: NodeStatus, record: RunRecord, status: RunStatus) -> bool:
    if verdict.end(node, record.expects, readable=status.reports_readable) is not verdict.NodeEnd.FAILED:
        return False
    # A listing of the run directory may be stale: a missing report counts once all nodes have ended.
    silent = node.state is NodeState.SUCCEEDED and node.report is None
    return status.ended or not silent


def node_of(record: RunRecord, status: RunStatus, message: str) -> NodeStatus | None:
    """Return the node that a message of `Fail` names; None if it concerns all nodes, or none that has failed."""
    return next((node for node in status.nodes if _diagnose(node, record)[1] == message), None)


def _blame_order(node: NodeStatus) -> tuple[bool, bool, bool, bool, float]:
    """Return the order of failed nodes, the root cause first.

    Nodes that were only asked to stop name no cause; those that have lost a preempted node name `NODE` or `HANG`.
    """
    said = node.report.cause if node.report is not None else None
    return (
        said in _CONSEQUENCES,
        node.cause is not Cause.PREEMPTED,
        said is None,
        node.cause is None,
        node.finished_at or float("inf"),
    )


def _failed_and_saved(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    """Return the failure once it is explained and no node is saving: that checkpoint may be the only one."""
    finding = _failed_node(record, status)
    since = durations.seconds(record, durations.FAILURE)
    if since < SAVING_LIMIT and any(_is_saving(node) for node in status.nodes):
        return None
    if since < REPORT_LIMIT and _is_unexplained(record, status):
        return None
    return finding


def _is_unexplained(record: RunRecord, status: RunStatus) -> bool:
    """Whether a node has failed for a reason that only its report gives, which cannot be read now."""
    return (
        record.expects.reports
        and not status.reports_readable
        and any(node.state is NodeState.FAILED and node.cause is None for node in status.nodes)
    )


def _is_saving(node: NodeStatus) -> bool:
    return node.state is NodeState.RUNNING and node.report is not None and node.report.phase is Phase.SAVING


def _diagnose(node: NodeStatus, record: RunRecord) -> Finding:
    report, its = node.report, words_of(record.ref.backend).node
    if node.cause is Cause.PREEMPTED and (report is None or report.cause in _CONSEQUENCES):
        return Cause.PREEMPTED, f"node {node.rank}: {node.details}"
    if report is not None and report.cause is not None:
        code = f" (exit code {report.exit_code})" if report.exit_code is not None else ""
        return report.cause, f"node {node.rank}: {report.message or 'failed'}{code}"
    details = node.details or "the service gives no reason"
    if node.state is NodeState.SUCCEEDED:
        return Cause.NODE, f"node {node.rank}: {_contradiction(report)}"
    if node.state is NodeState.MISSING:
        return Cause.CANCELED, f"node {node.rank}: its {its} {node.run_id} was deleted outside this task"
    if node.state is NodeState.CANCELED:
        return Cause.CANCELED, f"node {node.rank}: its {its} was cancelled outside this task ({details})"
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
    what = report.message or f"it exited with {report.exit_code}"
    return f"{what}, though the service reports SUCCEEDED"


def _past_deadline(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    if record.deadline is None or now < record.deadline:
        return None
    limit = record.deadline - record.ref.submitted_at
    return (
        Cause.DEADLINE,
        f"not finished within {limit:.0f} s (limits.max_runtime or the task's execution_timeout)",
    )


def _never_started(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    waiting = [node for node in status.nodes if node.state is NodeState.PENDING]
    if record.start_deadline is None or not waiting:
        return None
    replaced = [each for each in record.ref.replaced if each.rank in {node.rank for node in waiting}]
    limit = record.replace_timeout if replaced else record.start_deadline - record.ref.submitted_at
    # A gang that had begun, and was paused or restarted, gets that time once more.
    begun = durations.has_begun(record)
    if durations.seconds(record, durations.WAITING) < limit if begun else now < record.start_deadline:
        return None
    ranks = ", ".join(str(node.rank) for node in waiting)
    cause, why = (
        Cause.CAPACITY,
        "no machine was free, or it cannot write to the work directory, as its log would say",
    )
    for node in waiting:
        if node.cause is not None and node.details is not None:
            cause, why = node.cause, node.details
            break
    if replaced:
        lost = replaced[-1]
        return (
            lost.cause,
            f"{lost.message}; no machine has taken its place within {limit:.0f} s (limits.replace_timeout): {why}",
        )
    return cause, f"node {ranks} did not start within {limit:.0f} s (limits.start_timeout): {why}"


def _over_budget(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    """Return the finding where nodes have not ended by themselves, or have no agent that counts."""
    if record.budget is None:
        return None
    late = BUDGET_MARGIN * len(status.nodes) if record.expects.reports else 0.0
    spent = spent_of(status, now, record.ref.price)
    if record.budget.left(spent, record.ref.price) + late > 0:
        return None
    finding = record.budget.finding(spent)
    return None if finding is None else (Cause.BUDGET, finding)


def _lost_from_sight(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    if record.lost_timeout is None or not status.reports_readable:
        return None
    for node in status.nodes:
        silent = durations.seconds(record, durations.node(node.rank))
        if node.state is not NodeState.RUNNING or silent <= record.lost_timeout:
            continue
        if not _is_saving(node):
            return (
                Cause.NODE,
                f"node {node.rank} has sent no heartbeat for {silent:.0f} s (limits.lost_timeout)",
            )
        # Without the store, the node still holds a finished model, and goes on trying to save it.
        if silent > record.lost_timeout + record.save_timeout:
            return (
                Cause.NODE,
                f"node {node.rank} saves, and has sent no heartbeat for {silent:.0f} s (limits.save_timeout)",
            )
    return None


def _stuck(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    if record.hang_timeout is None or not status.reports_readable:
        return None
    still = durations.seconds(record, durations.PROGRESS)
    reports = [node.report for node in status.nodes if node.report]
    longest = max((each.progress.longest_step for each in reports if each.progress), default=0.0)
    # The nodes apply the same rule, earlier and to more kinds of progress.
    if still <= max(record.hang_timeout, OVER_THE_LONGEST * longest) + HANG_MARGIN:
        return None
    return Cause.HANG, f"no output, step or checkpoint on any node for {still:.0f} s (limits.hang_timeout)"


def _never_ends(record: RunRecord, status: RunStatus, now: float) -> Finding | None:  # noqa: ARG001 - as its siblings
    ending = durations.seconds(record, durations.ENDING)
    if ending <= record.ending_limit:
        return None
    ranks = ", ".join(str(node.rank) for node in status.nodes if not node.state.terminal)
    return Cause.SERVICE, f"node {ranks} began to end {ending:.0f} s ago, and has not ended"


_LOOKS: tuple[Callable[[RunRecord, RunStatus, float], Finding | None], ...] = (
    _failed_and_saved,
    _past_deadline,
    _over_budget,
    _never_started,
    _lost_from_sight,
    _stuck,
    _never_ends,
)
