"""FurtherGangs: whether a try that has lost its gang may create another one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import Cause, JobFileError, Problem
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.operators.further_gangs import FurtherGangs
from tests.service_in_memory import DONE, Model
from tests.training_jobs import a_job, a_key

LOST = Restart(cause=Cause.NODE, message="node 1 was lost", step=40)
BROKEN = JobFileError([Problem("nodes", "must be a whole number")])


def of_second_try(job: TrainingJob | None, ends: Sequence[End] = ()) -> FurtherGangs:
    """Return what try 2 of a task may create after attempts with these ends; `job`: None: its file is broken."""

    def read_job() -> TrainingJob:
        if job is None:
            raise BROKEN
        return job

    backend = SimpleNamespace(gangs=SimpleNamespace(ends=lambda _: list(ends)))
    connection: Any = SimpleNamespace(backend=lambda _: backend)
    return FurtherGangs(2, read_job, connection, logging.getLogger("test"))


def a_ref() -> RunRef:
    return Model().has(a_key(), [DONE, DONE])


def an_end(try_number: int) -> End:
    return End(
        succeeded=False, failure=Restart(cause=Cause.NODE, message="lost", step=20), try_number=try_number
    )


def test_a_gang_that_has_lost_a_machine_is_created_anew_as_often_in_a_try_as_the_job_says() -> None:
    job = a_job(restarts={"node": 1})
    assert of_second_try(job).why_none(a_ref(), LOST) is None
    assert of_second_try(job, [an_end(1)]).why_none(a_ref(), LOST) is None
    assert of_second_try(job, [an_end(2)]).why_none(a_ref(), LOST) == "all 1 of restarts.node are used"


@pytest.mark.parametrize("restarts, cause", [({}, Cause.NODE), ({"node": 1, "program": 1}, Cause.USER)])
def test_no_message_says_why_none_is_created_where_none_was_to_be_expected(
    restarts: dict[str, int], cause: Cause
) -> None:
    failure = Restart(cause=cause, message="failed", step=40)
    assert of_second_try(a_job(restarts=restarts)).why_none(a_ref(), failure) == ""


def test_none_is_created_where_the_job_cannot_be_read_any_more(caplog: pytest.LogCaptureFixture) -> None:
    unreadable = of_second_try(None)
    assert "must be a whole number" in str(unreadable.why_none(a_ref(), LOST))
    assert not unreadable.note_refusal(a_ref(), Cause.CAPACITY, "none is free")
    assert not unreadable.lacks_capacity(a_key())
    assert "other machines that the job names cannot be looked up" in caplog.text


def test_another_candidate_is_looked_for_only_after_a_lack_of_machines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert not of_second_try(None).note_refusal(a_ref(), Cause.USER, "exit code 1")
    assert not caplog.text
