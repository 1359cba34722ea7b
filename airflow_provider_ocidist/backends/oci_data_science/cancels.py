"""Cancels: ends the job runs of a gang, and its nodes by a stop request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_provider_ocidist.backends.cancels import EndAnswer, cancel_at_both
from airflow_provider_ocidist.backends.oci_data_science.answers import state_of
from airflow_provider_ocidist.backends.oci_data_science.calls import pages, read_run
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_RUN
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, NodeState, RunRef
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories

log = logging.getLogger(__name__)


class Cancels:
    """Cancels runs with a client and a store of its own, which no other request delays."""

    def __init__(self, client: Callable[[], Any], directories: RunDirectories) -> None:
        self._client = client
        self.directories = directories

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        """Cancel every run, and write a stop request. Raises CancelFailed when the service did not accept all."""
        cancel_at_both(self._cancel_runs, self.directories, ref, ending)

    def request_stop(self, ref: RunRef, request: StopRequest) -> bool:
        """Write a stop request for nodes that no cancel may reach. Returns False where that failed."""
        return self.directories.request_stop(ref.key, ref.run_dir, request)

    def cancel_runs(self, run_ids: Iterable[str]) -> dict[str, BackendError]:
        """Cancel runs side by side; return the errors of those that the service did not accept."""
        run_ids = list(dict.fromkeys(run_id for run_id in run_ids if run_id))
        answers = in_parallel(self._cancel_run, run_ids)
        return {run_id: error for run_id, error in zip(run_ids, answers, strict=True) if error is not None}

    def _cancel_runs(self, ref: RunRef) -> EndAnswer:
        failed = self.cancel_runs(ref.run_ids)
        try:
            if not ref.complete or ref.replaces:
                # Also those whose creation was never answered, or that have just taken the place of others.
                listed = self.states(ref)
                others = (run_id for run_id, state in listed.items() if not is_ending(state))
                failed |= self.cancel_runs(run_id for run_id in others if run_id not in ref.run_ids)
            elif any(error.status_code == 404 for error in failed.values()):
                listed = self.states(ref)
            else:
                listed = {}
        except BackendError as error:
            return EndAnswer(next(iter(failed.values()), error))
        lasting = {run_id: error for run_id, error in failed.items() if not _has_ended(run_id, error, listed)}
        unseen = [
            error for run_id, error in lasting.items() if error.status_code == 404 and run_id not in listed
        ]
        refused = [error for error in lasting.values() if error not in unseen]
        return EndAnswer(next(iter(refused), None), next(iter(unseen), None))

    def states(self, ref: RunRef) -> dict[str, NodeState]:
        """Return the state of every run that the job has. Raises BackendError."""
        with oci_errors("listing the job runs"):
            runs = pages(self._client().list_job_runs, ref.compartment_id, job_id=ref.job_id)
            return {str(run.id): state_of(run) for run in runs}

    def state(self, run_id: str) -> NodeState:
        """Return the state of a run. Raises BackendError; RunNotFound where the service does not show it."""
        return state_of(read_run(self._client(), run_id))

    def number(self, run_id: str) -> int:
        """Return which run of its gang a run is. Raises BackendError."""
        with oci_errors(f"reading job run {run_id}"):
            tags = self._client().described_run(run_id).get("freeformTags") or {}
        try:
            return int(tags[TAG_RUN])
        except (LookupError, ValueError) as error:
            raise BackendError(f"job run {run_id} was not started by ocidist") from error

    def _cancel_run(self, run_id: str) -> BackendError | None:
        try:
            with oci_errors(f"cancelling job run {run_id}"):
                self._client().cancel_job_run(run_id)
        except BackendError as error:
            return self._after_conflict(run_id, error) if error.status_code == 409 else error
        return None

    def _after_conflict(self, run_id: str, conflict: BackendError) -> BackendError | None:
        """Return None for a run that has ended or is ending; every other 409 is transient."""
        try:
            with oci_errors(f"reading job run {run_id}, which could not be cancelled"):
                state = state_of(self._client().get_job_run(run_id).data)
        except BackendError as error:
            return error
        if is_ending(state):
            return None
        return BackendError(f"{conflict}; it is {state}", status_code=409, code=conflict.code, retryable=True)


def is_ending(state: NodeState) -> bool:
    return state.terminal or state is NodeState.ENDING


def _has_ended(run_id: str, error: BackendError, listed: Mapping[str, NodeState]) -> bool:
    """Whether a run that was not found (404) needs no cancel: the list of its job has it as ended."""
    return error.status_code == 404 and run_id in listed and is_ending(listed[run_id])
