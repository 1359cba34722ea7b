"""DistributedTrainingOperator: train on many nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks.links import CheckpointLink, JobRunLink, LogsLink
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.hooks.settings import is_deferrable
from airflow_provider_ocidist.operators.job_arguments import JobArguments, settings, settings_if_any
from airflow_provider_ocidist.operators.task_arguments import RETRIES, TRIGGER_FAILED, as_argument

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.operators.training_task import TrainingTask


def renderable(value: Any) -> Any:
    """Return a value with mappings as dicts: Airflow renders strings in dicts and lists only."""
    if hasattr(value, "to_mapping"):
        value = value.to_mapping()
    match value:
        case Mapping():
            return {key: renderable(item) for key, item in value.items()}
        case list() | tuple():
            return [renderable(item) for item in value]
    return value


def show_plan(context: Context, jinja_env: Any) -> str:  # noqa: ARG001 - Airflow's signature
    """Return the field `plan` of the rendered templates tab: what the task is about to create."""
    task = context.get("task")
    return task.shown_plan(context) if isinstance(task, DistributedTrainingOperator) else ""


class DistributedTrainingOperator(BaseOperator):
    """Run a training job on several nodes and wait for its checkpoint.

    The run survives this task: after the death of a worker or a triggerer, the next one finds it and waits on. Killing,
    failing or clearing the task ends it. XCom: `checkpoint_uri`, `run` (what was created) and the whole result;
    after a failure `failure` (cause, message, remedy, rank, exit code, last lines).
    The events of the task's outlets name the checkpoint too: an Asset gets its URI, step and loss as extra, an
    AssetAlias an event of the checkpoint's own URI.

    If Airflow is down for good, the nodes end by themselves after `limits.lease` without a waiting task: after 2 hours,
    unless the job sets another.

    Any string in the job may hold Jinja, also in place of a number.

    :param job: path of a job file (relative to the DAG file), its URI, a mapping of the same form, or a TrainingJob
    :param conn_id: Airflow connection of the job's backend
    :param nodes: replaces the job's number of nodes
    :param shape: replaces the job's shape of a node
    :param env: added to the job's environment; a mapping, or JSON text of one, as `{{ params.env | tojson }}`
    :param require_training: whether a run that shows no step, loss, checkpoint or output fails; None: as job or
        connection say. Otherwise one that ended within a minute succeeds with a warning in the log, the result and the
        page
    :param overrides: any other value of the job, by dotted path, as `{"limits.max_runtime": "2h"}`, or JSON text of it
    :param deferrable: wait in the triggerer instead of on a worker; ignored before Airflow 3.3, where a trigger
        is not informed that its task was killed
    :param poll_interval: seconds between two looks at the run
    :param retry_policy: Airflow's; by default TrainingRetries, which uses the cause of the failure (Airflow 3.3)
    """

    # The plan comes last: it is made of all the others, once they are rendered.
    template_fields: Sequence[str] = ("job", "conn_id", "nodes", "shape", "env", "overrides", "plan")
    template_fields_renderers: ClassVar = {"job": "yaml", "env": "json", "overrides": "json", "plan": "yaml"}
    shallow_copy_attrs: Sequence[str] = ("_stop",)
    operator_extra_links = (JobRunLink(), LogsLink(), CheckpointLink())
    ui_color = "#f3d6cf"

    def __init__(
        self,
        *,
        job: str | Path | Mapping[str, Any] | TrainingJob,
        conn_id: str = OciHook.default_conn_name,
        nodes: int | str | None = None,
        shape: str | None = None,
        env: Mapping[str, Any] | str | None = None,
        overrides: Mapping[str, Any] | str | None = None,
        require_training: bool | None = None,
        deferrable: bool | None = None,
        poll_interval: float = 10.0,
        retry_policy: Any = RETRIES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs, **as_argument(retry_policy))
        self.job = str(job) if isinstance(job, str | Path) else renderable(job)
        self.conn_id = conn_id
        self.nodes = nodes
        self.shape = shape
        self.env = env
        self.overrides = overrides
        self.require_training = require_training
        self.deferrable = is_deferrable(deferrable)
        self.poll_interval = poll_interval
        self.plan: Any = show_plan
        self._stop = StopFlag()
        self._life: TrainingTask | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        return self.train(context)

    def train(self, context: Context) -> dict[str, Any]:
        """Do the work of `execute`; for tasks that train as a part of their work."""
        return self._training().train(context)

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Continue after the trigger's event; Airflow calls this on a worker."""
        return self._training().resume(context, event, search)

    def ask_again(self, context: Context, event: Any, search: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - Airflow hands it over
        """Submit again after a pause without capacity; Airflow calls this on a worker."""
        return self._training().ask_again(context, search)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue also after a failed trigger, where Airflow would fail the task and abandon its run."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        return self._training().after_failed_trigger(
            context,
            next_kwargs or {},
            lambda: BaseOperator.resume_execution(self, next_method, next_kwargs, context),
        )

    def on_kill(self) -> None:
        """End the remote runs; Airflow kills this process five seconds after this call.

        Airflow calls it in a signal handler: it neither calls Airflow nor logs (see `gangs.kills`).
        """
        self._stop.set()
        if self._life is not None:
            self._life.kill_from_handler()

    def job_arguments(self, context: Context) -> JobArguments:
        """Return what the rendered arguments say of the job. Raises JobFileError."""
        del context
        return JobArguments(
            job=renderable(self.job),
            folder=Path(self.dag.fileloc).parent,
            nodes=self.nodes,
            shape=self.shape,
            env=settings("env", self.env),
            overrides=renderable(settings("overrides", self.overrides)),
            require_training=self.require_training,
        )

    def shown_plan(self, context: Context) -> str:
        """Return what the task is about to create, without secrets; mask them in its logs and other fields too."""
        given = [settings_if_any(name, getattr(self, name)) for name in ("env", "overrides")]
        return self._training().shown_plan([self.job, *given], context)

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        return self._life.lineage() if self._life is not None else None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002 - OpenLineage's signature
        return self.get_openlineage_facets_on_start()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002 - OpenLineage's signature
        return self.get_openlineage_facets_on_start()

    def _training(self) -> TrainingTask:
        """Return the life of this task. It is imported by a running task only: every DAG file would pay for it."""
        from airflow_provider_ocidist.operators.training_task import TrainingTask

        self._life = self._life or TrainingTask(self, self._stop)
        return self._life
