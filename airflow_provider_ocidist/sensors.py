"""Sensors: wait for a run that another task started, or for a checkpoint."""

from __future__ import annotations

import ast
import json
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    BaseSensorOperator,
    conf,
)

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.hooks.task_context import mask_secrets_of_nodes

# Imports that only a running task needs are made there, as in operators.py.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.gangs.watch import Watch
    from airflow_provider_ocidist.model.kept_evidence import Kept
    from airflow_provider_ocidist.model.run import RunRecord, RunRef
    from airflow_provider_ocidist.triggers.storage import CheckpointLook


class Waiting(BaseSensorOperator):
    """The base of both sensors: the same outcome in poke, reschedule and deferrable, the same time-outs."""

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        fallback = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = fallback if deferrable is None else deferrable
        self._result: dict[str, Any] | None = None

    @abstractmethod
    def _awaited(self) -> str:
        """Return what has not happened by the time-out, for a person."""

    @abstractmethod
    def _trigger(self) -> Any:
        """Return the trigger that waits in the triggerer."""

    def _kept(self, context: Context) -> Kept:
        """Return the refusals that earlier processes of this try met."""
        from airflow_provider_ocidist.model import kept_evidence

        notes = self._notes(context)
        return kept_evidence.NOTHING if notes is None else kept_evidence.read(notes, self._subject(context))

    def _keep(self, context: Context, kept: Kept, before: Kept) -> None:
        """Save the refusals for the next process if each look runs in its own."""
        from airflow_provider_ocidist.model import kept_evidence

        notes = self._notes(context)
        if kept != before and notes is not None:
            kept_evidence.write(notes, self._subject(context), kept)

    def _notes(self, context: Context) -> Any:
        return context.get("task_state_store") if self.reschedule and not self.deferrable else None

    def _subject(self, context: Context) -> str:
        return f"try {getattr(context['ti'], 'try_number', 1)}: {self._awaited()}"

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            super().execute(context)
            return self._result
        if self.exponential_backoff:
            self.log.warning(
                "exponential_backoff is for workers: the triggerer looks every %g s", self.poke_interval
            )
        return self._defer_unless_done(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Raise a time-out that names what was awaited; Airflow's own says only "Trigger timeout"."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSensorTimeout as error:
            raise self._too_late() from error
        except AirflowSkipException as skip:
            if isinstance(skip.__cause__, AirflowSensorTimeout):
                raise AirflowSkipException(f"{self._too_late()}; skipped (soft_fail)") from skip
            raise

    def _defer_unless_done(self, context: Context) -> Any:
        if not self._poke_as_airflow_does(context):
            left = self._seconds_left(context)
            if left <= 0:
                raise self._skip_or(self._too_late())
            self.defer(trigger=self._trigger(), method_name="resume", timeout=timedelta(seconds=left))
        return self._result

    def _poke_as_airflow_does(self, context: Context) -> bool:
        """Look once; handle errors as BaseSensorOperator.execute does."""
        try:
            return bool(self.poke(context))
        except (AirflowSensorTimeout, AirflowTaskTimeout, AirflowFailException) as error:
            raise self._skip_or(error) from error
        except AirflowSkipException:
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("will look again")
                return False
            if self.never_fail:
                raise AirflowSkipException(f"{error}; skipped (never_fail)") from error
            raise

    def _skip_or(self, error: BaseException) -> BaseException:
        if self.soft_fail or self.never_fail:
            return AirflowSkipException(f"{error}; skipped (soft_fail)")
        return error

    def _seconds_left(self, context: Context) -> float:
        """Return the seconds left to wait, over all deferrals; Airflow forgets `execution_timeout` meanwhile."""
        now = datetime.now(UTC)
        begun = context["ti"].start_date or now
        return self._patience() - float((now - begun).total_seconds())

    def _patience(self) -> float:
        own = self.execution_timeout.total_seconds() if self.execution_timeout else self.timeout
        return float(min(own, self.timeout))

    def _too_late(self) -> BaseException:
        patience = self._patience()
        if patience < self.timeout:
            return AirflowTaskTimeout(f"{self._awaited()} within {patience:g} s (execution_timeout)")
        return AirflowSensorTimeout(f"{self._awaited()} within {patience:g} s (timeout)")


class DistributedTrainingSensor(Waiting):
    """Wait until a run has succeeded; never ends it. Returns the same result as the operator that started it.

    If the run has failed, was ended or deleted, this task fails for good, or skips with `soft_fail`: it follows this
    one attempt, and a retry of the training task is another run. It does not renew the lease of a run that its own
    task has left (`limits.lease`).

    :param run: the `run` XCom of a DistributedTrainingOperator: `train.output["run"]`, a mapping, or either as text
    :param conn_id: Airflow connection of type `oci`
    :param require_checkpoint: whether a run without a checkpoint counts as failed
    :param poke_interval: seconds between two looks
    :param deferrable: wait in the triggerer
    """

    template_fields: Sequence[str] = ("run", "conn_id")

    def __init__(
        self,
        *,
        run: Mapping[str, Any] | str,
        conn_id: str = OciHook.default_conn_name,
        require_checkpoint: bool = False,
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.run = run
        self.conn_id = conn_id
        self.require_checkpoint = require_checkpoint
        self._watched: Watch | None = None

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the trigger has seen the run end."""
        from airflow_provider_ocidist.model.run import RunRecord

        self._watched = self._watch(RunRecord.from_json(event))
        return self._defer_unless_done(context)

    def poke(self, context: Context) -> bool:
        from airflow_provider_ocidist.gangs.decisions import Cancel, Fail, Replace, Succeed
        from airflow_provider_ocidist.gangs.replacements import catch_up

        kept = self._kept(context)
        if self._watched is None:
            self._watched = self._watch(self._record())
            self._watched.go_on_after(kept, self.poke_interval)
        with as_airflow_errors():
            action = self._watched.look(time.time())
        self._keep(context, self._watched.kept, kept)
        match action:
            case Succeed(warning):
                self._watched.write_the_rest()
                if warning:
                    self.log.warning("SUCCEEDED, BUT %s", warning)
                self._result = self._watched.result(warning)
                return True
            case Fail(cause, message):
                self._watched.write_the_rest()
                raise _failed(cause, message)
            case Replace():
                catch_up(self._watched, self.log)
            case Cancel(ending):
                # A node has failed; the owner ends the others, and the outcome is certain.
                raise _failed(ending.cause, ending.message)
        return False

    def _awaited(self) -> str:
        return f"the run {self._ref().key.name} has not ended"

    def _trigger(self) -> Any:
        from airflow_provider_ocidist.triggers.training import DistributedTrainingTrigger

        assert self._watched is not None
        return DistributedTrainingTrigger(
            conn_id=self.conn_id,
            record=self._watched.record.to_json(),
            owner={},
            poll_interval=self.poke_interval,
        )

    def _record(self) -> RunRecord:
        from airflow_provider_ocidist.model.job import Restarts
        from airflow_provider_ocidist.model.run import Expectations, RunRecord

        # No limits and no lease: this task only watches, and the run's owner ends it.
        ref = self._ref()
        return RunRecord(
            ref=ref,
            expects=Expectations(checkpoint=self.require_checkpoint, reports=self._has_agents(ref)),
            logs_since=(time.time(),) * ref.nodes,
            # How often its owner replaces a node is for the owner to know.
            restarts=Restarts(node=1_000_000),
        )

    def _has_agents(self, ref: RunRef) -> bool:
        """Whether every node of the run has to report; if its job cannot be read, no report is expected."""
        from airflow_provider_ocidist.backends.capabilities import OpensById

        try:
            backend = self._hook.backend(ref.backend)
            return OpensById.of(backend).open(ref.job_id).expects.reports
        except BackendError as error:
            self.log.debug("%s: its job cannot be read: %s", ref.key.name, error)
            return False

    def _ref(self) -> RunRef:
        from airflow_provider_ocidist.model.run import RunRef

        try:
            return RunRef.from_json(_mapping_in(self.run))
        except (ValueError, TypeError, SyntaxError, LookupError) as error:
            raise AirflowFailException(
                f"run is {str(self.run)[:80]!r}, which names no run ({error}): give it the XCom `run` of a training "
                'task, as run=train.output["run"]; that is there once the task has created its run'
            ) from error

    def _watch(self, record: RunRecord) -> Watch:
        from airflow_provider_ocidist.gangs.watch import Watch

        backend = self._hook.backend(record.ref.backend)
        mask_secrets_of_nodes(backend, record.ref)
        watch = Watch(backend, record, self.log)
        if backend.needs_connection:
            watch.reconnect = lambda: backend.reconnect(OciHook(self.conn_id).fields)
        return watch

    @cached_property
    def _hook(self) -> OciHook:
        return OciHook(self.conn_id)


def _failed(cause: Cause, message: str) -> AirflowFailException:
    """Return the exception that ends the wait for good: this run can no longer succeed."""
    return AirflowFailException(f"{cause}: {message}")


def _mapping_in(value: Any) -> Mapping[str, Any]:
    """Return a mapping that Jinja may have rendered as text, as Python or as JSON."""
    if isinstance(value, str):
        value = json.loads(value) if value.lstrip().startswith('{"') else ast.literal_eval(value)
    if not isinstance(value, Mapping):
        raise TypeError(f"it is of type {type(value).__name__}")
    return value


class CheckpointSensor(Waiting):
    """Wait for a complete checkpoint below a URI; returns its uri, step and loss.

    :param uri: the folder that holds a run's checkpoints: `checkpoints_uri` of the XCom `run` of its task
    :param conn_id: Airflow connection of type `oci`, for `oci://` URIs
    :param after_step: wait for one with a step above this; -1 accepts any
    :param poke_interval: seconds between two looks
    :param deferrable: wait in the triggerer
    """

    template_fields: Sequence[str] = ("uri", "conn_id", "after_step")

    def __init__(
        self,
        *,
        uri: str,
        conn_id: str = OciHook.default_conn_name,
        after_step: int | str = -1,
        poke_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.uri = uri
        self.conn_id = conn_id
        self.after_step = after_step
        self._look: CheckpointLook | None = None

    def resume(self, context: Context, event: dict[str, Any] | None) -> Any:
        """Return the trigger's result; if it could not look, look here, so that the error is in the task's log."""
        from airflow_provider_ocidist.triggers.storage import CheckpointLook

        self._result = event
        if event is None:
            self._look = CheckpointLook(
                self.uri, self.conn_id, int(self.after_step), self.log, is_evident=True
            )
        return event or self._defer_unless_done(context)

    def poke(self, context: Context) -> bool:
        from airflow_provider_ocidist.model.kept_evidence import Kept
        from airflow_provider_ocidist.triggers.storage import CheckpointLook

        kept = self._kept(context)
        if self._look is None:
            self._look = CheckpointLook(self.uri, self.conn_id, int(self.after_step), self.log)
            self._look.go_on_after(kept.unanswered, self.poke_interval)
        try:
            self._result = self._look.look()
        except (BackendError, StorageError) as error:
            raise AirflowFailException(str(error)) from error
        self._keep(context, Kept(unanswered=self._look.unanswered), kept)
        return self._result is not None

    def _awaited(self) -> str:
        after = f" after step {self.after_step}" if int(self.after_step) >= 0 else ""
        return f"no whole checkpoint{after} found below {self.uri}"

    def _trigger(self) -> Any:
        from airflow_provider_ocidist.triggers.storage import CheckpointTrigger

        return CheckpointTrigger(
            uri=self.uri,
            conn_id=self.conn_id,
            after_step=int(self.after_step),
            poll_interval=self.poke_interval,
        )
