"""docs/troubleshooting.md quotes errors that the code has, with the causes that the code gives them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from airflow_provider_ocidist.agent.diagnose.outcome import STOPPED_CODE
from airflow_provider_ocidist.agent.diagnose.symptoms import SYMPTOMS, symptom_of
from airflow_provider_ocidist.model.causes import MEANINGS
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ROW = re.compile(r"^\| `(.+?)` \| (.+?) \|", re.MULTILINE)
CAUSE = re.compile(r"`([A-Z]+)`")
VALUE = "\0"
"""Stands in a template for what is filled in."""


def rows() -> list[tuple[str, str]]:
    return ROW.findall(PAGE)


TORCHS = [(text, CAUSE.fullmatch(cause)[1]) for text, cause in rows() if CAUSE.fullmatch(cause)]
OURS = [text for text, meaning in rows() if not CAUSE.fullmatch(meaning)]


@cache
def templates() -> tuple[str, ...]:
    """Return every text in the code of ours, but not of the emulator, with a mark for each value in it."""
    files = [
        path for path in (ROOT / "airflow_provider_ocidist").rglob("*.py") if "emulator" not in path.parts
    ]
    return tuple(text for path in files for text in texts_in(ast.parse(path.read_text())))


def texts_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%(?:\.\d)?[sdfr]", VALUE, node.value)


def is_said(text: str, among: tuple[str, ...]) -> bool:
    """Whether some template reads as a text of the page, in which `...` stands for anything."""
    pattern = re.compile(".*".join(map(re.escape, text.split("..."))), re.DOTALL | re.IGNORECASE)
    return any(pattern.search(template) for template in among)


@pytest.mark.parametrize("text", OURS)
def test_an_error_on_the_page_is_one_that_the_code_has(text):
    assert is_said(text, templates())


def test_an_error_that_no_code_has_would_be_noticed():
    code = texts_in(ast.parse('a = f"the disk {x} is full: {y}"\nlog.info("%s not here after %.0f s", a, b)'))
    among = tuple(code)
    assert is_said("the disk ... is full: ...", among)
    assert is_said("... not here after ... s", among)
    assert not is_said("the disk ... is empty", among)
    assert not is_said("the drive ... is full", among)


def test_the_exit_codes_on_the_page_are_those_of_the_agent():
    shown = {int(code): cause for code, cause in re.findall(r"^\| (\d+) \| `?(\w+)`? \|", PAGE, re.MULTILINE)}
    assert shown.pop(STOPPED_CODE) == "none"
    assert shown == {row.exit_code: cause for cause, row in MEANINGS.items() if row.exit_code is not None}


@pytest.mark.parametrize("text, cause", TORCHS)
def test_an_error_of_a_library_has_the_cause_that_the_page_gives_it(text, cause):
    symptom = symptom_of(text)
    assert symptom is not None
    assert symptom.cause == cause


def test_every_error_that_is_distinguished_is_on_the_page():
    shown = {symptom.name for text, _ in rows() if (symptom := symptom_of(text))}
    assert {symptom.name for symptom in SYMPTOMS} - shown == set()


def test_the_page_is_read_as_a_whole():
    assert len(OURS) > 40
    assert len(TORCHS) > 12
