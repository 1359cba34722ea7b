"""OutcomeTask: how a training task ends, and what it publishes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.errors import training_failure
from airflow_provider_ocidist.hooks.links import CheckpointLink, checkpoint_url, links_of_run
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.operators.job_tasks import JobTask

# Imports that only a running task needs are made there, as in job_tasks.py.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.gangs.capacity import CapacitySearch
    from airflow_provider_ocidist.gangs.failure import Failure
    from airflow_provider_ocidist.gangs.watch import Watch
    from airflow_provider_ocidist.model.run import RunRef


class OutcomeTask(JobTask):
    """A task that publishes what it has created, and the outcome."""

    _number: int
    _search: CapacitySearch | None

    def _announce(self, ref: RunRef, context: Context) -> None:
        ti = context["ti"]
        self.log.info(
            "gang %s: job %s, %d nodes, main run %s", ref.key.name, ref.job_id, ref.nodes, ref.main_run_id
        )
        if ref.log_group_id is None:
            self.log.warning(
                "the nodes' output is not kept, and so not shown here: name a log group in the connection "
                "or the job (log_group_id)"
            )
        ti.xcom_push(key="run", value=ref.to_json())
        for key, url in links_of_run(ref, OciHook(self.conn_id, kind=ref.backend).access).items():
            ti.xcom_push(key=key, value=url)

    def _succeed(self, watch: Watch, warning: str | None, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.model.run import TrainingResult

        watch.tell_the_rest()
        assert watch.status is not None
        self._close(watch.record.ref, succeeded=True)
        result: dict[str, Any] = task_context.handed_on(
            TrainingResult.of(watch.record, watch.status, warning).to_json()
        )
        if warning:
            self.log.warning("SUCCEEDED, BUT %s", warning)
        self._hand_on_checkpoint(result["checkpoint_uri"], watch.record.ref, context)
        self.log.info("trained; newest checkpoint: %s", result["checkpoint_uri"])
        task_context.tell_outlets(
            self.outlets, result, self._planned[0].name if self._planned else None, context
        )
        self._result = result
        return result

    def _close(self, ref: RunRef, *, succeeded: bool) -> None:
        """Record the end, so that a later try can detect a clear in between."""
        from airflow_provider_ocidist.model.attempts import End

        self._backend(ref.backend).gangs.close(ref, End(succeeded=succeeded, number=self._number))

    def _fail(self, watch: Watch, cause: Cause, message: str, context: Context) -> NoReturn:
        from airflow_provider_ocidist.gangs.failure import Failure
        from airflow_provider_ocidist.model.masking import masked_text

        watch.tell_the_rest()
        assert watch.status is not None
        if watch.status.ended:
            self._close(watch.record.ref, succeeded=False)
        failure = Failure.of(cause, message, watch.record, watch.status)
        if failure.checkpoint_uri is not None:
            self._hand_on_checkpoint(failure.checkpoint_uri, watch.record.ref, context)
        for node in watch.status.nodes:
            if node.report is not None and node.report.cause is not None and node.report.tail:
                self.log.error("last lines of node %d:\n%s", node.rank, masked_text(node.report.tail))
        if not watch.status.has_trained:
            self._wait_for_machines(cause, failure.sentence)
        self._tell_of_failure(failure, context)
        raise training_failure(cause, failure.sentence)

    def _wait_for_machines(self, cause: Cause, message: str) -> None:
        """Raise NoCapacity if there may be machines later and this task has the time."""
        from airflow_provider_ocidist.gangs.capacity import NoCapacity

        if self._search is None or cause is not Cause.CAPACITY:
            return
        search = self._search.failed()
        ask_at = search.next_at(time.time())
        if ask_at is not None:
            raise NoCapacity(f"{cause}: {message}", search, ask_at)

    @contextlib.contextmanager
    def _telling_of_failure(self, context: Context) -> Iterator[None]:
        """Publish also failures before there is a gang or without the service's answer, and time-outs."""
        try:
            yield
        except (JobFileError, BackendError) as error:
            cause = error.cause if isinstance(error, BackendError) else Cause.CONFIG
            self._wait_for_machines(cause, str(error))
            self._tell_of_failure(failure_of(cause, str(error)), context)
            raise
        except AirflowTaskTimeout as error:
            if self._failure is None:
                self._tell_of_failure(failure_of(Cause.DEADLINE, str(error)), context)
            raise

    def _tell_of_failure(self, failure: Failure, context: Context) -> None:
        """Publish the failure as XCom. A task cannot write its own note: Airflow 3.3 has no call for it on workers.

        Airflow masks logs, but not XComs.
        """
        self._failure = failure
        context["ti"].xcom_push(key="failure", value=task_context.handed_on(failure.to_json()))

    def _hand_on_checkpoint(self, uri: str | None, ref: RunRef, context: Context) -> None:
        ti = context["ti"]
        ti.xcom_push(key="checkpoint_uri", value=uri)
        if uri and (url := checkpoint_url(uri, ref, OciHook(self.conn_id, kind=ref.backend).access)):
            ti.xcom_push(key=CheckpointLink.xcom_key, value=url)


def failure_of(cause: Cause, message: str) -> Failure:
    from airflow_provider_ocidist.gangs.failure import Failure, remedy_of

    return Failure(cause=cause, message=message, remedy=remedy_of(cause, message))
