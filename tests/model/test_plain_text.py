"""What programs print, as databases and readers of JSON take it."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.plain_text import plain_text, plain_texts, strict_json
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart

REFUSED = "\0\ud800\udbff\udc00\udfff"
TAKEN = "abc\n\t\x1b\ufffd\u00e9\u4e2d\U0001f600"


def is_plain(text: str) -> bool:
    return "\0" not in text and text.encode().decode() == text


@pytest.mark.parametrize("seed", range(10))
def test_only_what_no_database_takes_is_replaced(seed: int) -> None:
    dice = random.Random(seed)
    text = "".join(dice.choices(REFUSED + TAKEN, k=200))
    plain = plain_text(text)
    assert is_plain(plain)
    assert len(plain) == len(text)
    assert plain == "".join(each if each in TAKEN else "\ufffd" for each in text)


def test_texts_are_replaced_wherever_they_stand_in_a_value() -> None:
    value = {"a\0": ["\0", ("x", 1, None, True, 1.5)], "b": {"c": "\ud800"}}
    assert plain_texts(value) == {"a\ufffd": ["\ufffd", ["x", 1, None, True, 1.5]], "b": {"c": "\ufffd"}}


def test_numbers_that_json_does_not_have_are_null() -> None:
    value: Any = {"loss": math.nan, "losses": [[1, math.inf], (2, -math.inf), [3, 0.5]], "text\0": "\0"}
    assert strict_json(value) == {
        "loss": None,
        "losses": [[1, None], [2, None], [3, 0.5]],
        "text\ufffd": "\ufffd",
    }


def a_report(text: str) -> NodeReport:
    lost = Restart(cause=Cause.NODE, message=text, rank=1)
    return NodeReport(
        rank=0,
        phase=Phase.DONE,
        address="a",
        started_at=1.0,
        heartbeat_at=2.0,
        message=text,
        tail=text,
        restarts=(lost,),
    )


@pytest.mark.parametrize("seed", range(10))
def test_what_a_program_prints_is_read_from_a_report_as_plain_text(seed: int) -> None:
    printed = random.Random(seed).randbytes(400).decode(errors="surrogateescape")
    read = NodeReport.from_json(a_report(printed).to_json())
    for text in (read.message, read.tail, read.restarts[0].message):
        assert text == plain_text(printed)


@pytest.mark.parametrize("text", ["x", "\u00e9\U0001f600\\u0000\\ud800", TAKEN])
def test_other_texts_are_read_as_they_are(text: str) -> None:
    assert NodeReport.from_json(a_report(text).to_json()) == a_report(text)
    assert json.loads(a_report(text).to_json())["message"] == text
