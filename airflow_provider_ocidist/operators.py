"""DistributedTrainingOperator: train on many nodes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout, BaseOperator, conf

from airflow_provider_ocidist import task_context
from airflow_provider_ocidist.airflow_errors import as_airflow_errors, training_failure
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, OcidistError
from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.links import (
    CheckpointLink,
    JobRunLink,
    LogsLink,
    checkpoint_url,
    links_of_run,
)
from airflow_provider_ocidist.stop_flag import StopFlag

# What only a running task needs is imported there: every DAG file pays for what stands here, every time it is parsed.
if TYPE_CHECKING:
    from datetime import datetime

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.capacity import CapacitySearch, NoCapacity
    from airflow_provider_ocidist.failure import Failure
    from airflow_provider_ocidist.gang import Gang
    from airflow_provider_ocidist.job import TrainingJob
    from airflow_provider_ocidist.kills import Killer
    from airflow_provider_ocidist.run import Plan, RunKey, RunRecord, RunRef
    from airflow_provider_ocidist.task_watch import TaskWatch
    from airflow_provider_ocidist.watch import Watch

DEFAULT_LEASE = 7200.0
"""Seconds that the nodes of a task go on when nobody waits for them: Airflow may be down for an hour."""
DEFAULT_CAPACITY_TIMEOUT = 3600.0
"""Seconds for which a task asks again where no machine is free: the retries are for what is worse."""
TRIGGER_FAILED, TRIGGER_TIMEOUT = "__fail__", "Trigger timeout"
"""How Airflow resumes a task whose trigger broke, or took longer than it was deferred for (`sdk.bases.operator`)."""


def _retries() -> Any:
    if not hasattr(BaseOperator, "retry_policy"):
        return None
    from airflow_provider_ocidist.retries import TrainingRetries

    return TrainingRetries()


RETRIES = _retries()
"""What our operators retry by; None before Airflow 3.3. In signatures, where Airflow finds it for mapped tasks too."""


def as_argument(retry_policy: Any) -> dict[str, Any]:
    """Return it as Airflow takes it, which knows no such argument before 3.3."""
    return {} if RETRIES is None and retry_policy is None else {"retry_policy": retry_policy}


def show_plan(context: Context, jinja_env: Any) -> str:  # noqa: ARG001 - Airflow calls values of fields like this
    """Return what the field `plan` shows in the tab of rendered templates: what the task is about to create."""
    task = context.get("task")
    return task.shown_plan(context) if isinstance(task, DistributedTrainingOperator) else ""


class DistributedTrainingOperator(BaseOperator):
    """Run a training job on several nodes and wait for its checkpoint.

    The run survives this task: a worker that dies, or a triggerer that restarts, finds it again and waits on. Killing,
    failing or clearing the task ends it. XCom: `checkpoint_uri`, `run` (what was created) and the result as a whole;
    after a failure `failure` (cause, message, remedy, rank, exit code, last lines).
    The events of the task's outlets tell of the checkpoint too: an Asset gets its URI, step and loss as extra, an
    AssetAlias an event of the checkpoint's own URI.

    Where Airflow is gone for good, the nodes end by themselves once nobody has waited for them for `limits.lease`: for
    2 hours, unless the job says otherwise.

    Any string in the job may hold Jinja, also where a number is wanted.

    :param job: path of a job file (relative to the DAG file), its URI, a mapping of the same form, or a TrainingJob
    :param conn_id: Airflow connection of type `oci`
    :param nodes: replaces the job's number of nodes
    :param shape: replaces the job's shape of a node
    :param env: added to the job's environment
    :param require_training: whether a run that shows no step, loss, checkpoint or output fails; None: as job or
        connection say. Otherwise one that ended within a minute succeeds with a warning in the log, the result and the
        page
    :param overrides: any other value of the job, by dotted path, as `{"limits.max_runtime": "2h"}`
    :param deferrable: wait in the triggerer instead of on a worker; before Airflow 3.3 it waits on the worker all the
        same, since a trigger is not told there that its task was killed
    :param poll_interval: seconds between two looks at the run
    :param retry_policy: Airflow's; by default TrainingRetries, which goes by the cause of the failure (Airflow 3.3)
    """

    # The plan comes last: it is made of all the others, once they are filled in.
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
        self.job = str(job) if isinstance(job, str | Path) else _renderable(job)
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

    # the life of the task

    def execute(self, context: Context) -> dict[str, Any]:
        return self.train(context)

    def train(self, context: Context) -> dict[str, Any]:
        """Do all that `execute` does; for tasks that train as a part of what they do."""
        return self._until_capacity(self._begin, context)

    def resume(
        self, context: Context, event: dict[str, Any], search: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Go on after the trigger has seen something to do; Airflow calls this on a worker."""
        from airflow_provider_ocidist.run import RunRecord

        self._search = _search_in(search)
        record = RunRecord.from_json(event)
        return self._until_capacity(lambda context: self._supervise(record, context, goes_on=True), context)

    def ask_again(self, context: Context, event: Any, search: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """Begin anew after a time without capacity; Airflow calls this on a worker."""
        self._search = _search_in(search)
        return self._until_capacity(self._begin, context)

    def _until_capacity(self, work: Callable[[Context], dict[str, Any]], context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.capacity import NoCapacity

        self._number = context["ti"].try_number
        while True:
            try:
                return work(context)
            except NoCapacity as none:
                self._wait_for_capacity(none)
                work = self._begin

    def _wait_for_capacity(self, none: NoCapacity) -> None:
        # The gang that there was has ended: a kill has nothing more to end.
        self._search, self._ref = none.search, None
        pause = none.ask_at - time.time()
        self.log.warning(
            "%s; asking again in %.0f s, and for %.0f s at most (limits.capacity_timeout)",
            none,
            pause,
            none.search.give_up_at - time.time(),
        )
        if self.deferrable:
            from airflow_provider_ocidist.triggers import PauseTrigger

            self.defer(
                trigger=PauseTrigger(none.ask_at),
                method_name="ask_again",
                kwargs={"search": asdict(none.search)},
            )
        if self._stop.wait(pause):
            raise AirflowFailException("the task was killed while it waited for machines; nothing runs")

    def _begin(self, context: Context) -> dict[str, Any]:
        """Bring about the gang, and wait for its end."""
        from airflow_provider_ocidist.gang import Gang

        with as_airflow_errors(), self._telling_of_failure(context):
            job = self._limited(self._training_job(context))
            deadline = self._task_deadline(context["ti"].start_date if self._search else None)
            self._search = self._search or _new_search(job, time.time(), deadline)
            if self.outlets:
                task_context.note_data_versions(job, OciHook(self.conn_id), context, self.log)
            gang = Gang(
                self._backend(job.backend.kind), job, self.log, context.get("task_state_store"), self._stop
            )
            record = self._brought_about(gang, task_context.key_of(context), deadline)
        return self._supervise(record, context, announced=False)

    def _brought_about(self, gang: Gang, key: RunKey, deadline: float | None) -> RunRecord:
        """Return the record of the gang; where one of an earlier try may live, one bad answer is no reason to fail."""
        from airflow_provider_ocidist.kills import Patience, may_pass

        patience = Patience(self._stop, self.log)
        while True:
            try:
                return gang.adopt_or_submit(key, deadline, self._number, self.retries)
            except BackendError as error:
                try:
                    if self._number == 1 or not may_pass(error):
                        raise
                    patience.take(error, self._reconnect)
                except BackendError as final:
                    self._call_off(gang, key, final)
                    raise

    def _call_off(self, gang: Gang, key: RunKey, error: BackendError) -> None:
        """End what earlier tries may have left where no try comes after this one; add to the error what that is not."""
        from airflow_provider_ocidist.errors import Overtaken

        if self._number == 1 or isinstance(error, Overtaken):
            return
        is_last = self._number > key.generation or not error.retryable or self._stop.is_set()
        if not is_last:
            return
        self.log.warning(
            "ending what earlier tries of this task may have left, for none comes after this one"
        )
        if left := gang.call_off(key, self._number, error):
            error.args = (f"{error}; STILL THERE, PERHAPS: {'; '.join(left)}", *error.args[1:])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on also where Airflow would fail this task for its trigger's sake, and leave the run to itself."""
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
        from airflow_provider_ocidist.kills import end_before_giving_up

        why = f"{ref.key.name}: ended, since the time of its task's deferral is over"
        error = AirflowTaskTimeout(why)
        backend = self._reached(ref)
        end_before_giving_up(backend, ref, self._number, error, self.log, self._stop, self._reconnect)
        self._tell_of_failure(_failure(Cause.DEADLINE, why), context)

    def _go_on_here(self, ref: RunRef | None, context: Context) -> dict[str, Any]:
        """Go on with what there is, without what only the trigger knew; it may have been about to ask for machines."""
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
            # Its run goes on all the same, and somebody has to wait for it.
            self.log.warning("without machines it will not ask again, for its job cannot be read: %s", error)
            search = None
        return self.resume(context, record.to_json(), asdict(search) if search else None)

    def _search_of_try(self, context: Context) -> CapacitySearch | None:
        """Return for how long this try of the task asks for machines. Raises JobFileError."""
        began = context["ti"].start_date
        job = self._limited(self._training_job(context))
        return _new_search(job, began.timestamp(), self._task_deadline(began))

    def _left_behind(self, ref: RunRef, context: Context) -> RunRecord:
        """Return the record of what this task has created; its trigger's own is lost with it."""
        from airflow_provider_ocidist.run import RunRecord

        backend = self._reached(ref)
        try:
            record = backend.open(ref.job_id)
        except BackendError as error:
            self.log.warning("the limits of its job are unknown, for it cannot be read: %s", error)
            since = (ref.submitted_at,) * ref.nodes
            record = RunRecord(ref=ref, lease=ref.lease, logs_since=since)
        here = self._task_deadline(context["ti"].start_date)
        deadlines = [record.deadline, None if here is None else here - time.time() + backend.now()]
        return replace(record, deadline=min((time for time in deadlines if time is not None), default=None))

    def on_kill(self) -> None:
        """End the remote runs; Airflow kills this process five seconds after it has called this.

        Airflow calls it in a signal handler: it neither asks Airflow anything nor logs (see `kills`). A gang that is
        just being created, or reached, is ended when that is done, by the thread that was interrupted.
        """
        self._stop.set()
        if self._killer is not None:
            self._killer.kill_from_handler()

    def _supervise(
        self, record: RunRecord, context: Context, *, announced: bool = True, goes_on: bool = False
    ) -> dict[str, Any]:
        """Wait for the end. `goes_on`: another process has written to the log of this try before."""
        from airflow_provider_ocidist.kills import killer_of
        from airflow_provider_ocidist.task_watch import TaskWatch

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
                # An adopted gang was told by another try, perhaps with other secrets than the job has now.
                task_context.mask_secrets_told(backend, record.ref)
                if goes_on:
                    watch.go_on()
                return self._until_end(watch, context)

    def _until_end(self, watch: TaskWatch, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.renewals import LeaseKeeper
        from airflow_provider_ocidist.supervisor import Cancel, Fail, Succeed, Wait

        with LeaseKeeper().keeping(watch):
            while True:
                action = watch.look(time.time())
                if not isinstance(action, Succeed):
                    # What a killed task sees is its own cancel.
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

    @contextlib.contextmanager
    def _ending_what_is_given_up(self, watch: TaskWatch) -> Iterator[None]:
        """End the gang before its task fails while it may live, for whatever reason that is."""
        from airflow.providers.common.compat.sdk import TaskDeferred

        from airflow_provider_ocidist.kills import end_before_giving_up

        try:
            yield
        except TaskDeferred:
            # Its trigger waits from here; a kill that still reaches this process ends the gang.
            raise
        except BaseException as error:
            if self._stop.is_set():
                self._end_killed()
            elif watch.status is None or not watch.status.ended:
                ref, number = watch.record.ref, self._number
                end_before_giving_up(watch.backend, ref, number, error, self.log, self._stop, self._reconnect)
            self._disarm()
            raise
        else:
            self._disarm()

    def _disarm(self) -> None:
        """Let the thread go that would end the gang: it has ended."""
        killer, self._killer = self._killer, None
        if killer is not None:
            killer.close()

    def _leave_if_killed(self) -> None:
        if self._stop.is_set():
            self._end_killed()
            raise AirflowFailException("the task was killed, and its run with it")

    def _end_killed(self) -> None:
        """Wait until the gang of a killed task is cancelled; Airflow kills this process when that takes too long."""
        from airflow_provider_ocidist.kills import KILLED_PATIENCE

        assert self._killer is not None
        if not self._killer.kill(KILLED_PATIENCE):
            self.log.warning(
                "the run of this killed task could not be cancelled (%s); its nodes end by limits.lease",
                self._killer.error or "no answer",
            )

    def _reached(self, ref: RunRef) -> Backend:
        """Return the backend of a gang that lives: a connection that cannot be read now is no reason to leave it."""
        from airflow_provider_ocidist.kills import Patience

        patience = Patience(self._stop, self.log)
        while True:
            try:
                return self._backend(ref.backend)
            except Exception as error:  # noqa: BLE001 - Airflow's own, or the network's
                patience.take(error, lambda: None)

    def _reconnect(self) -> None:
        """Let the backend use the connection as it is now."""
        if self._connected is not None:
            self._connected.reconnect(OciHook(self.conn_id).fields)

    def _wait(self, watch: TaskWatch, context: Context) -> None:
        from airflow_provider_ocidist.triggers import CAN_KILL, DistributedTrainingTrigger

        if self.deferrable and not CAN_KILL and not self._said_why_it_waits:
            self._said_why_it_waits = True
            self.log.warning(
                "waiting on this worker in spite of deferrable=True: before Airflow 3.3 a trigger is not told that its "
                "task was killed, and the nodes would run on"
            )
        if not (self.deferrable and CAN_KILL):
            self._stop.wait(watch.pause(self.poll_interval))
            self._leave_if_killed()
            return
        watch.note_told()
        self.defer(
            trigger=DistributedTrainingTrigger(
                conn_id=self.conn_id,
                record=watch.record.to_json(),
                owner=task_context.owner_of(context),
                poll_interval=self.poll_interval,
            ),
            method_name="resume",
            # Left out where there is none: a worker of the version before would not take it.
            kwargs={"search": asdict(self._search)} if self._search else None,
        )

    def _succeed(self, watch: Watch, warning: str | None, context: Context) -> dict[str, Any]:
        from airflow_provider_ocidist.run import TrainingResult

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
        """Record the end, by which a later try knows whether this one was cleared since."""
        from airflow_provider_ocidist.attempts import End

        self._backend(ref.backend).close(ref, End(succeeded=succeeded, number=self._number))

    def _fail(self, watch: Watch, cause: Cause, message: str, context: Context) -> NoReturn:
        from airflow_provider_ocidist.failure import Failure
        from airflow_provider_ocidist.masking import masked_text

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
        """Raise NoCapacity where there may be machines later, and this task has the time."""
        from airflow_provider_ocidist.capacity import NoCapacity

        if self._search is None or cause is not Cause.CAPACITY:
            return
        search = self._search.failed()
        ask_at = search.next_at(time.time())
        if ask_at is not None:
            raise NoCapacity(f"{cause}: {message}", search, ask_at)

    @contextlib.contextmanager
    def _telling_of_failure(self, context: Context) -> Iterator[None]:
        """Tell also of what fails before there is a gang, when the service will not say how it is, and of time-outs."""
        try:
            yield
        except (JobFileError, BackendError) as error:
            cause = error.cause if isinstance(error, BackendError) else Cause.CONFIG
            self._wait_for_machines(cause, str(error))
            self._tell_of_failure(_failure(cause, str(error)), context)
            raise
        except AirflowTaskTimeout as error:
            if self._failure is None:
                self._tell_of_failure(_failure(Cause.DEADLINE, str(error)), context)
            raise

    def _tell_of_failure(self, failure: Failure, context: Context) -> None:
        """Hand on what happened. A task cannot write its own note: Airflow 3.3 gives workers no call for it.

        Airflow masks what is logged, but not what is handed on.
        """
        self._failure = failure
        context["ti"].xcom_push(key="failure", value=task_context.handed_on(failure.to_json()))

    def _hand_on_checkpoint(self, uri: str | None, ref: RunRef, context: Context) -> None:
        ti = context["ti"]
        ti.xcom_push(key="checkpoint_uri", value=uri)
        if uri and (url := checkpoint_url(uri, ref, OciHook(self.conn_id).access)):
            ti.xcom_push(key=CheckpointLink.xcom_key, value=url)

    def shown_plan(self, context: Context) -> str:
        """Return what the task is about to create, without secrets; and keep them from its logs and other fields."""
        from airflow_provider_ocidist.masking import masked_text, secrets_in
        from airflow_provider_ocidist.plan_view import readable

        # Before the job is known to be right: what is wrong with it may be told by its values.
        given = secrets_in([self.job, self.env, self.overrides])
        task_context.mask_secrets(given)
        try:
            job = self._limited(self._training_job(context))
            plan = self._backend(job.backend.kind).plan(job, task_context.key_of(context))
        except Exception as error:  # noqa: BLE001 - it fails again when the task needs it, and is told of there
            return f"no plan: {masked_text(str(error), given)}"
        task_context.mask_secrets(secrets_in(job.to_mapping()))
        self._planned = job, plan
        return readable(plan, conf.getint("core", "max_templated_field_length", fallback=4096))

    # what OpenLineage's provider asks for, where it is installed

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        return self._lineage()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002
        return self._lineage()

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:  # noqa: ARG002
        return self._lineage()

    def _lineage(self) -> OperatorLineage[Any, Any] | None:
        if self._planned is None:
            return None
        from airflow_provider_ocidist.lineage import lineage_of_training

        page = None
        if self._ref is not None:
            page = links_of_run(self._ref, OciHook(self.conn_id).access).get(JobRunLink.xcom_key)
        return lineage_of_training(*self._planned, self._ref, self._result, self._failure, page)

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
        if self.shape is not None:
            overrides["backend.shape"] = self.shape
        if self.require_training is not None:
            overrides["require_training"] = self.require_training
        overrides |= {f"env.{name}": str(value) for name, value in (self.env or {}).items()}
        if isinstance(self.job, Mapping):
            return job_file.build(self.job, base_dir=self._folder, overrides=overrides)
        place = str(self.job) if "://" in str(self.job) else str(self._folder / str(self.job))
        access = OciHook(self.conn_id).access if place.startswith("oci://") else None
        return job_file.load(
            place, access=access, overrides=overrides, render=lambda text: self._filled_in(text, context)
        )

    def _limited(self, job: TrainingJob) -> TrainingJob:
        """Return the job with the limits of a task, where it says nothing of its own."""
        own = {"lease": DEFAULT_LEASE, "capacity_timeout": DEFAULT_CAPACITY_TIMEOUT}
        missing = {name: value for name, value in own.items() if getattr(job.limits, name) is None}
        return replace(job, limits=replace(job.limits, **missing))

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

    def _task_deadline(self, begun: datetime | None = None) -> float | None:
        """Return until when this attempt may take; Airflow forgets `execution_timeout` while a task is deferred."""
        if self.execution_timeout is None:
            return None
        return (begun.timestamp() if begun else time.time()) + self.execution_timeout.total_seconds()

    def _announce(self, ref: RunRef, context: Context) -> None:
        ti = context["ti"]
        self.log.info(
            "gang %s: job %s, %d nodes, main run %s", ref.key.name, ref.job_id, ref.nodes, ref.main_run_id
        )
        if ref.log_group_id is None:
            self.log.warning(
                "what the nodes print is kept nowhere, and so not shown here: name a log group in the connection "
                "or the job (log_group_id)"
            )
        ti.xcom_push(key="run", value=ref.to_json())
        for key, url in links_of_run(ref, OciHook(self.conn_id).access).items():
            ti.xcom_push(key=key, value=url)


def _new_search(job: TrainingJob, began: float, deadline: float | None) -> CapacitySearch | None:
    from airflow_provider_ocidist.capacity import CapacitySearch

    if not job.limits.capacity_timeout:
        return None
    give_up_at = began + job.limits.capacity_timeout
    return CapacitySearch(give_up_at if deadline is None else min(give_up_at, deadline))


def _search_in(value: Mapping[str, Any] | None) -> CapacitySearch | None:
    from airflow_provider_ocidist.capacity import CapacitySearch

    return CapacitySearch(**value) if value else None


def _failure(cause: Cause, message: str) -> Failure:
    from airflow_provider_ocidist.failure import Failure, remedy_of

    return Failure(cause=cause, message=message, remedy=remedy_of(cause, message))


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
