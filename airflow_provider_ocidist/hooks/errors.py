"""Our errors as Airflow's: which of them a retry cannot help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout

from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, TrainingFailed
from airflow_provider_ocidist.model.causes import MEANINGS


def is_final(cause: Cause, *, is_crash_loop: bool = False) -> bool:
    """Whether Airflow makes no retry after a failure.

    `is_crash_loop`: whether it has failed in the same way at the same step before, in this try. After a lost node a
    retry has other machines.
    """
    return MEANINGS[cause].retry.hopeless or (is_crash_loop and cause is Cause.HANG)


def training_failure(cause: Cause, message: str, *, is_crash_loop: bool = False) -> BaseException:
    """Return the exception that a task raises when its training has failed; `is_crash_loop`: as `is_final`."""
    text = _masked(f"{cause}: {message}")
    if cause is Cause.DEADLINE:
        return AirflowTaskTimeout(text)
    if is_final(cause, is_crash_loop=is_crash_loop):
        return AirflowFailException(text)
    return TrainingFailed(text, cause=cause)


@contextlib.contextmanager
def as_airflow_errors() -> Iterator[None]:
    """Turn those of our errors that a retry cannot help into AirflowFailException."""
    try:
        yield
    except JobFileError as error:
        raise AirflowFailException(_masked(str(error))) from error
    except BackendError as error:
        if error.retryable:
            raise
        raise AirflowFailException(_masked(f"{error.cause}: {error}")) from error


def _masked(text: str) -> str:
    # A DAG file imports this module, and needs the search for secrets as little as the rest of a running task.
    from airflow_provider_ocidist.model.masking import masked_text

    return masked_text(text)
