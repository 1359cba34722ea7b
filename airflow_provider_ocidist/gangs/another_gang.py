"""Another gang: whether a gang that has lost a machine is created again in the same try. Pure; no Airflow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.agent.join.peer_reports import steps_behind
from airflow_provider_ocidist.agent.train import restarts
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.report import NodeReport, Restart
from airflow_provider_ocidist.model.run import RunStatus

MADE_UP_FOR = (Cause.NODE, Cause.PREEMPTED)
"""Causes after which a try makes the gang again, on other machines."""


class GangToReplace(Exception):
    """The gang has lost a machine, and may be created again in this try. Not for users: the waiting task catches it."""


def lost_gang(cause: Cause, message: str, status: RunStatus) -> Restart | None:
    """Return how far a gang that has failed had come; None without a step, a checkpoint or a further launch."""
    # A further launch may not have come to a step or a checkpoint yet.
    if not (status.can_go_on or status.restarts):
        return None
    checkpoint = status.checkpoint
    return Restart(
        cause=cause,
        message=message,
        step=_reached(status),
        checkpoint=(checkpoint.digest or checkpoint.uri) if checkpoint else None,
        behind=_behind(status),
    )


def of_program(ends: Iterable[End], try_number: int) -> tuple[Restart, ...]:
    """Return what the program has failed with in the gangs of a try so far: the next one has it on other machines."""
    of_try = [end for end in ends if end.try_number == try_number]
    return tuple(each for end in of_try for each in end.restarts if restarts.is_of_program(each))


def _reached(status: RunStatus) -> int | None:
    """Return the last step that was reported, else that from which the last launch went on, once it has begun."""
    progress, checkpoint = status.progress, status.checkpoint
    if progress and progress.step is not None:
        return progress.step
    reports = [node.report for node in status.nodes if node.report]
    launch = max((len(report.restarts) for report in reports), default=0)
    has_begun = any(report.was_launched for report in reports if len(report.restarts) == launch)
    return checkpoint.step if checkpoint and has_begun else None


def _behind(status: RunStatus) -> int:
    """Return how many steps the gang may have been further than its newest report of a step, which is seconds old."""
    reports = [node.report for node in status.nodes if node.report and node.report.progress]
    furthest = max(reports, key=_step_of, default=None)
    return steps_behind(reports, len(furthest.restarts)) if furthest else 0


def _step_of(report: NodeReport) -> int:
    return -1 if report.progress is None or report.progress.step is None else report.progress.step


def why_no_gang(budgets: Restarts, before: Sequence[Restart], failure: Restart) -> str | None:
    """Return why no other gang is made; None: one is. `before`: what has ended the earlier gangs of this try."""
    if failure.cause not in MADE_UP_FOR:
        return f"other machines do not help against {failure.cause}"
    return restarts.why_no_launch(budgets, before, failure)
