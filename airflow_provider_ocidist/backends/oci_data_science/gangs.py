"""Gangs: finds what exists of a task's attempts, and creates the rest, in a constant number of requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from airflow_provider_ocidist.backends.claims import overtaken
from airflow_provider_ocidist.backends.interruptions import ended_if_interrupted
from airflow_provider_ocidist.backends.oci_data_science.calls import (
    list_runs,
    or_none,
    pages,
    read_job,
    read_run,
)
from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.cleanup import WITHIN, Cleanup, still_alive, unseen
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_TASK, key_in_tags
from airflow_provider_ocidist.backends.oci_data_science.refs import (
    asked_at,
    ref_of,
    runs_of,
    with_listed,
    with_runs,
)
from airflow_provider_ocidist.backends.oci_data_science.run_states import LIVE
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.backends.recorded_gangs import CALLED_OFF, RecordedGangs, by_age
from airflow_provider_ocidist.errors import BackendError, RunNotFound
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.evidence import Absent
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef
from airflow_provider_ocidist.model.work_dir import ATTEMPTS_FOLDER
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.work_dir.attempt_index import work_dir_of
from airflow_provider_ocidist.work_dir.parallel import both, in_parallel, until_stopped
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores

log = logging.getLogger(__name__)

Result = TypeVar("Result")

LISTED, RUNS_LISTED = "though it is listed", "though live job runs of it are listed"
"""Words that name what speaks for a job that is not found."""
STALE = 5.0
"""Seconds until an attempt whose creation was not answered is looked for once more: lists may lag."""
UNRECORDED_ATTEMPTS = 3
"""Number of attempts of a generation that are looked for by name if there is no record, as of an older version."""


class Gangs(RecordedGangs):
    """Finds and creates the gangs of one connection's tasks by parallel requests; lists find gangs without a record."""

    def __init__(
        self,
        client: Callable[[], Any],
        run_dirs: RunDirStores,
        submission: Callable[..., Submission],
        near: Callable[[str | None], Gangs],
        work_dir: Callable[[], str | None],
        cancels: Cancels,
        clock: Callable[[], float] = time.monotonic,
        urgent: RunDirStores | None = None,
    ) -> None:
        """`near` returns the finder for another region; `cancels` ends what a failed submission has created."""
        super().__init__(run_dirs, self.of_attempt, work_dir, urgent)
        self._near = near
        self._client = client
        self._submission = submission
        self._cancels = cancels
        self._clock = clock
        self._absent: dict[str, Absent] = {}
        """Jobs of recorded gangs that nothing shows, by id."""

    def at(self, place: Place) -> RecordedGangs:
        return self._near(place.region) if place.conn_id == self.conn_id else super().at(place)

    # what exists

    def find(self, plan: Plan) -> list[RunRef]:
        return super().find(plan) or self.named(plan.key.name, plan.key, str(plan.compartment_id))

    def live(self, keys: Sequence[RunKey], compartment_id: str) -> list[RunRef]:
        """Return the gangs of these tasks that have a live node, recorded or not, from the lists of live job runs."""
        lists = in_parallel(
            lambda state: list_runs(self._client, compartment_id, lifecycle_state=state), LIVE
        )
        of = {key.task_digest: key for key in keys}
        jobs = {
            str(run.job_id): of[digest]
            for runs in lists
            for run in runs
            if (digest := (run.freeform_tags or {}).get(TAG_TASK)) in of
        }
        refs = in_parallel(lambda item: self._of_job(*item, compartment_id, RUNS_LISTED), jobs.items())
        return by_age(ref for ref in refs if ref is not None)

    def named(self, name: str, key: RunKey, compartment_id: str) -> list[RunRef]:
        """Return the gangs whose job has this name; a list may lag."""
        with oci_errors("looking for earlier gangs of this task"):
            jobs = list(pages(self._client().list_jobs, compartment_id, display_name=name))
        owned = [str(job.id) for job in jobs if key_in_tags(job, key) is not None]
        refs = in_parallel(lambda job_id: self._of_job(job_id, key, compartment_id, LISTED), owned)
        return by_age(ref for ref in refs if ref is not None)

    def of_attempt(self, attempt: Attempt) -> list[RunRef]:
        """Return the gangs of one attempt. Raises BackendError where these credentials cannot see them."""
        place, ref = attempt.place, attempt.ref
        there = self._near(place.region)
        if there is not self:
            return there.of_attempt(attempt)
        try:
            if ref is None:
                return self.named(attempt.key.name, attempt.key, str(place.compartment_id))
            return self._of_recorded(attempt, ref)
        except RunNotFound as error:
            raise _out_of_sight(attempt, error) from error

    def share_evidence(self, other: Gangs) -> None:
        """Let this finder know what another has seen: it takes its place, or looks at another region for it."""
        self._absent = other._absent
        self.conn_id, self._of_connection = other.conn_id, other._of_connection

    def _of_recorded(self, attempt: Attempt, ref: RunRef) -> list[RunRef]:
        """Return what lives of a gang that was created. Raises BackendError while that is not certain."""
        job, runs = self._job_and_runs(ref.job_id, str(attempt.place.compartment_id))
        of = key_in_tags(job, attempt.key) if job is not None else None
        if of is not None:
            self._absent.pop(ref.job_id, None)
            return [with_listed(ref_of(job, of), runs, ref)]
        return self._without_its_job(attempt, ref, is_answered=job is not None)

    def _without_its_job(self, attempt: Attempt, ref: RunRef, *, is_answered: bool) -> list[RunRef]:
        """Return what lives of a gang whose job is not found, or is deleted. Raises BackendError as `_of_recorded`.

        A 404 alone may mean missing permissions, with which the list is refused, or pass. `is_answered`: whether the
        service says that the job is deleted.
        """
        compartment_id, key = str(attempt.place.compartment_id), attempt.key
        with oci_errors("looking for the job of an earlier attempt in its compartment"):
            named = list(pages(self._client().list_jobs, compartment_id, display_name=key.name))
        listed = next((job for job in named if str(job.id) == ref.job_id), None)
        if not is_answered and listed is not None and key_in_tags(listed, key) is not None:
            self._absent.pop(ref.job_id, None)
            raise _contradiction(ref.job_id, LISTED)
        found = in_parallel(partial(or_none, read_run, self._client()), runs_of(ref).values())
        if any(run is not None and run.lifecycle_state in LIVE for run in found):
            self._absent.pop(ref.job_id, None)
            return [ref]
        all_have_ended = ref.complete and None not in found
        if not (is_answered or listed is not None or all_have_ended):
            self._count_absence(ref.job_id)
        return []

    def _count_absence(self, job_id: str) -> None:
        """Count a look that shows nothing of a job. Raises BackendError until there were enough of them."""
        now, before = self._clock(), self._absent.get(job_id)
        absent = self._absent[job_id] = before.again() if before else Absent(now)
        if not absent.is_gone(now):
            raise _contradiction(job_id, f"though it was created; looks so far: {absent.answers}")

    def _of_job(self, job_id: str, key: RunKey, compartment_id: str, seen: str) -> RunRef | None:
        """Return the gang of a job unless it is gone. Raises BackendError for one that is not found, though `seen`."""
        job, runs = self._job_and_runs(job_id, compartment_id)
        if job is None:
            raise _contradiction(job_id, seen)
        of = key_in_tags(job, key)
        return None if of is None else with_listed(ref_of(job, of), runs)

    def _job_and_runs(self, job_id: str, compartment_id: str) -> tuple[Any | None, list[Any]]:
        """Return a job, None where it is not found, and its runs. Raises BackendError where the two disagree."""
        job, runs = both(
            lambda: or_none(read_job, self._client(), job_id),
            lambda: list_runs(self._client, compartment_id, job_id=job_id),
        )
        if job is not None:
            return job, runs
        live = [str(run.id) for run in runs if run.lifecycle_state in LIVE]
        if live:
            self._absent.pop(job_id, None)
            raise _contradiction(job_id, f"{RUNS_LISTED} ({', '.join(live)})")
        return None, runs

    # create

    def begin(self, plan: Plan, known: Sequence[Attempt] | None = None) -> list[RunRef]:
        """Return the task's gangs, and the plan's own gang with its job.

        The job is only a definition: it is created while it is looked for, its runs come afterwards.
        """
        known = self.attempts_here(plan, known)
        own = next((each for each in known if each.is_that_of(plan)), None)
        unanswered = [attempt for attempt in known if attempt.ref is None and attempt is not own]
        others = self.found(plan.key, [each for each in known if each.ref is not None or each is not own])
        others += self.call_off(plan.key, unanswered, others, STALE)
        if not known and plan.tries is not None and plan.tries.try_number > 1:
            others = by_age([*others, *self._unrecorded(plan)])
        elsewhere = any(each.key == plan.key and each is not own for each in known)
        if elsewhere or any(ref.key == plan.key and ref.complete for ref in others):
            return by_age(others)
        mine = any(ref.key == plan.key for ref in others)
        return by_age([*others, *([] if mine else self._begin_own(plan, known))])

    def _begin_own(self, plan: Plan, known: Sequence[Attempt]) -> list[RunRef]:
        """Return the plan's own gang, as far as it exists: at least its job, which is created if it is missing."""
        own = Attempt.of(plan)
        self.record(own)
        # The list is requested first: a new job in it would cost a request for runs that it does not have.
        compartment_id = str(plan.compartment_id)
        begun, seen = both(
            lambda: self._job(plan),
            lambda: _or_error(
                lambda: both(
                    lambda: self.unknown(own, known),
                    lambda: self.named(plan.key.name, plan.key, compartment_id),
                )
            ),
        )
        if isinstance(seen, BackendError):
            # A bad answer to a look-up says nothing of a submission whose job the service has accepted, or may have.
            seen.after_acceptance = isinstance(begun, RunRef) or begun.after_acceptance
            raise seen
        others, named = seen
        if others:
            raise self.give_way(
                plan, others, lambda: self.withdraw(own, known, lambda: self._remove_begun(begun))
            )
        alive = [ref for ref in named if runs_of(ref)]
        if isinstance(begun, BackendError):
            # Our own job without a node may be deleted by now, since the lookup took time.
            if alive:
                return alive
            self._forget_if_refused(plan, begun)
            raise begun
        kept = alive or [begun]
        # Twice, where the service has forgotten the idempotency token of an earlier submission, after 24 hours.
        for job_id in {ref.job_id for ref in (begun, *named)} - {ref.job_id for ref in kept}:
            self._remove(job_id)
        return kept

    def _remove_begun(self, begun: RunRef | BackendError) -> None:
        if isinstance(begun, RunRef):
            self._remove(begun.job_id)

    def _job(self, plan: Plan) -> RunRef | BackendError:
        return _or_error(lambda: ref_of(self._submission(plan).job(), plan.key))

    def _unrecorded(self, plan: Plan) -> list[RunRef]:
        """Return the gangs of a task that has had tries and has no record here: they lie elsewhere, or are older."""
        place = str(plan.compartment_id)
        keys = [replace(plan.key, attempt=number) for number in range(1, UNRECORDED_ATTEMPTS + 1)]
        live = self.live([plan.key], place)
        named = in_parallel(lambda key: self.named(key.name, key, place), keys)
        found = {ref.job_id: ref for refs in (live, *named) for ref in refs if any(ref.run_ids)}
        return list(found.values())

    def submit(self, plan: Plan, stop: threading.Event | None, found: Sequence[RunRef] | None) -> RunRef:
        """Create what the plan lists and does not exist yet, as `Backend.submit`; a partial gang is ended."""
        if found is None:
            found = self.named(plan.key.name, plan.key, str(plan.compartment_id))
        known = next((ref for ref in found if ref.key == plan.key), None)
        if known is not None and known.complete:
            until_stopped(lambda: self.record(Attempt.of(plan, known)), stop)
            return known
        if known is None:
            self.record(Attempt.of(plan))
        submission = self._submission(plan, stop)
        ref = known or self._with_job(plan, submission)
        existing = runs_of(ref)
        try:
            if not existing:
                submission.artifact(ref.job_id)
            made = submission.runs(ref.job_id, existing)
        except BaseException as error:
            # Also Airflow's timeout, which is no Exception: a partial gang would run unattended.
            if isinstance(error, BackendError):
                error.after_acceptance = True
            self._raise_if_overtaken(plan, error)
            alive = self._cleaned_up(plan, with_runs(ref, existing | submission.abandoned()), stop)
            if alive and isinstance(error, BackendError):
                raise still_alive(error, alive) from error
            raise
        ids = existing | {number: str(run.id) for number, run in made.items()}
        whole = with_runs(ref, ids, () if existing else asked_at(made.values()))
        # Who submits ends it at once where it is stopped, whether or not the store answers.
        with ended_if_interrupted(plan, self._cancels.directories, lambda: self._cancels.cancel(whole, None)):
            until_stopped(lambda: self.record_created(plan, whole), stop)
        return whole

    def _with_job(self, plan: Plan, submission: Submission) -> RunRef:
        try:
            return ref_of(submission.job(), plan.key)
        except BackendError as error:
            self._forget_if_refused(plan, error)
            raise

    def _raise_if_overtaken(self, plan: Plan, error: BaseException) -> None:
        """Raise where a later try has claimed a gang: that completes or ends it, and this one leaves it alone."""
        later = overtaken(plan, self._cancels.directories)
        if later is not None and isinstance(error, Exception):
            raise later from error
        if later is not None:
            raise error

    def _cleaned_up(self, plan: Plan, ref: RunRef, stop: threading.Event | None) -> dict[str, str]:
        """Do what `_clean_up` does. Raises no Exception: Ctrl-C and Airflow's timeout arrive as what they are."""
        try:
            return self._clean_up(plan, ref, stop)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the first error is raised
            log.warning("%s: what was created is not known to have ended: %s", ref.key.name, problem)
            known = dict.fromkeys(runs_of(ref).values(), f"not known: {problem}")
            return known if ref.complete else known | unseen(ref.job_id)

    def _clean_up(self, plan: Plan, ref: RunRef, stop: threading.Event | None) -> dict[str, str]:
        """End what exists of a gang that cannot be completed; return the runs that may live on, with their states.

        The attempt is closed, so that another may be begun, once none of its runs can live: all are known and have
        ended, or the service has accepted the deletion of their job.
        """
        # A killed task has five seconds.
        stopped = stop is not None and stop.is_set()
        # At the same time: ending nodes waits for no store.
        (runs, alive), is_stop_written = both(
            lambda: Cleanup(self._cancels, ref).end(0.0 if stopped else WITHIN),
            lambda: self._cancels.request_stop(ref, CALLED_OFF),
        )
        left = with_runs(ref, runs)
        self.record_created(plan, left)
        for run_id, state in alive.items():
            log.warning("%s: job run %s was cancelled and has not ended: %s", ref.key.name, run_id, state)
        if not (alive or left.complete or self._is_removed(left)):
            # A request may have created a run though its answer was an error, and no list has to show it yet.
            alive = unseen(ref.job_id)
        if not alive:
            # Its nodes have a stop request: the next try must not create its own in the same run directory.
            self.close(left, End(succeeded=False))
        elif not is_stop_written:
            # All that is known is cancelled by now, and what may live is worth more patience with the store.
            self.leave_stop_request(ref.run_dir, ref.key)
        return alive

    def _forget_if_refused(self, plan: Plan, error: BackendError) -> None:
        """Remove the record of an attempt of which nothing exists: nothing was sent, or the service has refused it."""
        if error.retryable or error.status_code not in (None, 400, 404):
            return
        try:
            self.index(work_dir_of(plan.run_dir)).forget(Attempt.of(plan))
        except BackendError as problem:
            log.info("%s", problem)

    def _is_removed(self, ref: RunRef) -> bool:
        """Remove the job of a gang that lacks runs, with those that have ended; return whether that is accepted.

        The service does so only where no run of the job is active, whatever its lists show.
        """
        try:
            with oci_errors("removing the job of a gang that was created in part"):
                self._client().delete_job(ref.job_id, delete_related_job_runs=True)
        except BackendError as error:
            # There is a first error to report, and the next try removes the job.
            log.warning("%s: job runs that no list shows yet may still be running: %s", ref.key.name, error)
            return False
        return True

    def _remove(self, job_id: str) -> None:
        """Remove a job that has no runs, where the service still has it."""
        try:
            with oci_errors("removing a job that was begun twice"):
                self._client().delete_job(job_id)
        except BackendError as error:
            if error.status_code not in (404, 409):
                raise


