"""Cancels: ends a gang by its service and by the work directory at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_ocidist.errors import BackendError, CancelFailed
from airflow_provider_ocidist.model.run import Ending, RunRef
from airflow_provider_ocidist.work_dir.parallel import both
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """Answer of a service that was asked to end a gang; without an error, it has accepted that or shows the end."""

    refused: BackendError | None = None
    """Error for nodes that may go on."""
    unseen: BackendError | None = None
    """Error 404 for nodes that nothing else shows either: they were deleted, or are hidden for a while."""


def cancel_at_both(
    end: Callable[[RunRef], EndAnswer], directories: RunDirectories, ref: RunRef, ending: Ending | None
) -> None:
    """Ask the service to end a gang, and write a stop request. Raises CancelFailed when the service did not accept all.

    What the service does not show counts as ended only where its nodes would find the stop request.
    """
    # At the same time: a killed task has five seconds, and either side may not answer.
    answer, stop_requested = both(lambda: end(ref), lambda: directories.request_end(ref, ending))
    error = answer.refused or (None if stop_requested else answer.unseen)
    if error is not None:
        raise CancelFailed(error, stop_requested=stop_requested) from error
