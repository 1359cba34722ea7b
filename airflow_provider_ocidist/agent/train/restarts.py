"""Restarts: whether a failed training is launched again on the same machines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.report import Restart


def refusal(budgets: Restarts, before: Sequence[Restart], failure: Restart) -> str | None:
    """Return why the training is not launched again after a failure; None: it is. `before`: the restarts so far."""
    budget = MEANINGS[failure.cause].restart
    if budget is None:
        return f"{failure.cause} is not mended by another launch"
    allowed = int(getattr(budgets, budget))
    if not allowed:
        return f"restarts.{budget} is 0"
    if any(_is_the_same(failure, each) for each in before):
        at = "before its first step" if failure.step is None else f"at step {failure.step}"
        return f"it is a crash loop: {failure.cause} {at} for the second time"
    spent = sum(MEANINGS[each.cause].restart == budget for each in before)
    return f"restarts.{budget} is {allowed}, and spent" if spent >= allowed else None


def _is_the_same(one: Restart, other: Restart) -> bool:
    return (one.cause, one.step) == (other.cause, other.step)
