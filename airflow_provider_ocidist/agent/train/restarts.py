"""Restarts: whether a failed training is launched again, on the same machines or in another gang. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.report import Restart

KILLS_BY_CHANCE = 2
"""Most kills of a process at one step that may be chance: a kill shows nothing of the program, and a step is known only
as finely as the program reports it."""
_OF_MACHINES = (Cause.NODE, Cause.PREEMPTED, Cause.CAPACITY)


def why_no_launch(
    budgets: Restarts,
    before: Sequence[Restart],
    failure: Restart,
    charged: Sequence[Restart] | None = None,
) -> str | None:
    """Return why the training is not launched again after a failure; None: it is.

    `before`: the failures to compare it with. `charged`: the restarts so far, which budgets have paid for; None: the
    same.
    """
    never = why_not_allowed(budgets, (), failure)
    if never is not None:
        return never
    if is_crash_loop(before, failure):
        return f"crash loop: {_in_words(failure)}"
    return why_not_allowed(budgets, before if charged is None else charged, failure)


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
    """Whether the same failure has ended launches at the same step before, so often that it would end another.

    A preemption is none of the program's.
    """
    if failure.cause is Cause.PREEMPTED:
        # Machines are taken back in clusters, and by no fault of what runs there.
        return False
    times = sum(_is_the_same(failure, each) for each in before)
    return times >= (KILLS_BY_CHANCE if failure.killed else 1)


def is_of_program(restart: Restart) -> bool:
    """Whether other machines do not help: the program failed or hung, or a process of it was killed where it lived."""
    return _kind(restart) not in _OF_MACHINES


def _is_the_same(one: Restart, other: Restart) -> bool:
    if _kind(one) != _kind(other):
        return False
    if one.step is None or other.step is None:
        return one.step is other.step and one.checkpoint == other.checkpoint
    # Of a step that another node has reported it is not known which of the next ones the failure has met.
    is_near = abs(one.step - other.step) <= max(one.behind, other.behind)
    return one.step == other.step or (is_near and one.checkpoint == other.checkpoint)


def _kind(failure: Restart) -> str:
    """Return what has happened, whatever budget has paid for it."""
    if failure.cause is Cause.PREEMPTED:
        return failure.cause
    if failure.lost:
        # What was seen before, of a machine that was about to end.
        return Cause.NODE if failure.killed else failure.cause
    if failure.killed:
        return "a process was killed"
    # A hang is the same one if a machine also shows a fault at that time.
    return Cause.HANG if failure.hang else failure.cause


def _in_words(failure: Restart) -> str:
    at = f" at step {failure.step}" if failure.step is not None else ""
    since = "" if at else ", with no step and no newer checkpoint since the first"
    number = "third" if failure.killed else "second"
    return f"{_kind(failure)}{at} for the {number} time{since}"
