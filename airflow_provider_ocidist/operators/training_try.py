"""TrainingTry: one process of one try of a training task, from its gang's beginning to its end, or to the deferral."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowTaskTimeout, TaskDeferred

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import OpensById, now_at
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.errors import BackendError, Cause, OcidistError
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, NodeChange, Succeed, Wait
from airflow_provider_ocidist.gangs.another_gang import GangToReplace
from airflow_provider_ocidist.gangs.backoff import Backoff
from airflow_provider_ocidist.gangs.capacity import AnotherCandidate, CapacitySearch, NoCapacity
from airflow_provider_ocidist.gangs.leases import LeaseKeeper
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.gangs.task_watch import TaskWatch
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.links import JobRunLink, links_of_run
from airflow_provider_ocidist.hooks.metrics import publish_spending
from airflow_provider_ocidist.integrations.lineage import lineage_of_training
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.operators.further_gangs import FurtherGangs
from airflow_provider_ocidist.operators.gang_ending import GangEnding
from airflow_provider_ocidist.operators.job_arguments import JobArguments
from airflow_provider_ocidist.operators.outcomes import TryOutcome, failure_with_remedy
from airflow_provider_ocidist.operators.task_jobs import TaskConnection, TaskJob
from airflow_provider_ocidist.triggers.training import CAN_KILL, DistributedTrainingTrigger, PauseTrigger

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

LASTED = "lasted"
"""Key of the seconds that a try will have lasted when a pause of its search for machines is over."""

RECORD_WITHIN = 60.0
"""Seconds for which a task that could defer waits on its worker until its gang is recorded in the work directory."""


class TrainingOperator(Protocol):
    """What `TrainingTry` needs of its operator, which Airflow resumes by the methods `resume` and `ask_again`."""

    conn_id: str
    deferrable: bool
    poll_interval: float
    retries: int | None
    execution_timeout: timedelta | None
    outlets: Any

    @property
    def log(self) -> TaskLog: ...

    def job_arguments(self, context: Context) -> JobArguments:
        """Return the rendered arguments. Raises JobFileError and AirflowFailException."""

    def render_template(self, content: Any, context: Any) -> Any: ...


@dataclass(kw_only=True, eq=False)
class TrainingTry:
    """One process of one try of a training task: begins or adopts the gang, waits or defers, and ends it."""

    operator: TrainingOperator
    context: Context
    stop: StopFlag
    """Flag that is set when the task is killed."""
    connection: TaskConnection
    task_job: TaskJob
    publishes_checkpoint: bool
    """Whether the job is one that trains."""
    outcome: TryOutcome = field(init=False)
    ending: GangEnding = field(init=False)
    _ref: RunRef | None = field(init=False, default=None)
    _said_why_it_waits: bool = field(init=False, default=False)
    _records_until: float | None = field(init=False, default=None)
    """Time from which an unrecorded gang does not keep the task from deferring, by `time.monotonic`."""
    _begun_at: float | None = field(init=False, default=None)
    """Unix time at which the try began, by this machine's clock; None: it is known by another worker's only."""

    def __post_init__(self) -> None:
        self._log = self.operator.log
        self._may_defer = self.operator.deferrable
        self._try_number: int = self.context["ti"].try_number
        further = FurtherGangs(self._try_number, self._read_job, self.connection, self._log)
        self.outcome = TryOutcome(self.context, self.task_job, self.connection, further, self._log)
        self.ending = GangEnding(self._try_number, self.stop, self.connection, self._log)

    # entry points of a process

    def train(self) -> dict[str, Any]:
        """Adopt or create the gang, wait for its end, and return the result."""
        self._begun_at = time.time()
        return self._one_gang_after_another(self._begin)

    def ask_again(self) -> dict[str, Any]:
        """Submit again after a pause without capacity."""
        return self._one_gang_after_another(self._begin)

    def take_over(self, search: Mapping[str, Any]) -> None:
        """Take over the search for machines from an earlier process, and the time that its try has lasted so far."""
        now = time.time()
        self.outcome.search = CapacitySearch.kept(search, now)
        if LASTED in search:
            self._begun_at = now - search[LASTED]

    def resume(self, record: RunRecord) -> dict[str, Any]:
        """Continue after the trigger's event."""
        return self._one_gang_after_another(lambda: self._supervise(record, goes_on=True))

    def go_on_here(self) -> dict[str, Any]:
        """Continue on this worker after the trigger has failed, and lost the record of the gang or of the search."""
        self._may_defer = False
        ref = task_context.created(self.context)
        if ref is None:
            self._log.warning("no run has been created; asking for one from this worker")
            with as_airflow_errors():
                self.outcome.search = self._search_of_try()
            return self.ask_again()
        self._log.warning("waiting for %s on this worker from here", ref.key.name)
        record = self._recovered_record(ref)
        try:
            self.outcome.search = self._search_of_try()
        except (OcidistError, OSError) as error:
            # The run continues all the same, and this task has to wait for it.
            self._log.warning(
                "no new request after a lack of capacity, since the job cannot be read: %s", error
            )
        return self.resume(record)

    def end_too_late(self) -> None:
        """End the gang because the task's deferral timed out."""
        ref = task_context.created(self.context)
        if ref is None:
            return
        why = f"{ref.key.name}: ended because its task's deferral timed out"
        self.ending.give_up(self.ending.backend_of(ref), ref, AirflowTaskTimeout(why))
        self.outcome.publish_failure(failure_with_remedy(Cause.DEADLINE, why))

    def kill_from_handler(self) -> None:
        """End the gang of this process, if there is one. Takes no lock: see `gangs.kills`."""
        self.ending.kill_from_handler()

    def lineage(self, job: TrainingJob, plan: Plan) -> OperatorLineage[Any, Any]:
        """Return what the task reads and has written so far, for OpenLineage."""
        page = None
        if self._ref is not None:
            links = links_of_run(self._ref, self.connection.access_to(self._ref))
            page = links.get(JobRunLink.xcom_key)
        return lineage_of_training(job, plan, self._ref, self.outcome.result, self.outcome.failure, page)

    # one gang after the other

    def _one_gang_after_another(self, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        while True:
            try:
                return work()
            except NoCapacity as none:
                self._wait_for_capacity(none)
                work = self._begin
            except AnotherCandidate as refused:
                self._leave_gang(f"{refused}; asking for another candidate")
                work = self._begin
            except GangToReplace as lost:
                # It may take as long to find machines as it might at first.
                self.outcome.search = None
                self._leave_gang(f"{lost}; creating another gang in this try, which resumes the training")
                work = self._begin

    def _leave_gang(self, why: str) -> None:
        # The gang has ended: a kill has nothing more to end.
        self._ref = None
        self._log.warning("%s", why)
        if self.stop.is_set():
            raise AirflowFailException("the task was killed between two gangs; nothing runs")

    def _wait_for_capacity(self, none: NoCapacity) -> None:
        # The gang has ended: a kill has nothing more to end.
        self.outcome.search, self._ref = none.search, None
        now = time.time()
        pause = max(0.0, none.ask_at - now)
        self._log.warning(
            "%s; asking again in %.0f s, and for %.0f s at most (limits.capacity_timeout)",
            none,
            pause,
            none.search.give_up_at - now,
        )
        if self._may_defer:
            raise TaskDeferred(
                trigger=PauseTrigger(none.ask_at, pause),
                method_name="ask_again",
                # As seconds: the next worker has another clock.
                kwargs={"search": {**none.search.after(pause, now), LASTED: now + pause - self._began}},
            )
        if self.stop.wait(pause):
            raise AirflowFailException("the task was killed while it waited for machines; nothing runs")

    # the beginning

    def _read_job(self) -> TrainingJob:
        render = self.operator.render_template
        return self.task_job.job(
            self.operator.job_arguments(self.context), lambda text: render(text, self.context)
        )

    def _begin(self) -> dict[str, Any]:
        """Adopt or create the gang, and wait for its end."""
        with self.ending.of_what_is_begun():
            return self._supervise(self._gang_of_try(), announced=False)

    def _gang_of_try(self) -> RunRecord:
        """Adopt or create the gang, and return its record."""
        with as_airflow_errors(), self.outcome.publishing_failure():
            key = task_context.key_of(self.context)
            notes = self.context.get("task_state_store")
            with self.ending.of_earlier_tries(key, self.ending.cancel_noted(notes)):
                job = self._read_job()
                backend = self.connection.backend(job.backend.kind)
                self.outcome.search = self.outcome.search or _new_search(job, time.time(), self._deadline)
                self._note_data_versions(job)
            with self.task_job.with_code(job) as complete:
                plans = self.task_job.plans(complete)
                gang = GangSubmitter(
                    backend,
                    complete,
                    self._log,
                    notes,
                    self.stop,
                    plans=plans,
                    reach=self.connection.backend,
                )
                record = self._created_or_adopted(gang, key, self._deadline)
                return replace(record, task_began=self._began + _ahead(beside(backend, record.ref.conn_id)))

    def _search_of_try(self) -> CapacitySearch | None:
        """Return this try's search for machines, as if it had begun with the try. Raises JobFileError."""
        return _new_search(self._read_job(), self._began, self._deadline)

    def _note_data_versions(self, job: TrainingJob) -> None:
        """Publish the versions of the inputs for the outlets, if the task trains and has any."""
        if self.publishes_checkpoint and self.operator.outlets:
            task_context.note_data_versions(
                job, self.connection.hook(job.backend.kind), self.context, self._log
            )

    def _created_or_adopted(self, gang: GangSubmitter, key: RunKey, deadline: float | None) -> RunRecord:
        """Adopt or create the gang and return its record; wait out errors that may pass while a gang may be running."""
        backoff = Backoff(self.stop, self._log)
        with (
            self.ending.of_all_tries_when_killed(gang, key),
            self.ending.of_earlier_tries(key, gang.cancel_earlier),
            gang.ended_if_interrupted(key, self._try_number),
        ):
            while True:
                try:
                    return gang.adopt_or_submit(key, deadline, self._try_number, self.operator.retries)
                except BackendError as error:
                    if not backoff.is_worth_another(error, self._try_number):
                        raise
                    backoff.take(error, self.connection.reconnect)

    def _recovered_record(self, ref: RunRef) -> RunRecord:
        """Return a record of the gang, from the service and the published reference: the trigger has lost its own."""
        backend = self.ending.backend_of(ref)
        try:
            opened = OpensById.of(backend).open(ref.job_id)
            known = replace(opened.ref, candidate=ref.candidate, price=ref.price, conn_id=ref.conn_id)
            record = replace(opened, ref=known)
        except BackendError as error:
            self._log.warning(
                "the record of this gang is lost, and its job cannot be read: no limit of the job applies any more, no "
                "lost node is replaced (restarts), and the gang does not go on with fewer nodes (min_nodes): %s",
                error,
            )
            since = (ref.submitted_at,) * ref.nodes
            record = RunRecord(ref=ref, lease=ref.lease, logs_since=since)
        ahead, there = _ahead(backend), task_context.began(self.context)
        if there is not None:
            self._begun_at = there - ahead
        deadlines = [record.deadline, None if self._deadline is None else self._deadline + ahead]
        return replace(
            record,
            deadline=min((time for time in deadlines if time is not None), default=None),
            task_began=there,
        )

    @property
    def _began(self) -> float:
        """The Unix time at which this try began, by this machine's clock as far as that is known."""
        if self._begun_at is not None:
            return self._begun_at
        # The first worker of the try has reported it to Airflow, by its own clock.
        began: float = self.context["ti"].start_date.timestamp()
        return began

    @property
    def _deadline(self) -> float | None:
        """The Unix time at which this try ends; Airflow forgets `execution_timeout` while a task is deferred."""
        limit = self.operator.execution_timeout
        return None if limit is None else self._began + limit.total_seconds()

    def _take_over_times(self, watch: TaskWatch) -> None:
        """Take over an earlier process's times by this machine's clock, once the service has answered with its own."""
        if watch.status is None:
            return
        ahead, there = _ahead(watch.backend), watch.record.task_began
        if there is not None:
            self._begun_at = there - ahead
        if self.outcome.search is not None:
            self.outcome.search = self.outcome.search.here(ahead)

    # the wait

    def _supervise(
        self, record: RunRecord, *, announced: bool = True, goes_on: bool = False
    ) -> dict[str, Any]:
        """Wait until the gang has ended, and return the result.

        `announced`: the gang is published already; `goes_on`: an earlier process has written to this try's log.
        """
        self._ref = record.ref
        with self.outcome.publishing_failure():
            backend = self.ending.backend_of(record.ref)
            watch = TaskWatch(backend, record, self._log, self._try_number)
            watch.reconnect = partial(self.connection.reconnect, record.ref)
            owner = task_context.trigger_owner(self.context)
            watch.spending_log.publish = lambda spending: publish_spending(spending, owner)
            with self.ending.of_what_is_given_up(watch):
                self.ending.arm(backend, record.ref)
                self.ending.leave_if_killed()
                if not announced:
                    self.outcome.announce(record.ref)
                    if self._may_defer and record.task_began is not None:
                        task_context.note_beginning(self.context, record.task_began)
                # An adopted gang was submitted by another try, perhaps with other secrets than the job has now.
                task_context.mask_secrets_of_nodes(backend, record.ref)
                if goes_on:
                    watch.go_on()
                return self._until_end(watch)

    def _until_end(self, watch: TaskWatch) -> dict[str, Any]:
        with LeaseKeeper().keeping(watch):
            while True:
                watch.backend.gangs.record_again(watch.record.ref)
                action = watch.look(time.time())
                self._take_over_times(watch)
                if not isinstance(action, Succeed):
                    # A killed task sees its own cancel.
                    self.ending.leave_if_killed()
                match action:
                    case Wait():
                        self._wait(watch)
                    case Cancel(ending):
                        if not watch.end(ending):
                            self._pause(watch)
                    case NodeChange() as change:
                        self._change(watch, change)
                    case Succeed(warning):
                        return self._succeed(watch, warning)
                    case Fail(cause, message):
                        self.outcome.fail(watch, cause, message)

    def _change(self, watch: TaskWatch, change: NodeChange) -> None:
        """Replace lost nodes, or let the others train on without; until that is seen, this process does not defer."""
        if not change_nodes(watch, change, self._log):
            self._pause(watch)
            return
        self._ref = watch.record.ref
        self.ending.arm(watch.backend, self._ref)
        self.outcome.publish_run(self._ref)

    def _succeed(self, watch: TaskWatch, warning: str | None) -> dict[str, Any]:
        result = self.outcome.succeed(watch, warning)
        if self.publishes_checkpoint:
            self.outcome.publish_training(result, watch.record.ref, self.operator.outlets)
        return result

    def _wait(self, watch: TaskWatch) -> None:
        if not self._may_defer:
            self._pause(watch)
        elif not CAN_KILL:
            self._say_why_it_waits()
            self._pause(watch)
        elif self._still_records(watch):
            self._pause(watch)
        else:
            self._defer(watch)

    def _still_records(self, watch: TaskWatch) -> bool:
        """Whether the gang is to be recorded yet: the thread that does it ends with the process that defers."""
        if watch.backend.gangs.is_recorded(watch.record.ref):
            return False
        now = time.monotonic()
        if self._records_until is None:
            self._records_until = now + RECORD_WITHIN
        return now < self._records_until

    def _pause(self, watch: TaskWatch) -> None:
        self.stop.wait(watch.pause(self.operator.poll_interval))
        self.ending.leave_if_killed()

    def _say_why_it_waits(self) -> None:
        if not self._said_why_it_waits:
            self._log.warning(
                "waiting on this worker in spite of deferrable=True: before Airflow 3.3 a trigger is not informed that "
                "its task was killed, and the nodes would run on"
            )
        self._said_why_it_waits = True

    def _defer(self, watch: TaskWatch) -> NoReturn:
        record = watch.hand_over()
        search = self.outcome.search
        raise TaskDeferred(
            trigger=DistributedTrainingTrigger(
                conn_id=self.operator.conn_id,
                record=record.to_json(),
                owner=task_context.trigger_owner(self.context),
                poll_interval=self.operator.poll_interval,
            ),
            method_name="resume",
            # Left out if None: a worker of an earlier version does not accept it.
            kwargs={"search": search.handed_over(_ahead(watch.backend))} if search else None,
        )


def _ahead(backend: Backend) -> float:
    """Return by how many seconds the service's clock is ahead of this machine's, as far as it has answered."""
    return now_at(backend) - time.time()


def _new_search(job: TrainingJob, began: float, deadline: float | None) -> CapacitySearch | None:
    """Return a search that ends with `limits.capacity_timeout` or the deadline; None: the job does not ask again."""
    if not job.limits.capacity_timeout:
        return None
    give_up_at = began + job.limits.capacity_timeout
    return CapacitySearch(give_up_at if deadline is None else min(give_up_at, deadline))
