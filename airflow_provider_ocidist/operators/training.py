"""DistributedTrainingOperator: train on many nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout, BaseOperator, conf

from airflow_provider_ocidist.errors import BackendError, Cause, OcidistError
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.links import CheckpointLink, JobRunLink, LogsLink
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.operators.job_tasks import renderable, show_plan
from airflow_provider_ocidist.operators.killable_tasks import KillableTask
from airflow_provider_ocidist.operators.outcome_tasks import failure_of

# Imports that only a running task needs are made there: every DAG file pays for these, every time it is parsed.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.capacity import CapacitySearch, NoCapacity
    from airflow_provider_ocidist.gangs.failure import Failure
    from airflow_provider_ocidist.gangs.kills import Killer
    from airflow_provider_ocidist.gangs.submission import GangSubmitter
    from airflow_provider_ocidist.gangs.task_watch import TaskWatch
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import Plan, RunKey, RunRecord, RunRef

TRIGGER_FAILED, TRIGGER_TIMEOUT = "__fail__", "Trigger timeout"
"""How Airflow resumes a task whose trigger failed, or exceeded the deferral's timeout (`sdk.bases.operator`)."""


def _retries() -> Any:
    if not hasattr(BaseOperator, "retry_policy"):
        return None
    from airflow_provider_ocidist.operators.retries import TrainingRetries

    return TrainingRetries()


RETRIES = _retries()
"""Default retry policy; None before Airflow 3.3. In signatures, where Airflow finds it for mapped tasks too."""


def as_argument(retry_policy: Any) -> dict[str, Any]:
    """Return the argument for Airflow, which does not know it before 3.3."""
    return {} if RETRIES is None and retry_policy is None else {"retry_policy": retry_policy}


