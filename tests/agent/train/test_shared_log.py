"""Marks of lines in a log that several nodes share."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.output_masking import MaskingFormatter
from airflow_provider_ocidist.agent.train.program_output import ProgramOutput
from airflow_provider_ocidist.agent.train.shared_log import (
    AgentFormatter,
    LineMarker,
    MarkingFormatter,
    level_of,
    unmarked,
)


@pytest.mark.parametrize(
    "pieces, written",
    [
        ([b"a\nb\n", b"c\n"], b"[node 3] a\n[node 3] b\n[node 3] c\n"),
        ([b"a", b"b\nc", b"\n"], b"[node 3] ab\n[node 3] c\n"),
        ([b"\n\n", b"", b"a"], b"[node 3] \n[node 3] \n[node 3] a"),
        ([b"10%\r20%\r", b"30%\n"], b"[node 3] 10%\r20%\r30%\n"),
    ],
    ids=["whole lines", "broken lines", "empty lines", "a bar of progress"],
)
def test_every_line_is_marked_once_however_it_comes(pieces: list[bytes], written: bytes) -> None:
    marker = LineMarker(3)
    assert b"".join(map(marker, pieces)) == written


def test_what_is_marked_is_read_back() -> None:
    assert unmarked("[node 12] step 1") == (12, "step 1")
    assert unmarked("step [node 12] 1") == (None, "step [node 12] 1")


def test_every_line_of_what_the_agent_says_is_marked() -> None:
    record = logging.LogRecord("ocidist", logging.INFO, "", 0, "stacks:\n%s", ("a\nb",), None)
    text = MarkingFormatter(1).format(record)
    assert text.splitlines() == ["[node 1] ocidist: stacks:", "[node 1] a", "[node 1] b"]


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL])
@pytest.mark.parametrize(
    "formatter", [AgentFormatter(), MarkingFormatter(3), MaskingFormatter(AgentFormatter(), ["secret"])]
)
def test_the_level_of_what_the_agent_says_is_read_back(formatter: logging.Formatter, level: int) -> None:
    record = logging.LogRecord("ocidist", level, "", 0, "the secret: 3 left", (), None)
    _, text = unmarked(formatter.format(record))
    assert level_of(text) == level
    assert ("WARNING" in text, "ERROR" in text) == (level == logging.WARNING, level == logging.ERROR)


@pytest.mark.parametrize(
    "text", ["ERROR: no data", "the ocidist: ERROR: none", "ocidist: ERRORS: 3", "ocidist: 3 errors", ""]
)
def test_what_a_program_prints_has_no_level(text: str) -> None:
    assert level_of(text) == logging.INFO


def test_marks_are_for_the_log_alone_and_not_for_the_diagnosis(tmp_path: Path) -> None:
    output = ProgramOutput(ProgressMeter(tmp_path), mark_as=2)
    source, into = os.pipe()
    outside, sink = os.pipe()
    pump = threading.Thread(target=output.pump, args=(source, sink))
    pump.start()
    os.write(into, b"step 1/2\nTraceback\n")
    os.close(into)
    pump.join()
    os.close(sink)
    with os.fdopen(outside, "rb") as log:
        assert log.read() == b"[node 2] step 1/2\n[node 2] Traceback\n"
    os.close(source)
    assert output.end == "step 1/2\nTraceback\n"
    assert output.meter.progress.step == 1
