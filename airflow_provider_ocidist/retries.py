"""TrainingRetries: how long to wait before the next attempt, by the cause of the last failure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from airflow_provider_ocidist.airflow_errors import HOPELESS
from airflow_provider_ocidist.errors import BackendError, Cause, TrainingFailed

if TYPE_CHECKING:
    from airflow.sdk import Context

AT_ONCE = {Cause.NODE, Cause.PREEMPTED, Cause.ABANDONED}
"""Causes that are gone with the node that had them, or now that somebody waits again."""
LATER = {Cause.CAPACITY, Cause.QUOTA}
"""Causes that only time mends."""
FIRST_DELAY = timedelta(minutes=1)
LONGEST_DELAY = timedelta(minutes=30)


class TrainingRetries(RetryPolicy):
    """Retry a lost node at once, want of capacity ever later, a fault of the program never; needs Airflow 3.3.

    The task's `retries` still count. All other failures keep the task's own `retry_delay`.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,  # noqa: ARG002 - Airflow's signature
        context: Context | None = None,  # noqa: ARG002
    ) -> RetryDecision:
        if not isinstance(exception, TrainingFailed | BackendError):
            return RetryDecision.default()
        cause = exception.cause
        if cause in HOPELESS:
            return RetryDecision.fail(f"{cause}: the same again would fail again")
        if cause in AT_ONCE:
            return RetryDecision.retry(timedelta(0), f"{cause}: nothing to wait for")
        if cause in LATER:
            delay = delay_before(try_number + 1)
            return RetryDecision.retry(delay, f"{cause}: looking again in {delay.total_seconds():.0f} s")
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TrainingRetries:
        del data
        return cls()


def delay_before(attempt: int) -> timedelta:
    """Return the pause before an attempt, the first of which is 1: doubling from a minute to half an hour."""
    factor: int = 2 ** min(max(attempt - 2, 0), 10)
    return min(FIRST_DELAY * factor, LONGEST_DELAY)
