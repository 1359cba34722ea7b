"""JobTask: a task's training job, its plan, and its OpenLineage facets."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator, conf

from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.links import JobRunLink, links_of_run
from airflow_provider_ocidist.hooks.oci import OciHook

# Imports that only a running task needs are made there: every DAG file pays for these, every time it is parsed.
if TYPE_CHECKING:
    from datetime import datetime

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.failure import Failure
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import Plan, RunRef

DEFAULT_LEASE = 7200.0
"""Seconds that the nodes run on without a waiting task: Airflow may be down for an hour."""
DEFAULT_CAPACITY_TIMEOUT = 3600.0
"""Seconds for which a task asks again when no machine is free, without using its retries."""


def show_plan(context: Context, jinja_env: Any) -> str:  # noqa: ARG001 - Airflow's signature
    """Return the field `plan` of the rendered templates tab: what the task is about to create."""
    task = context.get("task")
    return task.shown_plan(context) if isinstance(task, JobTask) else ""


class JobTask(BaseOperator):
    """A task with a training job, made of its arguments once Airflow has rendered them."""

    job: Any
    conn_id: str
    nodes: int | str | None
    shape: str | None
    env: Mapping[str, str] | None
    overrides: Mapping[str, Any] | None
    require_training: bool | None
    _connected: Backend | None
    _planned: tuple[TrainingJob, Plan] | None
    _ref: RunRef | None
    _result: dict[str, Any] | None
    _failure: Failure | None

    def shown_plan(self, context: Context) -> str:
        """Return what the task is about to create, without secrets; mask them in its logs and other fields too."""
        from airflow_provider_ocidist.gangs.plan_view import readable
        from airflow_provider_ocidist.model.masking import masked_text, secrets_in

        # Before the job is checked: an error message may quote its values.
        given = secrets_in([self.job, self.env, self.overrides])
        task_context.mask_secrets(given)
        try:
            job = self._limited(self._training_job(context))
            plan = self._backend(job.backend.kind).plan(job, task_context.key_of(context))
        except Exception as error:  # noqa: BLE001 - it fails again when the task needs it, and is reported there
            return f"no plan: {masked_text(str(error), given)}"
        task_context.mask_secrets(secrets_in(job.to_mapping()))
        self._planned = job, plan
        return readable(plan, conf.getint("core", "max_templated_field_length", fallback=4096))

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        return self._lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002
        return self._lineage()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002
        return self._lineage()

    def _lineage(self) -> OperatorLineage[Any, Any] | None:
        if self._planned is None:
            return None
        from airflow_provider_ocidist.integrations.lineage import lineage_of_training

        page = None
        if self._ref is not None:
            page = links_of_run(self._ref, OciHook(self.conn_id, kind=self._ref.backend).access).get(
                JobRunLink.xcom_key
            )
        return lineage_of_training(*self._planned, self._ref, self._result, self._failure, page)

    def _backend(self, kind: str) -> Backend:
        """Return the connected backend; created once, so that it is ready for `on_kill`."""
        if self._connected is None:
            self._connected = OciHook(self.conn_id, kind=kind).backend()
        return self._connected

    def _reconnect(self) -> None:
        """Let the backend use the current connection."""
        if self._connected is not None and self._connected.needs_connection:
            self._connected.reconnect(OciHook(self.conn_id).fields)

    def _training_job(self, context: Context) -> TrainingJob:
        from airflow_provider_ocidist.job_file import parsing

        overrides = dict(self.overrides or {})
        if self.nodes is not None:
            overrides["nodes"] = self.nodes
        if self.shape is not None:
            overrides["backend.shape"] = self.shape
        if self.require_training is not None:
            overrides["require_training"] = self.require_training
        overrides |= {f"env.{name}": str(value) for name, value in (self.env or {}).items()}
        if isinstance(self.job, Mapping):
            return parsing.build(self.job, base_dir=self._folder, overrides=overrides)
        place = str(self.job) if "://" in str(self.job) else str(self._folder / str(self.job))
        access = OciHook(self.conn_id).access if place.startswith("oci://") else None
        return parsing.load(
            place, access=access, overrides=overrides, render=lambda text: self._filled_in(text, context)
        )

    def _limited(self, job: TrainingJob) -> TrainingJob:
        """Return the job with a task's default limits for those that it does not set."""
        own = {"lease": DEFAULT_LEASE, "capacity_timeout": DEFAULT_CAPACITY_TIMEOUT}
        missing = {name: value for name, value in own.items() if getattr(job.limits, name) is None}
        return replace(job, limits=replace(job.limits, **missing))

    def _filled_in(self, text: str, context: Context) -> Any:
        """Return a text with Jinja as Airflow renders it. Raises ValueError with the fault."""
        from jinja2 import TemplateError

        try:
            return self.render_template(text, context)
        except TemplateError as error:
            raise ValueError(error.message or type(error).__name__) from error

    @property
    def _folder(self) -> Path:
        return Path(self.dag.fileloc).parent

    def _task_deadline(self, begun: datetime | None = None) -> float | None:
        """Return the deadline of this attempt; Airflow forgets `execution_timeout` while a task is deferred."""
        if self.execution_timeout is None:
            return None
        return (begun.timestamp() if begun else time.time()) + self.execution_timeout.total_seconds()


def renderable(value: Any) -> Any:
    """Return a value with mappings as dicts: Airflow renders strings in dicts and lists only."""
    from airflow_provider_ocidist.model.job import TrainingJob

    if isinstance(value, TrainingJob):
        value = value.to_mapping()
    match value:
        case Mapping():
            return {key: renderable(item) for key, item in value.items()}
        case list() | tuple():
            return [renderable(item) for item in value]
    return value