def _or_error(call: Callable[[], Result]) -> Result | BackendError:
    """Return what a call returns, or the BackendError that it raises."""
    try:
        return call()
    except BackendError as error:
        return error


def _out_of_sight(attempt: Attempt, error: BackendError) -> BackendError:
    """Return the error for an attempt that may live where these credentials cannot see it."""
    place = attempt.place
    what = f"job {attempt.ref.job_id}" if attempt.ref else f"a job named {attempt.key.name}"
    return BackendError(
        f"an earlier attempt of this task may still be running, {what} in compartment {place.compartment_id}"
        f"{f' of {place.region}' if place.region else ''}, and cannot be seen with this connection: {error}; "
        "see that it has ended (ocidist cancel with a connection that may see it, or the console), then remove "
        f"the records of attempt {attempt.key.attempt} below {work_dir_of(place.run_dir)}/{ATTEMPTS_FOLDER}/"
        f"{attempt.key.task_digest}/",
        status_code=error.status_code,
        retryable=True,
    )


def _contradiction(job_id: str, seen: str) -> BackendError:
    """Return the error for a job that is not found, though its gang may live by all else that is known of it."""
    error = BackendError(
        f"job {job_id} of this task is not found (404), {seen}: its nodes may still be running",
        status_code=404,
        retryable=True,
    )
    # The service has accepted a gang of this task: a first try, too, asks until the answers agree.
    error.after_acceptance = True
    return error
