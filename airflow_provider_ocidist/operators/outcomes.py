"""TryOutcome: how a training task ends, and what it publishes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_provider_ocidist.backends.capabilities import PlacesLogs, near
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError
from airflow_provider_ocidist.gangs import another_gang
from airflow_provider_ocidist.gangs.another_gang import GangToReplace
from airflow_provider_ocidist.gangs.capacity import AnotherCandidate, CapacitySearch, NoCapacity
from airflow_provider_ocidist.gangs.diagnoses import refused_in_place
from airflow_provider_ocidist.gangs.failure import Failure, remedy_of
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.verdict import has_trained
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.errors import is_final, training_failure
from airflow_provider_ocidist.hooks.links import CheckpointLink, checkpoint_url, links_of_run
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.homes import words_of
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.refusal import NO_MACHINE
from airflow_provider_ocidist.model.run import RunRef, RunStatus
from airflow_provider_ocidist.operators.further_gangs import FurtherGangs
from airflow_provider_ocidist.operators.task_jobs import TaskConnection, TaskJob

if TYPE_CHECKING:
    from airflow.sdk import Context

UPLOADS_LIMIT = 10.0
"""Seconds for each answer about uploads that a gang has left open."""


class TryOutcome:
    """Publishes what one try of a task has created, and how it has ended."""

    def __init__(
        self,
        context: Context,
        job: TaskJob,
        connection: TaskConnection,
        further: FurtherGangs,
        log: TaskLog,
    ) -> None:
        self._context = context
        self._ti: Any = context["ti"]
        self._job = job
        self._connection = connection
        self._further = further
        self._log = log
        self.search: CapacitySearch | None = None
        """Search for machines; None if the task does not ask again."""
        self._spent: dict[str, Any] = {}
        """Node-hours, and their cost, of a gang that has failed."""
        self.result: dict[str, Any] | None = None
        self.failure: Failure | None = None

    def announce(self, ref: RunRef) -> None:
        """Publish a gang that this try has created or adopted."""
        words = words_of(ref.backend)
        self._log.info(
            "gang %s: %s %s, %d nodes; node 0 is the %s %s",
            ref.key.name,
            words.gang,
            ref.job_id,
            ref.nodes,
            words.node,
            ref.main_run_id,
        )
        if ref.candidate:
            self._log.info("gang %s runs on a candidate: %s", ref.key.name, ref.candidate)
        if not ref.has_log:
            self._log.warning("the nodes' output is not kept, and so not shown here: %s", words.keep_log)
        self.publish_run(ref)

    def publish_run(self, ref: RunRef) -> None:
        """Publish the reference to a gang, with the runs that it has now, and the links to them."""
        self._push("run", ref.to_json())
        links = links_of_run(ref, self._connection.access_to(ref), lambda: self._log_place(ref))
        for key, url in links.items():
            self._push(key, url)

    def _log_place(self, ref: RunRef) -> str | None:
        with contextlib.suppress(BackendError):
            backend: object = near(self._connection.backend(ref.backend), ref)
            if isinstance(backend, PlacesLogs):
                return backend.log_place(ref)
        return None

    def succeed(self, watch: Watch, warning: str | None) -> dict[str, Any]:
        """Return the result of a gang that has succeeded."""
        watch.write_the_rest()
        watch.end_leftovers()
        assert watch.status is not None
        self._close(watch.record.ref, End(succeeded=True, alive=not watch.status.ended))
        result: dict[str, Any] = task_context.without_secrets(watch.result(warning))
        if warning:
            self._log.warning("SUCCEEDED, BUT %s", warning)
        self.result = result
        return result

    def publish_training(self, result: dict[str, Any], ref: RunRef, outlets: Iterable[Any]) -> None:
        """Publish the checkpoint, also to the DAGs that the outlets schedule."""
        self._publish_checkpoint(result["checkpoint_uri"], ref)
        self._log.info("trained; newest checkpoint: %s", result["checkpoint_uri"])
        planned = self._job.planned
        task_context.publish_to_outlets(outlets, result, planned[0].name if planned else None, self._context)

    def fail(self, watch: Watch, cause: Cause, message: str) -> NoReturn:
        """Publish the failure, and raise the exception of the task.

        Where the try goes on instead, raise NoCapacity, AnotherCandidate or GangToReplace.
        """
        watch.write_the_rest()
        watch.end_leftovers()
        assert watch.status is not None
        gang = another_gang.lost_gang(cause, masked_text(message), watch.status)
        why_not = self._further.why_none(watch.record.ref, gang) if gang and watch.status.ended else ""
        if watch.status.ended:
            final = is_final(cause, is_crash_loop=watch.status.is_crash_loop)
            end = End(succeeded=False, failure=gang, final=final, restarts=watch.status.restarts)
            self._close(watch.record.ref, end)
            self._abort_uploads(watch.record.ref, watch.status)
        failure = Failure.of(cause, message, watch.record, watch.status)
        if why_not:
            failure = replace(failure, message=f"{failure.message}; no other gang in this try: {why_not}")
        self._spent = watch.spent
        if failure.checkpoint_uri is not None:
            self._publish_checkpoint(failure.checkpoint_uri, watch.record.ref)
        self._log_last_lines(watch.status)
        if not has_trained(watch.record.ref.key, watch.status):
            if watch.status.ended and self._further.note_refusal(watch.record.ref, cause, message):
                raise AnotherCandidate(f"{cause}: {failure.message}")
            self._wait_for_machines(cause, failure.sentence)
        if gang and why_not is None:
            if refused := refused_in_place(watch.record, watch.status):
                # The next gang would ask for as many of the same machines.
                self._further.note_refusal(watch.record.ref, *refused)
            raise GangToReplace(f"{cause}: {failure.message}")
        self.publish_failure(failure)
        raise training_failure(cause, failure.sentence, is_crash_loop=watch.status.is_crash_loop)

    def _log_last_lines(self, status: RunStatus) -> None:
        for node in status.nodes:
            if node.report is not None and node.report.cause is not None and node.report.tail:
                self._log.error("last lines of node %d:\n%s", node.rank, masked_text(node.report.tail))

    @contextlib.contextmanager
    def publishing_failure(self) -> Iterator[None]:
        """Publish also failures before there is a gang or without the service's answer, and time-outs."""
        try:
            yield
        except (JobFileError, BackendError) as error:
            cause = error.cause if isinstance(error, BackendError) else Cause.CONFIG
            self._wait_for_machines(cause, str(error))
            self.publish_failure(failure_with_remedy(cause, str(error)))
            raise
        except AirflowTaskTimeout as error:
            if self.failure is None:
                self.publish_failure(failure_with_remedy(Cause.DEADLINE, str(error)))
            raise

    def publish_failure(self, failure: Failure) -> None:
        """Publish the failure as XCom. A task cannot write its own note: Airflow 3.3 has no call for it on workers.

        Airflow masks logs, but not XComs.
        """
        self.failure = failure
        published = task_context.without_secrets({**failure.to_json(), **self._spent})
        try:
            self._push("failure", published)
        except Exception as error:  # noqa: BLE001 - Airflow's own: the task ends with its failure, and not with this
            self._log.warning("the failure could not be published as XCom: %s", error)

    def _close(self, ref: RunRef, end: End) -> None:
        """Record the end of the attempt: by it a later try detects a clear in between."""
        backend = self._connection.backend(ref.backend)
        backend.gangs.close(ref, replace(end, try_number=self._ti.try_number))

    def _abort_uploads(self, ref: RunRef, status: RunStatus) -> None:
        """Abort the uploads that the ended nodes have left open: the retry that would do so may never come."""
        sending = [each for node in status.nodes if node.report for each in node.report.sending]
        if ref.checkpoints_uri is None and not sending:
            return
        from airflow_provider_ocidist.storage.open_uploads import abort_left_behind, abort_reported

        access = self._connection.access(ref.backend)
        # A task that fails does not wait for a store that is down.
        impatient = replace(access, max_attempts=1, read_timeout=UPLOADS_LIMIT)
        if ref.checkpoints_uri is not None:
            fence = Fence(generation=ref.key.generation, attempt=ref.key.attempt + 1)
            abort_left_behind(ref.checkpoints_uri, fence, impatient)
        abort_reported(sending, impatient)

    def _wait_for_machines(self, cause: Cause, message: str) -> None:
        """Raise NoCapacity if the task has time to ask for machines again, and that may help."""
        if self.search is None or cause not in NO_MACHINE:
            return
        # Of several candidates, the last refusal says nothing of the others.
        if cause is not Cause.CAPACITY and not self._further.lacks_capacity(
            task_context.key_of(self._context)
        ):
            return
        search = self.search.failed()
        ask_at = search.next_at(time.time())
        if ask_at is not None:
            raise NoCapacity(f"{cause}: {message}", search, ask_at)

    def _publish_checkpoint(self, uri: str | None, ref: RunRef) -> None:
        self._push("checkpoint_uri", uri)
        if uri and (url := checkpoint_url(uri, ref, self._connection.access(ref.backend))):
            self._push(CheckpointLink.xcom_key, url)

    def _push(self, key: str, value: Any) -> None:
        self._ti.xcom_push(key=key, value=value)


def failure_with_remedy(cause: Cause, message: str) -> Failure:
    """Return a failure of which no gang's state is known: its cause, its message and the remedy."""
    return Failure(cause=cause, message=message, remedy=remedy_of(cause, message))
