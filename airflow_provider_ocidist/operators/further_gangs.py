"""FurtherGangs: whether a try whose gang has failed, or got no machines, may create another gang."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_ocidist.errors import Cause, OcidistError
from airflow_provider_ocidist.gangs import another_gang
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.job import Restarts, TrainingJob
from airflow_provider_ocidist.model.refusal import NO_MACHINE
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.operators.task_jobs import TaskConnection


class FurtherGangs:
    """What one try of a task may create after a gang of its own: a gang of another candidate, or on other machines."""

    def __init__(
        self,
        try_number: int,
        read_job: Callable[[], TrainingJob],
        connection: TaskConnection,
        log: TaskLog,
    ) -> None:
        """`read_job` returns the task's job. Raises JobFileError, and StorageError where its file cannot be read."""
        self._try_number = try_number
        self._read_job = read_job
        self._connection = connection
        self._log = log

    def note_refusal(self, ref: RunRef, cause: Cause, message: str) -> bool:
        """Record that the service had no machines for a gang; return whether the job has a candidate left to ask for.

        Any other cause is not recorded, and returns False.
        """
        if cause not in NO_MACHINE:
            return False
        return self._ask_candidates(
            lambda candidates: candidates.refuse(ref.key, ref.candidate, cause, message)
        )

    def lacks_capacity(self, key: RunKey) -> bool:
        """Return whether one of several candidates was refused lately for want of capacity: it may be free later."""
        return self._ask_candidates(lambda candidates: candidates.several and candidates.lacks_capacity(key))

    def why_none(self, ref: RunRef, failure: Restart) -> str | None:
        """Return why a gang that has failed is not created again in this try; None: it is.

        An empty text: the job does not ask for restarts, or they do not help against this cause.
        """
        try:
            job = self._read_job()
            if job.restarts == Restarts() or failure.cause not in another_gang.MADE_UP_FOR:
                return ""
            ends = self._connection.backend(ref.backend).gangs.ends(ref)
        except (OcidistError, OSError) as error:
            return f"the number of restarts so far cannot be read: {error}"
        before = [end.failure for end in ends if end.failure and end.try_number == self._try_number]
        return another_gang.why_no_gang(job.restarts, before, failure)

    def _ask_candidates(self, ask: Callable[[Candidates], bool]) -> bool:
        """Return the answer of the job's candidates; False where they cannot be looked up."""
        try:
            job = self._read_job()
            backend = self._connection.backend(job.backend.kind)
            return ask(Candidates(backend, job, self._log))
        except (OcidistError, OSError) as error:
            self._log.warning("other machines that the job names cannot be looked up: %s", error)
            return False
