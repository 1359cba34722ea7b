"""A try of a task on a service in memory: the notes that it saves in Airflow, and what earlier tries have recorded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.canceller import LONGEST_PAUSE
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.run import (
    RunKey,
    RunRecord,
    RunRef,
)
from tests.service_in_memory import Model
from tests.training_jobs import a_job

LOG = logging.getLogger("test")


class Notes(dict[str, Any]):
    """A task state store; `log` has all that was written into it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log: list[Any] = []

    def set(self, key: str, value: Any) -> None:
        self[key] = value
        self.log.append(value)

    @property
    def attempts(self) -> list[Attempt]:
        return [Attempt.from_json(each) for each in self[NOTE]["attempts"]]


def without_waiting(pause: Callable[..., None]) -> Callable[..., None]:
    class Now:
        def __init__(self, event: threading.Event) -> None:
            self.event = event

        def wait(self, seconds: float) -> bool:
            assert 0 < seconds <= LONGEST_PAUSE
            return self.event.is_set()

    def at_once(self: Any, *waited: float) -> None:
        event, self._stop = self._stop, Now(self._stop)
        try:
            pause(self, *waited)
        finally:
            self._stop = event

    return at_once


def submit(
    model: Model,
    key: RunKey,
    *,
    notes: Notes | None = None,
    number: int = 1,
    job: TrainingJob | None = None,
    stop: threading.Event | None = None,
    retries: int | None = None,
    deadline: float | None = None,
) -> RunRecord:
    gang = GangSubmitter(model, job or a_job(), LOG, notes, stop or threading.Event())
    return gang.adopt_or_submit(key, deadline, number, retries)


def end(succeeded: bool, number: int = 1) -> End:
    return End(succeeded=succeeded, try_number=number)


def recorded(model: Model, made: RunRef, /, **fields: Any) -> Attempt:
    """Record an attempt as its try has left it."""
    place = Place(
        backend="model", run_dir=made.run_dir, compartment_id=made.compartment_id, region=model.region
    )
    found = Attempt(**{"key": made.key, "place": place, "ref": made, **fields})
    model.recorded.append(found)
    return found
