"""Sensors: wait for a run that another task started, or for a checkpoint."""

from __future__ import annotations

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
)

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.hooks.oci import OciHook
from airflow_provider_ocidist.hooks.settings import is_deferrable

# What only a running task needs is imported there, once: the object that waits.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.sensors.checkpoint_wait import CheckpointWait
    from airflow_provider_ocidist.sensors.run_wait import RunWait
    from airflow_provider_ocidist.sensors.sensor_wait import SensorWait


class Waiting(BaseSensorOperator):
    """The base of both sensors: the same outcome in poke, reschedule and deferrable, the same time-outs."""

    def __init__(self, *, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = is_deferrable(deferrable)
        self._result: dict[str, Any] | None = None

    @property
    @abstractmethod
    def _wait(self) -> SensorWait:
        """What waits in this process; made when Airflow has rendered the arguments."""

    def poke(self, context: Context) -> bool:
        keeps = self.reschedule and not self.deferrable
        notes = context.get("task_state_store") if keeps else None
        self._result = self._wait.poke(notes, getattr(context.get("ti"), "try_number", 1))
        return self._result is not None

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
                raise self._skip_if_soft(self._too_late())
            self.defer(trigger=self._wait.trigger(), method_name="resume", timeout=timedelta(seconds=left))
        return self._result

    def _poke_as_airflow_does(self, context: Context) -> bool:
        """Look once; handle errors as BaseSensorOperator.execute does."""
        try:
            return bool(self.poke(context))
        except (AirflowSensorTimeout, AirflowTaskTimeout, AirflowFailException) as error:
            raise self._skip_if_soft(error) from error
        except AirflowSkipException:
            raise
        except Exception as error:
            if self.silent_fail:
                self.log.exception("unexpected error; looking again")
                return False
            if self.never_fail:
                raise AirflowSkipException(f"{error}; skipped (never_fail)") from error
            raise

    def _skip_if_soft(self, error: BaseException) -> BaseException:
        """Return what to raise for an error: a skip where the sensor may not fail."""
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
            return AirflowTaskTimeout(f"{self._wait.awaited} within {patience:g} s (execution_timeout)")
        return AirflowSensorTimeout(f"{self._wait.awaited} within {patience:g} s (timeout)")


class DistributedTrainingSensor(Waiting):
    """Wait until a run has succeeded; never ends it. Returns the same result as the operator that started it.

    If the run has failed, was ended or deleted, this task fails for good, or skips with `soft_fail`: it follows this
    one attempt, and a retry of the training task is another run. It does not renew the lease of a run that its own
    task has left (`limits.lease`).

    :param run: the `run` XCom of a DistributedTrainingOperator in another DAG, a mapping or text, as
        `{{ ti.xcom_pull(dag_id=..., run_id=..., task_ids="train", key="run") }}`
    :param conn_id: Airflow connection of the run's backend
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

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the trigger has seen the run end."""
        self._wait.resume(event)
        return self._defer_unless_done(context)

    @cached_property
    def _wait(self) -> RunWait:
        from airflow_provider_ocidist.sensors.run_wait import RunWait

        return RunWait(
            self.run,
            self.conn_id,
            require_checkpoint=self.require_checkpoint,
            poke_interval=self.poke_interval,
            log=self.log,
        )


class CheckpointSensor(Waiting):
    """Wait for a complete checkpoint below a URI; returns its uri, step and loss.

    :param uri: the folder that holds a run's checkpoints: `checkpoints_uri` of the XCom `run` of its task; the task
        fails at once for a relative path, and for a template that has found nothing
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

    def resume(self, context: Context, event: dict[str, Any] | None) -> Any:
        """Return the trigger's result; if it could not look, look here, so that the error is in the task's log."""
        self._result = event
        if event is None:
            self._wait.resume()
        return event or self._defer_unless_done(context)

    @cached_property
    def _wait(self) -> CheckpointWait:
        from airflow_provider_ocidist.sensors.checkpoint_wait import CheckpointWait

        place = self.uri, self.conn_id, self.after_step
        return CheckpointWait(*place, poke_interval=self.poke_interval, log=self.log)