class DistributedTrainingOperator(KillableTask):
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
    :param conn_id: Airflow connection of type `oci`
    :param nodes: replaces the job's number of nodes
    :param shape: replaces the job's shape of a node
    :param env: added to the job's environment
    :param require_training: whether a run that shows no step, loss, checkpoint or output fails; None: as job or
        connection say. Otherwise one that ended within a minute succeeds with a warning in the log, the result and the
        page
    :param overrides: any other value of the job, by dotted path, as `{"limits.max_runtime": "2h"}`
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
        env: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
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
        fallback = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = fallback if deferrable is None else deferrable
        self.poll_interval = poll_interval
        self.plan: Any = show_plan
        self._stop = StopFlag()
        self._killer: Killer | None = None
        self._said_why_it_waits = False
        self._ref: RunRef | None = None
        self._number = 1
        self._planned: tuple[TrainingJob, Plan] | None = None
        self._result: dict[str, Any] | None = None
        self._failure: Failure | None = None
        self._search: CapacitySearch | None = None
        self._connected: Backend | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        return self.train(context)

    def train(self, context: Context) -> dict[str, Any]:
        """Do the work of `execute`; for tasks that train as a part of their work."""
        return self._until_capacity(self._begin, context)

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Continue after the trigger's event; Airflow calls this on a worker."""
        from airflow_provider_ocidist.model.run import RunRecord

        self._search = _search_in(search)
        record = RunRecord.from_json(event)
        return self._until_capacity(lambda context: self._supervise(record, context, goes_on=True), context)

    def ask_again(self, context: Context, event: Any, search: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Submit again after a pause without capacity; Airflow calls this on a worker."""
        self._search = _search_in(search)
        return self._until_capacity(self._begin, context)

    def _until_capacity(self, work: Callable[[Context], dict[str, Any]], context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.gangs.capacity import NoCapacity

        self._number = context["ti"].try_number
        while True:
            try:
                return work(context)
            except NoCapacity as none:
                self._wait_for_capacity(none)
                work = self._begin

    def _wait_for_capacity(self, none: NoCapacity) -> None:
        # The gang has ended: a kill has nothing more to end.
        self._search, self._ref = none.search, None
        pause = none.ask_at - time.time()
        self.log.warning(
            "%s; asking again in %.0f s, and for %.0f s at most (limits.capacity_timeout)",
            none,
            pause,
            none.search.give_up_at - time.time(),
        )
        if self.deferrable:
            from airflow_provider_ocidist.triggers.training import PauseTrigger

            self.defer(
                trigger=PauseTrigger(none.ask_at),
                method_name="ask_again",
                kwargs={"search": asdict(none.search)},
            )
        if self._stop.wait(pause):
            raise AirflowFailException("the task was killed while it waited for machines; nothing runs")

    def _begin(self, context: Context) -> dict[str, Any]:
        """Bring about the gang, and wait for its end."""
        from airflow_provider_ocidist.gangs.submission import GangSubmitter

        with as_airflow_errors(), self._telling_of_failure(context):
            key = task_context.key_of(context)
            with self._calling_off(key, self._call_off_noted(context)):
                job = self._limited(self._training_job(context))
                deadline = self._task_deadline(context["ti"].start_date if self._search else None)
                self._search = self._search or _new_search(job, time.time(), deadline)
                if self.outlets:
                    task_context.note_data_versions(
                        job, OciHook(self.conn_id, kind=job.backend.kind), context, self.log
                    )
                backend = self._backend(job.backend.kind)
            gang = GangSubmitter(backend, job, self.log, context.get("task_state_store"), self._stop)
            record = self._brought_about(gang, key, deadline)
        return self._supervise(record, context, announced=False)

    def _brought_about(self, gang: GangSubmitter, key: RunKey, deadline: float | None) -> RunRecord:
        """Return the record of the gang; where one of an earlier try may live, one bad answer is no reason to fail."""
        from airflow_provider_ocidist.gangs.kills import Patience, may_pass

        patience = Patience(self._stop, self.log)
        with self._calling_off_when_killed(gang, key), self._calling_off(key, gang.call_off):
            while True:
                try:
                    return gang.adopt_or_submit(key, deadline, self._number, self.retries)
                except BackendError as error:
                    if self._number == 1 or not may_pass(error):
                        raise
                    patience.take(error, self._reconnect)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Continue also after a failed trigger, where Airflow would fail the task and abandon its run."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        told = next_kwargs or {}
        ref = task_context.created(context)
        if told.get("error") == TRIGGER_TIMEOUT:
            if ref is not None:
                self._end_too_late(ref, context)
            return super().resume_execution(next_method, next_kwargs, context)
        self.log.error(
            "the trigger failed: %s\n%s", told.get("error"), "\n".join(told.get("traceback") or ())
        )
        self.deferrable = False
        return self._go_on_here(ref, context)

    def _end_too_late(self, ref: RunRef, context: Context) -> None:
        from airflow_provider_ocidist.gangs.kills import end_before_giving_up

        why = f"{ref.key.name}: ended because its task's deferral timed out"
        error = AirflowTaskTimeout(why)
        backend = self._reached(ref)
        end_before_giving_up(backend, ref, self._number, error, self.log, self._stop, self._reconnect)
        self._tell_of_failure(failure_of(Cause.DEADLINE, why), context)

    def _go_on_here(self, ref: RunRef | None, context: Context) -> dict[str, Any]:
        """Continue without the trigger's own state; the task may have been waiting for capacity."""
        if ref is None:
            self.log.warning("no run has been created; asking for one from this worker")
            with as_airflow_errors():
                self._search = self._search_of_try(context)
            return self._until_capacity(self._begin, context)
        self.log.warning("waiting for %s on this worker from here", ref.key.name)
        record = self._left_behind(ref, context)
        try:
            search = self._search_of_try(context)
        except (OcidistError, OSError) as error:
            # The run continues all the same, and this task has to wait for it.
            self.log.warning(
                "no new request after a lack of capacity, since the job cannot be read: %s", error
            )
            search = None
        return self.resume(context, record.to_json(), asdict(search) if search else None)

    def _search_of_try(self, context: Context) -> CapacitySearch | None:
        """Return this try's search for machines, with its time limit. Raises JobFileError."""
        began = context["ti"].start_date
        job = self._limited(self._training_job(context))
        return _new_search(job, began.timestamp(), self._task_deadline(began))

    def _left_behind(self, ref: RunRef, context: Context) -> RunRecord:
        """Return the record of this task's gang; the trigger's record was lost with it."""
        from airflow_provider_ocidist.backends.capabilities import OpensById, now_at
        from airflow_provider_ocidist.model.run import RunRecord

        backend = self._reached(ref)
        try:
            record = OpensById.of(backend).open(ref.job_id)
        except BackendError as error:
            self.log.warning("the limits of the job are unknown because it cannot be read: %s", error)
            since = (ref.submitted_at,) * ref.nodes
            record = RunRecord(ref=ref, lease=ref.lease, logs_since=since)
        here = self._task_deadline(context["ti"].start_date)
        deadlines = [record.deadline, None if here is None else here - time.time() + now_at(backend)]
        return replace(record, deadline=min((time for time in deadlines if time is not None), default=None))

    def _supervise(
        self, record: RunRecord, context: Context, *, announced: bool = True, goes_on: bool = False
    ) -> dict[str, Any]:
        """Wait for the end. `goes_on`: an earlier process has written to this try's log."""
        from airflow_provider_ocidist.gangs.kills import killer_of
        from airflow_provider_ocidist.gangs.task_watch import TaskWatch

        self._ref = record.ref
        with self._telling_of_failure(context):
            backend = self._reached(record.ref)
            self._killer = killer_of(backend, record.ref, self._number, self.log)
            watch = TaskWatch(backend, record, self.log, self._number)
            watch.reconnect = self._reconnect
            with self._ending_what_is_given_up(watch):
                self._leave_if_killed()
                if not announced:
                    self._announce(record.ref, context)
                # An adopted gang was submitted by another try, perhaps with other secrets than the job has now.
                task_context.mask_secrets_told(backend, record.ref)
                if goes_on:
                    watch.go_on()
                return self._until_end(watch, context)

    def _until_end(self, watch: TaskWatch, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.gangs.decisions import Cancel, Fail, Succeed, Wait
        from airflow_provider_ocidist.gangs.leases import LeaseKeeper

        with LeaseKeeper().keeping(watch):
            while True:
                action = watch.look(time.time())
                if not isinstance(action, Succeed):
                    # A killed task sees its own cancel.
                    self._leave_if_killed()
                match action:
                    case Wait():
                        self._wait(watch, context)
                    case Cancel(ending):
                        if not watch.end(ending):
                            self._stop.wait(watch.pause(self.poll_interval))
                            self._leave_if_killed()
                    case Succeed(warning):
                        return self._succeed(watch, warning, context)
                    case Fail(cause, message):
                        self._fail(watch, cause, message, context)

    def _wait(self, watch: TaskWatch, context: Context) -> None:
        from airflow_provider_ocidist.triggers.training import CAN_KILL, DistributedTrainingTrigger

        if self.deferrable and not CAN_KILL and not self._said_why_it_waits:
            self._said_why_it_waits = True
            self.log.warning(
                "waiting on this worker in spite of deferrable=True: before Airflow 3.3 a trigger is not informed that "
                "its task was killed, and the nodes would run on"
            )
        if not (self.deferrable and CAN_KILL):
            self._stop.wait(watch.pause(self.poll_interval))
            self._leave_if_killed()
            return
        watch.save_cursor()
        self.defer(
            trigger=DistributedTrainingTrigger(
                conn_id=self.conn_id,
                record=watch.record.to_json(),
                owner=task_context.owner_of(context),
                poll_interval=self.poll_interval,
            ),
            method_name="resume",
            # Left out if None: a worker of the version before does not accept it.
            kwargs={"search": asdict(self._search)} if self._search else None,
        )


def _new_search(job: TrainingJob, began: float, deadline: float | None) -> CapacitySearch | None:
    from airflow_provider_ocidist.gangs.capacity import CapacitySearch

    if not job.limits.capacity_timeout:
        return None
    give_up_at = began + job.limits.capacity_timeout
    return CapacitySearch(give_up_at if deadline is None else min(give_up_at, deadline))


def _search_in(value: Mapping[str, Any] | None) -> CapacitySearch | None:
    from airflow_provider_ocidist.gangs.capacity import CapacitySearch

    return CapacitySearch(**value) if value else None
