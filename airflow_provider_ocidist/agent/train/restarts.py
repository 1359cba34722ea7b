"""Restarts: whether a failed training is launched again on the same machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.report import Restart


def why_no_launch(budgets: Restarts, before: Sequence[Restart], failure: Restart) -> str | None:
    """Return why the training is not launched again after a failure; None: it is. `before`: the restarts so far."""
    never = why_not_allowed(budgets, (), failure)
    if never is not None:
        return never
    if is_crash_loop(before, failure):
        at = f" at step {failure.step}" if failure.step is not None else ""
        since = "" if at else ", with no step and no newer checkpoint since the first"
        return f"crash loop: {failure.cause}{at} for the second time{since}"
    return why_not_allowed(budgets, before, failure)


def why_not_allowed(budgets: Restarts, spent_on: Sequence[Restart], failure: Restart) -> str | None:
    """Return why no budget allows a restart after a failure, wherever the training was; None: one does."""
    budget = MEANINGS[failure.cause].restart
    if budget is None and failure.cause is not Cause.PREEMPTED:
        return f"another launch does not help against {failure.cause}"
    if budgets == Restarts():
        return "the job has no restarts"
    # A preemption is nobody's fault, and is charged to no budget.
    if budget is None:
        return None
    allowed = int(getattr(budgets, budget))
    if allowed == 0:
        return f"restarts.{budget} is 0"
    spent = sum(MEANINGS[each.cause].restart == budget for each in spent_on)
    return f"all {allowed} of restarts.{budget} are used" if spent >= allowed else None


def is_crash_loop(before: Sequence[Restart], failure: Restart) -> bool:
    """Whether the same failure has ended a launch at the same step before; a preemption is none of the program's."""
    if failure.cause is Cause.PREEMPTED:
        # Machines are taken back in clusters, and by no fault of what runs there.
        return False
    return any(_is_the_same(failure, each) for each in before)


def _is_the_same(one: Restart, other: Restart) -> bool:
    if one.cause is not other.cause:
        return False
    if one.step is None or other.step is None:
        return one.step is other.step and one.checkpoint == other.checkpoint
    # Of a step that another node has reported it is not known which of the next ones the failure has met.
    is_near = abs(one.step - other.step) <= max(one.behind, other.behind)
    return one.step == other.step or (is_near and one.checkpoint == other.checkpoint)
