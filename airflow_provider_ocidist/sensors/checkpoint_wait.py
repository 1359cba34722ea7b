"""CheckpointWait: looks below a URI for a complete checkpoint."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.kept_evidence import Kept
from airflow_provider_ocidist.sensors.sensor_wait import SensorWait
from airflow_provider_ocidist.triggers.storage import CheckpointLook, CheckpointTrigger


class CheckpointWait(SensorWait):
    """The wait for a checkpoint with a step above `after_step`."""

    def __init__(
        self, uri: str, conn_id: str, after_step: int, *, poke_interval: float, log: TaskLog
    ) -> None:
        self._place = (uri, conn_id, after_step)
        self._poke_interval = poke_interval
        self._log = log
        after = f" after step {after_step}" if after_step >= 0 else ""
        self.awaited = f"no whole checkpoint{after} found below {uri}"
        self._looking: CheckpointLook | None = None

    def trigger(self) -> CheckpointTrigger:
        uri, conn_id, after_step = self._place
        return CheckpointTrigger(
            uri=uri, conn_id=conn_id, after_step=after_step, poll_interval=self._poke_interval
        )

    def begin(self, kept: Kept) -> None:
        if self._looking is None:
            self._looking = CheckpointLook(*self._place, self._log)
            self._looking.go_on_after(kept.unanswered, self._poke_interval)

    def resume(self) -> None:
        """Look here after a trigger that could not, so that the error is in the task's log."""
        self._looking = CheckpointLook(*self._place, self._log, is_evident=True)

    def look(self) -> dict[str, Any] | None:
        assert self._looking is not None
        try:
            return self._looking.look()
        except (BackendError, StorageError) as error:
            raise AirflowFailException(str(error)) from error

    @property
    def kept(self) -> Kept:
        assert self._looking is not None
        return Kept(unanswered=self._looking.unanswered)

    def result_of(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
        return found
