"""Sensors: wait for a run that somebody else started, or for a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseSensorOperator, conf

from airflow_provider_ocidist.airflow_errors import as_airflow_errors, training_failure
from airflow_provider_ocidist.hooks import OciHook

# What only a running task needs is imported there, as in operators.py.
if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.run import RunRecord, RunRef


class DistributedTrainingSensor(BaseSensorOperator):
    """Wait until a run has succeeded; never ends it. Returns the same result as the operator that started it.

    :param run: the `run` XCom of a DistributedTrainingOperator, as a mapping or as JSON
    :param conn_id: Airflow connection of type `oci`
    :param require_checkpoint: whether a run without a checkpoint counts as failed
    :param deferrable: wait in the triggerer
    """

    template_fields: Sequence[str] = ("run", "conn_id")

    def __init__(
        self,
        *,
        run: Mapping[str, Any] | str,
        conn_id: str = OciHook.default_conn_name,
        require_checkpoint: bool = False,
        deferrable: bool | None = None,
        poke_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.run = run
        self.conn_id = conn_id
        self.require_checkpoint = require_checkpoint
        fallback = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = fallback if deferrable is None else deferrable
        self._result: dict[str, Any] | None = None

    def execute(self, context: Context) -> Any:
        if self.deferrable and not self.poke(context):
            self._defer(self._record())
        elif not self.deferrable:
            super().execute(context)
        return self._result

    def resume(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Go on after the trigger has seen the run end."""
        from airflow_provider_ocidist.run import RunRecord

        record = RunRecord.from_json(event)
        if not self._ended(record):
            self._defer(record)
        return self._result

    def poke(self, context: Context) -> bool:  # noqa: ARG002 - Airflow's signature
        return self._ended(self._record())

    def _defer(self, record: RunRecord) -> None:
        from airflow_provider_ocidist.triggers import DistributedTrainingTrigger

        self.defer(
            trigger=DistributedTrainingTrigger(
                conn_id=self.conn_id, record=record.to_json(), owner={}, poll_interval=self.poke_interval
            ),
            method_name="resume",
            timeout=timedelta(seconds=self.timeout),
        )

    def _record(self) -> RunRecord:
        from airflow_provider_ocidist.run import Expectations, RunRecord, RunRef

        # No limits: this task watches, and whoever started the run ends it.
        ref = RunRef.from_json(json.loads(self.run) if isinstance(self.run, str) else self.run)
        return RunRecord(
            ref=ref,
            expects=Expectations(checkpoint=self.require_checkpoint),
            logs_since=(time.time(),) * ref.nodes,
        )

    def _ended(self, record: RunRecord) -> bool:
        from airflow_provider_ocidist.run import TrainingResult
        from airflow_provider_ocidist.supervisor import Cancel, Fail, Succeed
        from airflow_provider_ocidist.watch import Watch

        watch = Watch(self._backend(record.ref), record, self.log)
        with as_airflow_errors():
            action = watch.look(time.time())
        match action:
            case Succeed():
                assert watch.status is not None
                self._result = TrainingResult.of(record, watch.status).to_json()
                return True
            case Fail(cause, message):
                raise training_failure(cause, message)
            case Cancel(ending):
                # A node has failed; the owner ends the others, and the outcome is not in doubt.
                raise training_failure(ending.cause, ending.message)
        return False

    @cached_property
    def _hook(self) -> OciHook:
        return OciHook(self.conn_id)

    def _backend(self, ref: RunRef) -> Backend:
        return self._hook.backend(ref.backend)


class CheckpointSensor(BaseSensorOperator):
    """Wait for a whole checkpoint below a URI; returns its uri, step and loss.

    :param uri: the folder that holds checkpoints, as a run's `checkpoints.uri`
    :param conn_id: Airflow connection of type `oci`, for `oci://` URIs
    :param after_step: wait for one of a step above this; -1 takes any
    :param deferrable: wait in the triggerer
    """

    template_fields: Sequence[str] = ("uri", "conn_id", "after_step")

    def __init__(
        self,
        *,
        uri: str,
        conn_id: str = OciHook.default_conn_name,
        after_step: int | str = -1,
        deferrable: bool | None = None,
        poke_interval: float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.uri = uri
        self.conn_id = conn_id
        self.after_step = after_step
        fallback = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = fallback if deferrable is None else deferrable
        self._found: dict[str, Any] | None = None

    def execute(self, context: Context) -> Any:
        if self.deferrable and not self.poke(context):
            self._defer()
        elif not self.deferrable:
            super().execute(context)
        return self._found

    def resume(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002 - Airflow's signature
        """Return what the trigger has found."""
        return event

    def poke(self, context: Context) -> bool:  # noqa: ARG002 - Airflow's signature
        from airflow_provider_ocidist.watchers import later_checkpoint

        with as_airflow_errors():
            self._found = later_checkpoint(self.uri, self.conn_id, int(self.after_step))
        return self._found is not None

    def _defer(self) -> None:
        from airflow_provider_ocidist.watchers import CheckpointTrigger

        self.defer(
            trigger=CheckpointTrigger(
                uri=self.uri,
                conn_id=self.conn_id,
                after_step=int(self.after_step),
                poll_interval=self.poke_interval,
            ),
            method_name="resume",
            timeout=timedelta(seconds=self.timeout),
        )
