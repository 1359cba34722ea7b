"""Whether a trigger's lines are in its task's log, by Airflow's own channel and its own files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from airflow_provider_ocidist.triggers import log_channel
from tests.triggers.supervised import reading, supervised

pytestmark = pytest.mark.since_airflow("3.3", "the operator defers")


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_channel, "PATIENCE", 0.1)


def log_and_ask() -> bool:
    structlog.get_logger("trigger").info("a line")
    return log_channel.is_written()


def test_lines_that_the_supervisor_has_not_read_are_not_in_the_log() -> None:
    with supervised(log_and_ask) as supervisor:
        assert supervisor.answer() is False


def test_lines_that_it_has_read_are_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_channel, "PATIENCE", 30.0)
    with supervised(log_and_ask) as supervisor, reading(supervisor):
        assert supervisor.answer() is True
    assert b'"a line"' in supervisor.read


def test_lines_that_a_killed_supervisor_had_not_read_are_not_in_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_channel, "PATIENCE", 30.0)
    with supervised(log_and_ask) as supervisor:
        supervisor.wait_for_a_line()
        supervisor.logs.close()
        assert supervisor.answer() is False


def test_where_no_supervisor_is_in_between_lines_are_in_the_log_at_once() -> None:
    structlog.get_logger("trigger").info("a line")
    assert log_channel.is_written()


def test_the_part_of_the_first_deferral_is_there_after_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.jobs.triggerer_job_runner import TriggerLoggingFactory

    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path))
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1)
    name = "dag_id=d/run_id=r/task_id=t/attempt=1.log"

    def defer(text: str) -> None:
        part = TriggerLoggingFactory(log_path=f"{name}.trigger.7.log", ti=ti)  # type: ignore[arg-type]  # has enough
        part([lambda _logger, _level, event: event["event"].encode()]).info(text)
        log_channel.set_aside(ti)
        part.close()

    defer("first")
    defer("second")
    # As Airflow finds the parts of a log.
    found = sorted(tmp_path.glob(f"{name}*"))
    assert [path.read_text() for path in found] == ["first\n", "second\n"]
    assert all(path.suffix == ".log" for path in found)
