"""Cleanup: cancel what a failed submission has created, and report what still lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.answers import is_final
from airflow_provider_ocidist.backends.oci_data_science.calls import read_run
from airflow_provider_ocidist.errors import BackendError, Cause, LeftRuns, RunNotFound
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.work_dir.parallel import in_parallel

log = logging.getLogger(__name__)

WITHIN = 30.0
"""Seconds within which runs must end; later ones are reported, and the next try cancels them first."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the runs that still live."""


class Cleanup:
    """Cancels runs until the service reports each one ended: by its id, since a list may lag."""

    def __init__(self, client: Any, listed: Callable[[], Mapping[int, str]]) -> None:
        """`listed` returns the runs of the job as the service lists them, by number."""
        self._client = client
        self._listed = listed

    def end(self, known: Mapping[int, str], within: float) -> tuple[dict[int, str], dict[str, str]]:
        """Cancel all that is known or listed; return it by number, and the states of what lives after `within` seconds.

        Never raises BackendError: there is a first error to report.
        """
        runs = dict(known)
        alive = dict.fromkeys(runs.values(), "not asked yet")
        deadline = time.monotonic() + within
        while True:
            new = {number: run_id for number, run_id in self._list().items() if number not in runs}
            runs |= new
            alive |= dict.fromkeys(new.values(), "not asked yet")
            in_parallel(self._cancel, [run_id for run_id, state in alive.items() if state != "CANCELING"])
            left = deadline - time.monotonic()
            if left <= 0:
                return runs, alive
            alive = self._states(alive)
            if not alive:
                return runs, alive
            time.sleep(min(LOOK_EVERY, left))

    def _states(self, run_ids: Iterable[str]) -> dict[str, str]:
        """Return the states of those that have not ended, as far as the service reports them."""
        run_ids = list(run_ids)
        states = dict(zip(run_ids, in_parallel(self._state, run_ids), strict=True))
        return {run_id: state for run_id, state in states.items() if not is_final(state)}

    def _state(self, run_id: str) -> str:
        try:
            state = str(read_run(self._client, run_id).lifecycle_state)
        except RunNotFound:
            # Hidden for a while, or deleted: the next try waits until that is certain.
            return "not found"
        except BackendError as error:
            return f"not known: {error}"
        return state

    def _cancel(self, run_id: str) -> None:
        try:
            with oci_errors(f"cancelling job run {run_id}"):
                self._client.cancel_job_run(run_id)
        except BackendError as error:
            # Whatever the answer, the next status request shows whether the run has ended.
            log.info("%s", error)

    def _list(self) -> Mapping[int, str]:
        try:
            return self._listed()
        except BackendError as error:
            log.warning("other runs that were created cannot be listed: %s", error)
            return {}


def unseen(job_id: str) -> dict[str, str]:
    """Return what may live of a job whose runs are not all known, in the form of the runs that live."""
    return {f"what no list shows of {job_id}": "not known"}


def still_alive(error: BackendError, alive: Mapping[str, str]) -> LeftRuns:
    """Return the error of a submission, with the runs that it could not end, or that may live unseen."""
    runs = ", ".join(f"{run_id} ({state})" for run_id, state in alive.items())
    left = LeftRuns(
        f"{error}; these job runs, which are cancelled where they are known, have not ended: {runs}; a retry or a "
        "clear of this task ends them first, else cancel them in the console or with ocidist cancel",
        status_code=error.status_code,
        code=error.code,
        request_id=error.request_id,
        # Also where the error itself is final: the runs still have to be cancelled.
        retryable=True,
        cause=error.cause if error.retryable else Cause.SERVICE,
    )
    left.amid_submission = error.amid_submission
    return left
