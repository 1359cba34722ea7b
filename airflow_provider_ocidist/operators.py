"""DistributedTrainingOperator: train on many nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator, conf

from airflow_provider_ocidist.airflow_errors import as_airflow_errors, training_failure
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.links import JobRunLink, job_run_url

# What only a running task needs is imported there: every DAG file pays for what stands here, every time it is parsed.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.job import TrainingJob
    from airflow_provider_ocidist.run import RunKey, RunRecord, RunRef
    from airflow_provider_ocidist.watch import Watch


class DistributedTrainingOperator(BaseOperator):
    """Run a training job on several nodes and wait for its checkpoint.

    The run survives this task: a worker that dies, or a triggerer that restarts, finds it again and waits on. Killing,
    failing or clearing the task ends it. XCom: `checkpoint_uri`, `run` (what was created) and the result as a whole.
    The events of the task's outlets tell of the checkpoint too: an Asset gets its URI, step and loss as extra, an
    AssetAlias an event of the checkpoint's own URI.

    Any string in the job may hold Jinja, also where a number is wanted.

    :param job: path of a job file (relative to the DAG file), its URI, a mapping of the same form, or a TrainingJob
    :param conn_id: Airflow connection of type `oci`
    :param nodes: replaces the job's number of nodes
    :param env: added to the job's environment
    :param overrides: any other value of the job, by dotted path, as `{"limits.max_runtime": "2h"}`
    :param deferrable: wait in the triggerer instead of on a worker; needs Airflow 3.3 to end the run when killed
    :param poll_interval: seconds between two looks at the run
    """

    template_fields: Sequence[str] = ("job", "conn_id", "nodes", "env", "overrides")
    template_fields_renderers: ClassVar = {"job": "yaml", "env": "json", "overrides": "json"}
    operator_extra_links = (JobRunLink(),)
    ui_color = "#f3d6cf"

    def __init__(
        self,
        *,
        job: str | Path | Mapping[str, Any] | TrainingJob,
        conn_id: str = OciHook.default_conn_name,
        nodes: int | str | None = None,
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
        deferrable: bool | None = None,
        poll_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        if hasattr(BaseOperator, "retry_policy"):
            from airflow_provider_ocidist.retries import TrainingRetries

            kwargs.setdefault("retry_policy", TrainingRetries())
        super().__init__(**kwargs)
        self.job = str(job) if isinstance(job, str | Path) else _renderable(job)
        self.conn_id = conn_id
        self.nodes = nodes
        self.env = env
        self.overrides = overrides
        fallback = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = fallback if deferrable is None else deferrable
        self.poll_interval = poll_interval
        self._stop = threading.Event()
        self._ref: RunRef | None = None
        self._connected: Backend | None = None

    # the life of the task

    def execute(self, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.gang import Gang

        with as_airflow_errors():
            job = self._training_job(context)
            gang = Gang(
                self._backend(job.backend.kind), job, self.log, context.get("task_state_store"), self._stop
            )
            record = gang.adopt_or_submit(_key(context), self._task_deadline())
        self._ref = record.ref
        self._announce(record.ref, context)
        return self._supervise(record, context)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Go on after the trigger has seen something to do; Airflow calls this on a worker."""
        from airflow_provider_ocidist.run import RunRecord

        return self._supervise(RunRecord.from_json(event), context)

    def on_kill(self) -> None:
        """End the remote runs; Airflow kills this process five seconds after it has called this."""
        self._stop.set()
        if self._ref is not None:
            self._backend(self._ref.backend).cancel(self._ref)
            self.log.info("%s: cancelled, since this task was killed", self._ref.key.name)

    def _supervise(self, record: RunRecord, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.supervisor import Cancel, Fail, Succeed, Wait
        from airflow_provider_ocidist.watch import Watch

        self._ref = record.ref
        backend = self._backend(record.ref.backend)
        watch = Watch(backend, record, self.log)
        while True:
            action = watch.look(time.time())
            match action:
                case Wait():
                    self._wait(watch, context)
                case Cancel(ending):
                    if not watch.end(ending):
                        self._stop.wait(watch.pause(self.poll_interval))
                case Succeed():
                    return self._succeed(watch, context)
                case Fail(cause, message):
                    self._fail(watch, cause, message, context)

    def _wait(self, watch: Watch, context: Context) -> None:
        from airflow_provider_ocidist.triggers import CAN_KILL, DistributedTrainingTrigger

        if not (self.deferrable and CAN_KILL):
            self._stop.wait(watch.pause(self.poll_interval))
            if self._stop.is_set():
                raise AirflowFailException("the task was killed; its run has been cancelled")
            return
        self.defer(
            trigger=DistributedTrainingTrigger(
                conn_id=self.conn_id,
                record=watch.record.to_json(),
                owner=_owner(context),
                poll_interval=self.poll_interval,
            ),
            method_name="resume",
        )

    def _succeed(self, watch: Watch, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.run import TrainingResult

        assert watch.status is not None
        result = TrainingResult.of(watch.record, watch.status).to_json()
        context["ti"].xcom_push(key="checkpoint_uri", value=result["checkpoint_uri"])
        self.log.info("trained; newest checkpoint: %s", result["checkpoint_uri"])
        self._tell_outlets(result, context)
        return result

    def _tell_outlets(self, result: Mapping[str, Any], context: Context) -> None:
        """Put the checkpoint into the events of this task's outlets, for the DAGs that they schedule."""
        from airflow.sdk import Asset, AssetAlias

        checkpoint = result.get("checkpoint") or {}
        told = {
            "checkpoint_uri": result["checkpoint_uri"],
            "step": checkpoint.get("step"),
            "loss": checkpoint.get("loss"),
            "outputs": result.get("outputs", []),
            "job_id": result["job_id"],
        }
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra.update(told)
            elif isinstance(outlet, AssetAlias) and result["checkpoint_uri"]:
                context["outlet_events"][outlet].add(Asset(result["checkpoint_uri"]), extra=told)

    def _fail(self, watch: Watch, cause: Cause, message: str, context: Context) -> NoReturn:
        assert watch.status is not None
        if watch.status.checkpoint is not None:
            context["ti"].xcom_push(key="checkpoint_uri", value=watch.status.checkpoint.uri)
        for node in watch.status.nodes:
            if node.report is not None and node.report.cause is not None and node.report.tail:
                self.log.error("last lines of node %d:\n%s", node.rank, node.report.tail)
        raise training_failure(cause, message)

    # small parts

    def _backend(self, kind: str) -> Backend:
        """Return the connected backend; made once, so that `on_kill` finds it warm."""
        if self._connected is None:
            self._connected = OciHook(self.conn_id).backend(kind)
        return self._connected

    def _training_job(self, context: Context) -> TrainingJob:
        from airflow_provider_ocidist import job_file

        overrides = dict(self.overrides or {})
        if self.nodes is not None:
            overrides["nodes"] = self.nodes
        overrides |= {f"env.{name}": str(value) for name, value in (self.env or {}).items()}
        if isinstance(self.job, Mapping):
            return job_file.build(self.job, base_dir=self._folder, overrides=overrides)
        place = str(self.job) if "://" in str(self.job) else str(self._folder / str(self.job))
        access = OciHook(self.conn_id).access if place.startswith("oci://") else None
        return job_file.load(
            place, access=access, overrides=overrides, render=lambda text: self._filled_in(text, context)
        )

    def _filled_in(self, text: str, context: Context) -> Any:
        """Return what Airflow makes of a text with Jinja. Raises ValueError with what is wrong with it."""
        from jinja2 import TemplateError

        try:
            return self.render_template(text, context)
        except TemplateError as error:
            raise ValueError(error.message or type(error).__name__) from error

    @property
    def _folder(self) -> Path:
        return Path(self.dag.fileloc).parent

    def _task_deadline(self) -> float | None:
        """Return until when this attempt may take; Airflow forgets `execution_timeout` while a task is deferred."""
        if self.execution_timeout is None:
            return None
        return time.time() + self.execution_timeout.total_seconds()

    def _announce(self, ref: RunRef, context: Context) -> None:
        ti = context["ti"]
        self.log.info(
            "gang %s: job %s, %d nodes, main run %s", ref.key.name, ref.job_id, ref.nodes, ref.main_run_id
        )
        ti.xcom_push(key="run", value=ref.to_json())
        if not OciHook(self.conn_id).access.endpoint:
            # The console knows nothing of an emulator's runs.
            ti.xcom_push(key=JobRunLink.xcom_key, value=job_run_url(ref))


def _renderable(value: Any) -> Any:
    """Return a value whose every string Airflow finds: it looks into dicts and lists, not into other mappings."""
    from airflow_provider_ocidist.job import TrainingJob

    if isinstance(value, TrainingJob):
        value = value.to_mapping()
    match value:
        case Mapping():
            return {key: _renderable(item) for key, item in value.items()}
        case list() | tuple():
            return [_renderable(item) for item in value]
    return value


def _key(context: Context) -> RunKey:
    from airflow_provider_ocidist.run import RunKey

    ti = context["ti"]
    return RunKey(
        dag_id=ti.dag_id,
        run_id=ti.run_id,
        task_id=ti.task_id,
        map_index=ti.map_index if ti.map_index is not None else -1,
        generation=ti.max_tries,
    )


def _owner(context: Context) -> dict[str, Any]:
    key = _key(context)
    return {"dag_id": key.dag_id, "run_id": key.run_id, "task_id": key.task_id, "map_index": key.map_index}
