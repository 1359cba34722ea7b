"""The state of many job runs, in few calls."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.answers import is_final
from airflow_provider_ocidist.backends.oci_data_science.calls import PAGE, pages
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.errors import RunNotFound
from airflow_provider_ocidist.model.evidence import Absent
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.work_dir.parallel import in_parallel

log = logging.getLogger(__name__)

LIVE = ("IN_PROGRESS", "ACCEPTED", "NEEDS_ATTENTION", "CANCELING")
"""Lifecycle states of job runs that have not ended."""
MANY = 50
"""Number of runs from which on a list of all takes fewer calls than one request for each."""
ASKED_AT_A_TIME = 6
"""Job runs that are asked for one by one, side by side."""
UNCONFIRMED = "NOT_FOUND"
"""State of a run that was not found and is not known to be deleted, in place of a lifecycle state."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a topology reads of a job run."""

    lifecycle_state: str
    lifecycle_details: str | None
    time_started: datetime | None
    time_finished: datetime | None

    @classmethod
    def of(cls, run: Any) -> Self:
        # A few texts, for all runs that are waited for.
        state, details = sys.intern(str(run.lifecycle_state)), run.lifecycle_details
        return cls(state, details and sys.intern(str(details)), run.time_started, run.time_finished)

    @property
    def is_final(self) -> bool:
        return is_final(self.lifecycle_state)


class RunStates:
    """Asks for the job runs of one connection.

    The list of all runs grows with every run that has ended; the list of those in one state does not. So runs are
    looked for among those in the state that they were in last. The few that are not there any more are asked for
    one by one, and what has ended is not asked for again.
    """

    def __init__(self, client: Callable[[], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, RunSummary] = {}
        self._absent: dict[str, Absent] = {}
        self._pages: dict[str | None, int] = {}
        """Pages of the last lists by state, by compartment: fewer runs than these are requested one by one."""

    def of_job(
        self, compartment_id: str | None, job_id: str, run_ids: Iterable[str]
    ) -> dict[str, RunSummary]:
        """Return the summaries of the runs of one job, by id; those that are gone are not among them."""
        search = _Search(run_ids)
        search.take(self._list(compartment_id, job_id=job_id, sort_by="timeCreated"))
        self._ask_for_the_rest(compartment_id, search)
        self._known.update(search.found)
        return search.found

    def of_many(self, compartment_id: str | None, run_ids: Iterable[str]) -> dict[str, RunSummary]:
        """Return the summaries of runs of any jobs, by id; those that are gone are not among them."""
        run_ids = set(run_ids)
        known = {run_id: self._known[run_id] for run_id in run_ids & self._known.keys()}
        ended = {run_id: summary for run_id, summary in known.items() if summary.is_final}
        search = _Search(run_ids - ended.keys())
        if len(search.missing) > self._pages.get(compartment_id, 0):
            states = {summary.lifecycle_state for summary in known.values()}
            self._pages[compartment_id] = sum(
                search.take(self._list(compartment_id, lifecycle_state=state))
                for state in LIVE
                if state in states
            )
        if len(search.missing) > MANY or not search.missing.keys() <= known.keys():
            newest = self._list(compartment_id, sort_by="timeCreated", sort_order="DESC")
            search.take(islice(newest, 2 * len(search.missing) + PAGE))
        if len(search.missing) > MANY:
            for state in LIVE:
                search.take(self._list(compartment_id, lifecycle_state=state))
        self._ask_for_the_rest(compartment_id, search)
        self._known.update(search.found)
        return {**ended, **search.found}

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._known.pop(run_id, None)
            self._absent.pop(run_id, None)

    def missed(self, run_ids: Iterable[str]) -> dict[str, Missed]:
        """Return the runs that were not found at the last look, by id."""
        now = self._clock()
        return {
            run_id: Missed.of(absent, now)
            for run_id in run_ids
            if (absent := self._absent.get(run_id)) is not None
        }

    def recall(self, missed: Mapping[str, Missed]) -> None:
        """Restore another process's 404 counts."""
        now = self._clock()
        for run_id, each in missed.items():
            self._absent.setdefault(run_id, each.until(now))

    def _ask_for_the_rest(self, compartment_id: str | None, search: _Search) -> None:
        """Ask for each run that no list has: lists may lag.

        The service answers 404 for what was deleted, for what these credentials may not see, and by mistake. So a run
        counts as deleted only after several such answers over minutes, each with a list of its compartment, which is
        refused without the right to see it. Until then it keeps its last known state.
        """
        self._ask_for_each(search)
        for run_id in search.found.keys() & self._absent.keys():
            del self._absent[run_id]
        if search.missing:
            next(iter(self._list(compartment_id)), None)
            search.found.update(
                {run_id: summary for run_id in search.missing if (summary := self._unless_gone(run_id))}
            )

    def _ask_for_each(self, search: _Search) -> None:
        asked = in_parallel(self._get, search.missing, ASKED_AT_A_TIME)
        search.take(run for run in asked if run is not None)

    def _unless_gone(self, run_id: str) -> RunSummary | None:
        """Count one more answer 404 for a run; return its assumed state, None: deleted."""
        now, before = self._clock(), self._absent.get(run_id)
        absent = self._absent[run_id] = before.again() if before else Absent(now)
        if absent.is_gone(now):
            return None
        if before is None:
            log.warning("job run %s is not found (404); it is asked for again until that is certain", run_id)
        known = self._known.get(run_id, RunSummary(UNCONFIRMED, None, None, None))
        return replace(known, lifecycle_details=f"not found (404) at {absent.answers} looks; asked for again")

    def _list(self, compartment_id: str | None, **filters: str) -> Iterable[Any]:
        with oci_errors("asking for the state of the job runs"):
            yield from pages(self._client().list_job_runs, compartment_id, **filters)

    def _get(self, run_id: str) -> Any | None:
        try:
            with oci_errors("asking for the state of a job run"):
                return self._client().get_job_run(run_id).data
        except RunNotFound:
            return None


class _Search:
    """Looks for runs in one list after the other."""

    def __init__(self, run_ids: Iterable[str]) -> None:
        self.missing = {run_id: run_id for run_id in run_ids if run_id}
        self.found: dict[str, RunSummary] = {}

    def take(self, runs: Iterable[Any]) -> int:
        """Take what is wanted until nothing is missing; return how many pages that took."""
        seen = 0
        if self.missing:
            for run in runs:
                seen += 1
                # The requested id, not the received one: no second copy of each id is kept.
                run_id = self.missing.pop(str(run.id), None)
                if run_id is not None:
                    self.found[run_id] = RunSummary.of(run)
                    if not self.missing:
                        break
        return -(-seen // PAGE)
