"""TaskJob: the training job of a task, read once, and the plan that is shown of it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from airflow.providers.common.compat.sdk import conf
from jinja2 import TemplateError

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.gangs.candidates import Candidates, labels
from airflow_provider_ocidist.gangs.plan_view import readable
from airflow_provider_ocidist.gangs.spending import bound
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.hooks.task_context import mask_secrets
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.masking import masked_text, secrets_in
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.operators.job_arguments import JobArguments

log = logging.getLogger(__name__)

Render = Callable[[str], Any]
"""Function that fills in the Jinja of a text. Raises jinja2's TemplateError."""
DEFAULT_LEASE = 7200.0
"""Seconds that the nodes go on without a waiting task: Airflow may be down for an hour."""
DEFAULT_CAPACITY_TIMEOUT = 3600.0
"""Seconds for which a task asks again when no machine is free, without using its retries."""


class TaskConnection:
    """The connection of a task: each kind of backend is connected once, to be ready when the task is killed.

    A gang may be of another kind than the job names now: its file was edited since.
    """

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._connected: dict[str | None, Backend] = {}

    def hook(self, kind: str | None = None, gangs_conn_id: str | None = None) -> OciHook:
        return OciHook(self._conn_id, kind=kind, gangs_conn_id=gangs_conn_id)

    def access(self, kind: str | None = None) -> OciAccess:
        """Return the credentials for storage."""
        return self.hook(kind).access

    def access_to(self, ref: RunRef) -> OciAccess:
        """Return the credentials for the service at which a gang is."""
        return self.hook(ref.backend, ref.conn_id).service_access

    def backend_of(self, ref: RunRef) -> Backend:
        """Return the backend of a gang's kind and connection. Raises BackendError."""
        return beside(self.backend(ref.backend), ref.conn_id)

    def backend(self, kind: str | None) -> Backend:
        """Return the backend of a kind; None: the one connected first, else the usual one."""
        if kind is None and self._connected:
            return next(iter(self._connected.values()))
        if kind not in self._connected:
            self._connected[kind] = self.hook(kind).backend()
        return self._connected[kind]

    def reconnect(self, needed: RunRef | None = None) -> None:
        """Let the backends use the present credentials of their connections, each whose connection can be read.

        Raises the first error of those that cannot; with `needed`, only that of this gang's connection.
        """
        failed: list[Exception] = []
        for each in self._to_reconnect():
            try:
                each.reconnect(self.hook(each.kind, each.conn_id).fields)
            except Exception as error:  # noqa: BLE001 - Airflow's, a secrets backend's or ours
                if needed is None or (each.kind, each.conn_id) == (needed.backend, needed.conn_id):
                    failed.append(error)
                else:
                    log.warning(
                        "%s could not be read again: %s",
                        f"connection {each.conn_id!r}" if each.conn_id else "the task's connection",
                        error,
                    )
        if failed:
            raise failed[0]

    def _to_reconnect(self) -> Iterator[Backend]:
        for backend in [each for each in self._connected.values() if each.needs_connection]:
            yield backend
            others = backend.connections.connected() if backend.connections else []
            yield from (other for other in others if other is not backend)


class TaskJob:
    """The training job of a task. The plan that Airflow shows and the run that begins are made of one reading."""

    def __init__(self, connection: TaskConnection) -> None:
        self._connection = connection
        self._read: tuple[JobArguments, TrainingJob] | None = None
        self.planned: tuple[TrainingJob, Plan] | None = None
        """Job and plan as last shown; None before that, and if there is no plan."""
        self._plans: tuple[Plan, ...] = ()
        """Plans of all choices of machines of that job."""

    def job(self, arguments: JobArguments, render: Render) -> TrainingJob:
        """Return the job of these arguments, with a task's default limits for those that it does not set.

        Raises JobFileError, and StorageError where its file cannot be read.
        """
        if self._read is None or self._read[0] != arguments:
            self._read = arguments, _with_limits(self.read(arguments, render))
        return self._read[1]

    @contextlib.contextmanager
    def with_code(self, job: TrainingJob) -> Iterator[TrainingJob]:
        """Return the job while the code that its task writes itself is there, to be sent to the nodes."""
        code = self._read[0].code if self._read else None
        if code is None:
            yield job
            return
        with code.written() as folder:
            yield replace(job, program=replace(job.program, source=str(folder)))

    def plans(self, job: TrainingJob) -> tuple[Plan, ...]:
        """Return the plans that are already made of this job, in the order of its choices.

        They hold for the job with its code as well: that is written again, to another folder.
        """
        if self.planned is None:
            return ()
        shown, source = self.planned[0], job.program.source
        if replace(job, program=replace(job.program, source=shown.program.source)) != shown:
            return ()
        return tuple(plan if plan.code is None else replace(plan, code=source) for plan in self._plans)

    def shown_plan(
        self, given: Any, arguments: Callable[[], JobArguments], render: Render, key: RunKey
    ) -> str:
        """Return what the task is about to create, without secrets; mask them in its logs and other fields too.

        `given`: the values that the arguments are made of.
        """
        # Before the job is checked: an error message may quote its values.
        secrets = secrets_in(given)
        mask_secrets(secrets)
        self.planned = None
        try:
            job = self.job(arguments(), render)
            several = Candidates(self._connection.backend(job.backend.kind), job, log)
            # Each candidate is planned, so that an incomplete one shows now, and not at night when it is asked for.
            plans = several.plans(key)
        except Exception as error:  # noqa: BLE001 - it fails again when the task needs it, and is reported there
            return f"no plan: {masked_text(str(error), secrets)}"
        mask_secrets(secrets_in(job.to_mapping()))
        self.planned, self._plans = (job, plans[0]), tuple(plans)
        room = conf.getint("core", "max_templated_field_length", fallback=4096)
        return readable(plans[0], room, labels(job)[1:], bound(job, plans[0].price))

    def read(self, arguments: JobArguments, render: Render) -> TrainingJob:
        """Return the job as arguments and file describe it. Raises as `job` does."""
        overrides = arguments.all_overrides()
        if arguments.code is None:
            return self._built(arguments, overrides, render)
        with arguments.code.written() as folder:
            return self._built(arguments, {**overrides, "program.source": str(folder)}, render)

    def _built(self, arguments: JobArguments, overrides: Mapping[str, Any], render: Render) -> TrainingJob:
        job, folder = arguments.job, arguments.folder
        if isinstance(job, Mapping):
            return parsing.build(job, base_dir=folder, overrides=overrides)
        place = str(job) if "://" in str(job) else str(folder / str(job))
        access = self._connection.access() if place.startswith("oci://") else None
        return parsing.load(
            place, access=access, overrides=overrides, render=lambda text: _filled_in(text, render)
        )


def _filled_in(text: str, render: Render) -> Any:
    """Return a text with its Jinja filled in. Raises ValueError with the fault."""
    try:
        return render(text)
    except TemplateError as error:
        raise ValueError(error.message or type(error).__name__) from error


def _with_limits(job: TrainingJob) -> TrainingJob:
    own = {"lease": DEFAULT_LEASE, "capacity_timeout": DEFAULT_CAPACITY_TIMEOUT}
    missing = {name: value for name, value in own.items() if getattr(job.limits, name) is None}
    return replace(job, limits=replace(job.limits, **missing))
