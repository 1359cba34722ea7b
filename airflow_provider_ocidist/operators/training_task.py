"""TrainingTask: the life of a training task, for the operators that are one. No DAG file imports it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.integrations.lineage import lineage_of_training
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Plan, RunRecord
from airflow_provider_ocidist.operators.task_jobs import TaskConnection, TaskJob
from airflow_provider_ocidist.operators.training_try import TrainingOperator, TrainingTry

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

TRIGGER_TIMEOUT = "Trigger timeout"
"""Error with which Airflow resumes a task whose deferral timed out (`sdk.bases.operator`)."""


class TrainingTask:
    """The life of a training task: plan, begin, wait or defer, resume, ask again, kill."""

    def __init__(
        self, operator: TrainingOperator, stop: StopFlag, *, publishes_checkpoint: bool = True
    ) -> None:
        """`stop`: the flag that `on_kill` sets. `publishes_checkpoint`: whether the job is one that trains."""
        self._operator = operator
        self._stop = stop
        self._publishes_checkpoint = publishes_checkpoint
        self._connection = TaskConnection(operator.conn_id)
        self._job = TaskJob(self._connection)
        self._try: TrainingTry | None = None

    @property
    def planned(self) -> tuple[TrainingJob, Plan] | None:
        """The job and the plan that Airflow shows."""
        return self._job.planned

    def shown_plan(self, given: Any, context: Context) -> str:
        """Return what the task is about to create, and mask its secrets; `given`: what the job is made of."""
        return self._job.shown_plan(
            given,
            lambda: self._operator.job_arguments(context),
            lambda text: self._operator.render_template(text, context),
            task_context.key_of(context),
        )

    def train(self, context: Context) -> dict[str, Any]:
        """Adopt or create the gang, wait for its end, and return the result."""
        return self._begun(context).train()

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Continue after the trigger's event; an operator's method `resume` calls this."""
        return self._begun(context, search).resume(RunRecord.from_json(event))

    def ask_again(self, context: Context, search: Mapping[str, Any]) -> dict[str, Any]:
        """Submit again after a pause without capacity; an operator's method `ask_again` calls this."""
        return self._begun(context, search).ask_again()

    def after_failed_trigger(
        self, context: Context, event: Mapping[str, Any], fail: Callable[[], Any]
    ) -> dict[str, Any]:
        """Wait on without the trigger; `fail` is Airflow's own way to end the task, where its deferral timed out."""
        begun = self._begun(context)
        if event.get("error") != TRIGGER_TIMEOUT:
            self._operator.log.error(
                "the trigger failed: %s\n%s", event.get("error"), "\n".join(event.get("traceback") or ())
            )
            return begun.go_on_here()
        begun.end_too_late()
        result: dict[str, Any] = fail()
        return result

    def kill_from_handler(self) -> None:
        """End the gang that this process has or waits for. Takes no lock: see `gangs.kills`."""
        if self._try is not None:
            self._try.kill_from_handler()

    def lineage(self) -> OperatorLineage[Any, Any] | None:
        """Return what the task reads and has written so far, for OpenLineage."""
        if self._job.planned is None:
            return None
        if self._try is None:
            return lineage_of_training(*self._job.planned, None, None, None, None)
        return self._try.lineage(*self._job.planned)

    def _begun(self, context: Context, search: Mapping[str, Any] | None = None) -> TrainingTry:
        self._try = TrainingTry(
            operator=self._operator,
            context=context,
            stop=self._stop,
            connection=self._connection,
            task_job=self._job,
            publishes_checkpoint=self._publishes_checkpoint,
        )
        if search:
            self._try.take_over(search)
        return self._try
