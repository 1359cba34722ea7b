"""TrainingRetries: the delay before the next attempt, by the cause of the last failure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy

from airflow_provider_ocidist.errors import BackendError, TrainingFailed
from airflow_provider_ocidist.gangs.capacity import pause_between_requests
from airflow_provider_ocidist.model.causes import MEANINGS, Retry

if TYPE_CHECKING:
    from airflow.sdk import Context


class TrainingRetries(RetryPolicy):
    """Retry a lost node at once, lack of capacity after growing delays, a program error never; needs Airflow 3.3.

    The task's `retries` still count. All other failures keep the task's own `retry_delay`.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,  # noqa: ARG002 - Airflow's signature
        context: Context | None = None,  # noqa: ARG002 - Airflow's signature
    ) -> RetryDecision:
        if not isinstance(exception, TrainingFailed | BackendError):
            return RetryDecision.default()
        cause = exception.cause
        retry = MEANINGS[cause].retry
        if retry.hopeless:
            # DAG files import this module: heavy imports are made on first use.
            from airflow_provider_ocidist.gangs.failure import remedy_of

            return RetryDecision.fail(f"{cause}: not retried; {remedy_of(cause, str(exception))}")
        if retry is Retry.AT_ONCE:
            return RetryDecision.retry(timedelta(0), f"{cause}: nothing to wait for")
        if retry is Retry.WITH_TIME:
            delay = timedelta(seconds=pause_between_requests(try_number))
            return RetryDecision.retry(delay, f"{cause}: looking again in {delay.total_seconds():.0f} s")
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        return {}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TrainingRetries:
        del data
        return cls()
