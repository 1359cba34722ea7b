"""CheckpointWait: looks below a URI for a complete checkpoint."""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_ocidist.errors import BackendError, StorageError, Unopenable
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.kept_evidence import Kept
from airflow_provider_ocidist.sensors.sensor_wait import SensorWait
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.triggers.storage import CheckpointLook, CheckpointTrigger


def whole_uri(value: object) -> str:
    """Return a sensor's argument `uri`. Raises AirflowFailException for one below which nothing can ever appear."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(text, str) or text in ("", "None"):
        why = (
            f"is {text!r}: its template has found nothing"
            if text
            else "is empty: its template has found nothing"
        )
        raise AirflowFailException(f"uri {why}; pass checkpoints_uri of the XCom run of the training")
    try:
        location = locations.parse(text)
    except Unopenable as error:
        raise AirflowFailException(f"uri names no place: {error}") from error
    if location.kind == "local" and not os.path.isabs(location.path):  # noqa: PTH117 (a path of text, as URIs are)
        raise AirflowFailException(
            f"uri is the relative path {text!r}: it would be a folder of this worker; pass the whole URI"
        )
    return text


def step_of(value: object) -> int:
    """Return a sensor's argument `after_step`. Raises AirflowFailException for one that is no number."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]  # whatever a template gives
    except (ArithmeticError, TypeError, ValueError) as error:
        raise AirflowFailException(
            f"after_step is {value!r}: must be a whole number; -1 accepts any step, and a template needs a default, "
            "as {{ params.step or -1 }}"
        ) from error


class CheckpointWait(SensorWait):
    """The wait for a checkpoint with a step above `after_step`."""

    def __init__(
        self, uri: object, conn_id: str, after_step: object, *, poke_interval: float, log: TaskLog
    ) -> None:
        """Raises AirflowFailException where no checkpoint can ever be found."""
        uri, after_step = whole_uri(uri), step_of(after_step)
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
            self._looking = CheckpointLook(
                *self._place, self._log, has_looked=kept.has_looked, defects=kept.defects
            )
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
        looking = self._looking
        return Kept(unanswered=looking.unanswered, has_looked=looking.has_looked, defects=looking.defects)

    def result_of(self, found: dict[str, Any] | None) -> dict[str, Any] | None:
        return found
