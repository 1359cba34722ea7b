"""Cleanup: cancel what a failed submission has created, and report what still lives."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping

from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels, is_ending
from airflow_provider_ocidist.backends.oci_data_science.refs import runs_of
from airflow_provider_ocidist.errors import BackendError, Cause, LeftRuns, RunNotFound
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.work_dir.parallel import in_parallel

log = logging.getLogger(__name__)

WITHIN = 30.0
"""Seconds within which runs must end; later ones are reported, and the next try cancels them first."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the runs that still live."""
NOT_ASKED = "not asked yet"
"""State of a run that was not read since it became known."""


class Cleanup:
    """Cancels runs until the service reports each one ended: by its id, since a list may lag.

    Those that are known are cancelled before anything else is asked, and no other request delays any of it.
    """

    def __init__(self, cancels: Cancels, ref: RunRef) -> None:
        """`ref`: the gang, with the runs that are known to exist."""
        self._cancels = cancels
        self._ref = ref

    def end(self, within: float) -> tuple[dict[int, str], dict[str, str]]:
        """Cancel all that is known or listed; return it by number, and the states of what lives after `within` seconds.

        Never raises BackendError: there is a first error to report.
        """
        known = runs_of(self._ref)
        met = dict.fromkeys(known.values())
        alive = dict.fromkeys(met, NOT_ASKED)
        deadline = time.monotonic() + within
        while True:
            self._cancel(run_id for run_id, state in alive.items() if state != NodeState.ENDING)
            new = {run_id: state for run_id, state in self._listed().items() if run_id not in met}
            self._cancel(run_id for run_id, state in new.items() if not is_ending(state))
            met |= dict.fromkeys(new)
            alive |= dict.fromkeys(new, NOT_ASKED)
            left = deadline - time.monotonic()
            if left > 0:
                alive = self._states(alive)
            if left <= 0 or not alive:
                return self._numbered(known, met), alive
            time.sleep(min(LOOK_EVERY, left))

    def _states(self, run_ids: Collection[str]) -> dict[str, str]:
        """Return the states of those that have not ended, as far as the service reports them."""
        states = dict(zip(run_ids, in_parallel(self._state, run_ids), strict=True))
        return {run_id: state for run_id, state in states.items() if state}

    def _state(self, run_id: str) -> str:
        """Return the state of a run; nothing if it has ended."""
        try:
            state = self._cancels.state(run_id)
        except RunNotFound:
            # Hidden for a while, or deleted: the next try waits until that is certain.
            return "not found"
        except BackendError as error:
            return f"not known: {error}"
        return "" if state.terminal else str(state)

    def _cancel(self, run_ids: Iterable[str]) -> None:
        for error in self._cancels.cancel_runs(run_ids).values():
            # Whatever the answer, the next status request shows whether the run has ended.
            log.info("%s", error)

    def _listed(self) -> Mapping[str, NodeState]:
        """Return the states of the runs that the service lists of the job, without those that it has deleted."""
        try:
            states = self._cancels.states(self._ref)
        except BackendError as error:
            log.warning("other runs that were created cannot be listed: %s", error)
            return {}
        return {run_id: state for run_id, state in states.items() if state is not NodeState.MISSING}

    def _numbered(self, known: Mapping[int, str], met: Collection[str]) -> dict[int, str]:
        """Return the runs by number; those that only a list has shown were cancelled before their number was read."""
        others = [run_id for run_id in met if run_id not in known.values()]
        numbers = in_parallel(self._number, others)
        read = {number: run_id for number, run_id in zip(numbers, others, strict=True) if number is not None}
        return {**read, **known}

    def _number(self, run_id: str) -> int | None:
        try:
            return self._cancels.number(run_id)
        except BackendError as error:
            log.warning("%s", error)
            return None


def unseen(job_id: str) -> dict[str, str]:
    """Return what may live of a job whose runs are not all known, in the form of the runs that live."""
    return {f"runs of {job_id} that no list shows": "state not known"}


def still_alive(error: BackendError, alive: Mapping[str, str]) -> LeftRuns:
    """Return the error of a submission, with the runs that it could not end, or that may live unseen."""
    runs = ", ".join(f"{run_id} ({state})" for run_id, state in alive.items())
    left = LeftRuns(
        f"{error}; job runs that may still run: {runs}. Those with an id were cancelled. A retry or a clear of this "
        "task ends them first; else cancel them in the console or with ocidist cancel",
        status_code=error.status_code,
        code=error.code,
        request_id=error.request_id,
        # Also where the error itself is final: the runs still have to be cancelled.
        retryable=True,
        cause=error.cause if error.retryable else Cause.SERVICE,
    )
    left.after_acceptance = error.after_acceptance
    return left
