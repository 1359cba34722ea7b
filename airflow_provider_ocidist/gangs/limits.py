"""Limits: which limit a gang exceeds, of time, of cost, or of silence. Pure."""

from __future__ import annotations

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import durations
from airflow_provider_ocidist.gangs.diagnoses import IN_VAIN, Finding
from airflow_provider_ocidist.gangs.spending import spent_of
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import OVER_THE_LONGEST
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus

HANG_MARGIN = 60.0
"""Seconds that a node has to report its own hang, with stacks, before it is cancelled."""
END_MARGIN = 60.0
"""Seconds that nodes have, once one has reported its stacks, to wait for those of the others and end their programs."""
BUDGET_MARGIN = 300.0
"""Seconds of start-up, as of an image's download, that the agents do not count and the service does."""


def of_the_run(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    """Return which limit of the whole run is exceeded. `status`: of all nodes, as those without a part cost money too.

    `now` is the Unix time at the service, in seconds.
    """
    return past_deadline(record, now) or _over_budget(record, status, now)


def of_nodes(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    """Return which limit the nodes that take part exceed."""
    return (
        _never_started(record, status, now)
        or lost_from_sight(record, status)
        or _stuck(record, status)
        or _never_ends(record, status)
    )


def past_deadline(record: RunRecord, now: float) -> Finding | None:
    """Return the finding once the run's time is over. `now` is the Unix time at the service, in seconds."""
    if record.deadline is None or now < record.deadline:
        return None
    limit = record.deadline - record.ref.submitted_at
    return (
        Cause.DEADLINE,
        f"not finished within {limit:.0f} s (limits.max_runtime or the task's execution_timeout)",
    )


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


def _never_started(record: RunRecord, status: RunStatus, now: float) -> Finding | None:
    waiting = [node for node in status.nodes if durations.awaits_machine(node, record, status)]
    if record.start_deadline is None or not waiting:
        return None
    replaced = [each for each in record.ref.replaced if each.rank in {node.rank for node in waiting}]
    limit = record.replace_timeout if replaced else record.start_deadline - record.ref.submitted_at
    # A gang that had begun, and was paused or restarted, gets that time once more.
    begun = durations.has_begun(record)
    if durations.seconds(record, durations.WAITING) < limit if begun else now < record.start_deadline:
        return None
    cause, why = _why_it_waits(waiting)
    if replaced:
        lost = replaced[-1]
        return (
            lost.cause,
            f"{lost.message}; {IN_VAIN} within {limit:.0f} s (limits.replace_timeout): {why}",
        )
    who = in_words([node.rank for node in waiting])
    return cause, f"{who} did not start within {limit:.0f} s (limits.start_timeout): {why}"


def _why_it_waits(waiting: list[NodeStatus]) -> Finding:
    """Return the first reason that the service gives for one of these nodes."""
    for node in waiting:
        if node.cause is not None and node.details is not None:
            return node.cause, node.details
    for node in waiting:
        if node.state is NodeState.UNKNOWN:
            return (
                Cause.SERVICE,
                node.details or "the service reports a state that this version does not know",
            )
    return (
        Cause.CAPACITY,
        "no machine was free, or it cannot write to the work directory, as its log would say",
    )


def lost_from_sight(record: RunRecord, status: RunStatus) -> Finding | None:
    """Return the finding where a node that runs, or may run, has been silent for too long."""
    if record.lost_timeout is None or not status.reports_readable:
        return None
    for node in status.nodes:
        silent = durations.seconds(record, durations.heartbeat_of(node.rank))
        if node.state not in durations.MAY_BEAT or silent <= record.lost_timeout:
            continue
        if node.state is NodeState.ENDING:
            # Its run may be that of others too, which save what all have trained.
            if node.report is not None and node.report.program_has_ended:
                continue
            # Of its own accord, or ended for its silence; another takes its place once it has ended.
            if silent > record.lost_timeout + record.replace_timeout:
                return (
                    Cause.NODE,
                    f"node {node.rank} has sent no heartbeat for {silent:.0f} s, and does not end",
                )
            continue
        if not node.is_saving:
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


def _stuck(record: RunRecord, status: RunStatus) -> Finding | None:
    if record.hang_timeout is None or not status.reports_readable:
        return None
    still = durations.seconds(record, durations.PROGRESS)
    reports = [node.report for node in status.nodes if node.report]
    longest = max((each.progress.longest_step for each in reports if each.progress), default=0.0)
    # The nodes apply the same rule, earlier and to more kinds of progress. Their own end may be followed by a launch.
    margin = HANG_MARGIN + (END_MARGIN if any(each.stack_positions is not None for each in reports) else 0.0)
    if still <= max(record.hang_timeout, OVER_THE_LONGEST * longest) + margin:
        return None
    return Cause.HANG, f"no progress on any node for {still:.0f} s (limits.hang_timeout)"


def _never_ends(record: RunRecord, status: RunStatus) -> Finding | None:
    ending = durations.seconds(record, durations.ENDING)
    if ending <= record.ending_limit:
        return None
    ranks = [node.rank for node in status.nodes if not node.state.terminal]
    have = "has" if len(ranks) == 1 else "have"
    return Cause.SERVICE, f"{in_words(ranks)} began to end {ending:.0f} s ago, and {have} not ended"
