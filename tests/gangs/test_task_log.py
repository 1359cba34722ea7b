"""Warnings of a waiting process: an outage that lasts many looks is one line a minute."""

from __future__ import annotations

import logging

import pytest

from airflow_provider_ocidist.gangs.task_log import SAME_WARNING_AFTER, RareWarnings, logs_at


def test_the_same_warning_is_logged_once_a_minute_whatever_the_id_of_its_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = RareWarnings(logging.getLogger("test"))
    for number in range(int(SAME_WARNING_AFTER) + 1):
        warnings.warn("%s; will ask again", OSError(f"no answer (request {number})"), 1000.0 + number)
    assert caplog.messages == [
        "no answer (request 0); will ask again",
        "no answer (request 60); will ask again",
    ]


def test_another_warning_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RareWarnings(logging.getLogger("test"))
    for text in ("no answer", "refused", "no answer"):
        warnings.warn("%s", OSError(text), 1000.0)
    assert caplog.messages == ["no answer", "refused", "no answer"]


def test_an_error_without_words_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RareWarnings(logging.getLogger("test"))
    for now in (1000.0, 1010.0):
        warnings.warn("the connection could not be read again: %s", OSError(), now)
    assert caplog.messages == ["the connection could not be read again: "]


@pytest.mark.parametrize("level", range(0, 60, 5))
def test_a_line_is_logged_at_the_highest_level_that_it_reaches(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(logging.DEBUG)
    logs_at(logging.getLogger("test"), level)("%s ends", "node 1")
    (record,) = caplog.records
    assert record.getMessage() == "node 1 ends"
    reached = [each for each in (logging.INFO, logging.WARNING, logging.ERROR) if each <= level]
    assert record.levelno == max(reached, default=logging.INFO)
