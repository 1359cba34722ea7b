"""Stored: what the store shows of ended gangs, where reports are missing, or contradict it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from airflow_provider_ocidist.errors import BackendError, CheckpointError, StorageError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.evidence import Absent
from airflow_provider_ocidist.model.kept_evidence import Missed
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import Lacking, NodeState, RunRef, RunStatus
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.work_dir.parallel import Pending

ANSWERS_WITHIN = 60.0
"""Seconds for which a look waits for a place of checkpoints: the mount of one gang must not hold up the others."""
AMID_SILENCE = 3.0
"""Seconds for the same while another gang's place has not answered."""
ASKED_AGAIN = 300.0
"""Seconds after which a place is asked anew that has not answered: a mount that is made anew frees no earlier call."""
Found = tuple[str | None, CheckpointRef | None]
"""Why the newest reported checkpoint cannot be used, and the newest whole one, if it matters."""


@dataclass(frozen=True, slots=True)
class _Look:
    """A look at a reported checkpoint, and when it was begun."""

    asked: CheckpointRef | None
    begun: float
    call: Pending[Found]

    def is_given_up(self, now: float) -> bool:
        """Whether it has had its time; an answer that has come is taken however late it is."""
        return now - self.begun >= ASKED_AGAIN and not self.call.is_made(0.0)


class StoredCheckpoints:
    """Looks at the newest checkpoint of each gang that has ended. Safe to share between threads, a gang in each.

    One answer of the store may be wrong: a file counts as missing when it was so as often, and for as long, as a run
    that counts as deleted (`Absent`). Until then the checkpoint, or the reports, count as unreadable, and are looked at
    again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._missed: dict[str, Absent] = {}
        """Looks that found the newest checkpoint of a gang damaged, or no report of a node that had succeeded for the
        service, by `_subject_of_checkpoint` and `_subject_of_report`."""
        self._left_open: dict[str, _Look] = {}
        """Looks that were not answered yet, by run directory."""

    def with_checkpoint(self, status: RunStatus, ref: RunRef, access: OciAccess) -> RunStatus:
        """Return the status of a gang that has ended with its newest checkpoint as the store has it."""
        if not status.ended:
            return status
        status = self._with_reports(status, ref)
        try:
            problem, stored = self._found(status, ref, access)
        except (StorageError, BackendError) as error:
            place = status.checkpoint.uri if status.checkpoint else ref.checkpoints_uri
            why = f"the checkpoint {place} cannot be read: {error}"
            return replace(status, checkpoint_readable=False, checkpoint_problem=why)
        reported = status.checkpoint
        # Replaced by a newer one, which no node could report any more.
        outdated = reported is not None and stored is not None and stored.order > reported.order
        if problem is None or outdated:
            self._missed.pop(_subject_of_checkpoint(ref), None)
            return replace(status, stored=stored, checkpoint_problem=None)
        is_certain = self._is_missed_again(_subject_of_checkpoint(ref))
        found = replace(status, stored=stored, checkpoint_problem=problem, checkpoint_readable=is_certain)
        return _with(found, Lacking.CHECKPOINT, is_certain=is_certain)

    def forget(self, ref: RunRef) -> None:
        """Drop what is kept of a gang between two looks."""
        for subject in _subjects(ref):
            self._missed.pop(subject, None)
        self._left_open.pop(ref.run_dir, None)

    def missed(self, ref: RunRef) -> dict[str, Missed]:
        """Return the looks at a gang that found something missing, for another process."""
        now = self._clock()
        return {
            subject: Missed.of(absent, now)
            for subject in _subjects(ref)
            if (absent := self._missed.get(subject)) is not None
        }

    def recall(self, missed: Mapping[str, Missed]) -> None:
        """Continue the counts of another process."""
        now = self._clock()
        for subject, each in missed.items():
            self._missed.setdefault(subject, each.until(now))

    def _found(self, status: RunStatus, ref: RunRef, access: OciAccess) -> Found:
        """Return what the store shows of a gang. Raises StorageError, BackendError.

        An answer that does not come in time is taken by a later look, which waits for it no longer.
        """
        now, look, patience = self._clock(), self._left_open.pop(ref.run_dir, None), 0.0
        if look is None or look.asked != status.checkpoint or look.is_given_up(now):
            patience = AMID_SILENCE if self._left_open else ANSWERS_WITHIN
            look = _Look(status.checkpoint, now, Pending(lambda: _look(status, ref, access)))
        if not look.call.is_made(patience):
            self._left_open[ref.run_dir] = look
            raise StorageError("its place has not answered yet", retryable=True)
        return look.call.result()

    def _with_reports(self, status: RunStatus, ref: RunRef) -> RunStatus:
        """Return the status with its reports as unreadable while it is not certain that one is missing."""
        if not status.reports_readable:
            return status
        if not any(node.state is NodeState.SUCCEEDED and node.report is None for node in status.nodes):
            self._missed.pop(_subject_of_report(ref), None)
            return status
        is_certain = self._is_missed_again(_subject_of_report(ref))
        return _with(replace(status, reports_readable=is_certain), Lacking.REPORT, is_certain=is_certain)

    def _is_missed_again(self, subject: str) -> bool:
        """Count one more look that found something missing; return whether it is."""
        now, before = self._clock(), self._missed.get(subject)
        absent = self._missed[subject] = before.again() if before else Absent(since=now)
        return absent.is_gone(now)


def _with(status: RunStatus, lacking: Lacking, *, is_certain: bool) -> RunStatus:
    """Return the status with one more thing that was not found."""
    if is_certain:
        return replace(status, proved=(*status.proved, lacking))
    return replace(status, doubtful=(*status.doubtful, lacking))


def _subjects(ref: RunRef) -> tuple[str, ...]:
    return _subject_of_checkpoint(ref), _subject_of_report(ref)


def _subject_of_checkpoint(ref: RunRef) -> str:
    return f"checkpoint of {ref.run_dir}"


def _subject_of_report(ref: RunRef) -> str:
    return f"report of {ref.run_dir}"


def _look(status: RunStatus, ref: RunRef, access: OciAccess) -> Found:
    """Raises StorageError, BackendError."""
    problem = _problem(status, access)
    return problem, _newest(status, ref, problem, access)


def _problem(status: RunStatus, access: OciAccess) -> str | None:
    """Return why the newest reported checkpoint cannot be used. Raises StorageError, BackendError."""
    if status.checkpoint is None:
        return None
    try:
        checkpoints.verify(status.checkpoint.uri, access)
    except CheckpointError as error:
        return f"the newest checkpoint is not whole: {error}"
    return None


def _newest(status: RunStatus, ref: RunRef, problem: str | None, access: OciAccess) -> CheckpointRef | None:
    """Return the newest whole checkpoint in the store, if it matters. Raises StorageError, BackendError."""
    if ref.checkpoints_uri is None or (problem is None and not _lacks_a_last_report(status)):
        return None
    return checkpoints.newest(ref.checkpoints_uri, access)


def _lacks_a_last_report(status: RunStatus) -> bool:
    """Whether a node has done its part, by the service, and its last report was lost."""
    return any(
        node.state is NodeState.SUCCEEDED and node.report is not None and node.report.phase is not Phase.DONE
        for node in status.nodes
    )
