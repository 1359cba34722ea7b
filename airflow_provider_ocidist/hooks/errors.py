"""Our errors as Airflow's: which of them a retry cannot help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout

from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, TrainingFailed
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.masking import masked_text


def training_failure(cause: Cause, message: str, *, is_crash_loop: bool = False) -> BaseException:
    """Return the exception that a task raises when its training has failed.

    `is_crash_loop`: whether it has failed in the same way at the same step before, in this try.
    """
    text = masked_text(f"{cause}: {message}")
    if cause is Cause.DEADLINE:
        return AirflowTaskTimeout(text)
    # After a lost node a retry has other machines.
    hangs_again = is_crash_loop and cause is Cause.HANG
    if hangs_again or MEANINGS[cause].retry.hopeless:
        return AirflowFailException(text)
    return TrainingFailed(text, cause=cause)


@contextlib.contextmanager
def as_airflow_errors() -> Iterator[None]:
    """Turn those of our errors that a retry cannot help into AirflowFailException."""
    try:
        yield
    except JobFileError as error:
        raise AirflowFailException(masked_text(str(error))) from error
    except BackendError as error:
        if error.retryable:
            raise
        raise AirflowFailException(masked_text(f"{error.cause}: {error}")) from error
