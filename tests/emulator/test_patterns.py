"""Expressions that clients write, in call filters and rules: none of them holds up the others' answers."""

from __future__ import annotations

import random
import re
import time
from contextlib import suppress

import pytest

from airflow_provider_ocidist.emulator import control_rules, patterns, recorded_calls
from airflow_provider_ocidist.emulator.faults import FaultRule, Faults
from airflow_provider_ocidist.emulator.nodes.rules import NodeKind, NodeRule, NodeRules
from tests.emulator.conftest import HTTP, Cloud

LONG = "/n/" + "a" * 4000
BACKTRACKS = ["/n/(a+)+b", "/n/(a|aa)+b", ".*a.*a.*a.*a.*a.*b", "/n/(?:a?){500}(a*)*b", "(?:(?:a|/|n)+)*b"]
"""Each of them keeps the standard library's `re` busy for longer than anybody waits."""
ATOMS = ("a", ".", "[a-z]", "/n/", r"\w", "(?=a)", "(?!b)", "[^/]", "b", r"\1", "(?<=a)", "{", ")")
TIMES = ("", "", "*", "+", "?", "{2,900}", "*?", "+?", "{1000}", "*+")


def random_expression(dice: random.Random, depth: int = 0) -> str:
    """Return an expression, or what only looks like one."""
    parts = []
    for _ in range(dice.randrange(1, 5)):
        atom = dice.choice(ATOMS)
        if depth < 4 and dice.random() < 0.4:
            atom = f"{dice.choice(('(', '(?:', '(?>'))}{random_expression(dice, depth + 1)})"
        parts.append(atom + dice.choice(TIMES))
    return dice.choice(("", "|")).join(parts)


def test_no_expression_takes_longer_than_a_moment() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(1000):
        pattern = random_expression(dice)
        began = time.thread_time()
        with suppress(patterns.PatternError):
            patterns.all_fit([pattern], [dice.choice((LONG, LONG + "b", "", "/n/x"))])
        # Of this thread's processor, not of a clock on the wall.
        assert time.thread_time() - began < 1, pattern


def test_ordinary_expressions_mean_what_they_mean_to_python() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    expressions = (
        *(
            ".*",
            "/n/.*",
            "/20190101/(jobs|jobRuns)",
            r"logging\..*",
            ".*-1",
            "GET|PUT",
            "[^/]*",
            r"\w+",
            "(?i)get",
        ),
        *("a.b", "(?:/n)?/.*", r"run-\d+", ".*[.-](us|com)", "/n/[^/]+/b"),
    )
    texts = (
        "",
        "/n/",
        "/n/x/b",
        "/20190101/jobs",
        "logging.us.com",
        "loggingXus",
        "run-1",
        "GET",
        "a\nb",
        "é",
    )
    for _ in range(500):
        pattern, text = dice.choice(expressions) + dice.choice(("", "", "?", "x?")), dice.choice(texts)
        with suppress(re.error):
            expected = re.fullmatch(pattern, text, re.ASCII) is not None
            assert patterns.all_fit([pattern], [text]) == expected, (pattern, text)


@pytest.mark.parametrize("pattern", BACKTRACKS)
def test_what_would_backtrack_is_answered_at_once(cloud: Cloud, pattern: str) -> None:
    began = time.process_time()
    cloud.control("POST", "/faults", path=pattern, status=503)
    cloud.control("POST", "/faults", path="/n/a+", status=429)
    assert HTTP.get(cloud.access.url + LONG).status_code == 429
    for text in (pattern, f"{pattern}|/n/a+"):
        answer = HTTP.get(f"{cloud.access.url}/_emulator/calls", params={"path": text})
        assert len(answer.json()) == (text != pattern)
    rules = NodeRules()
    rules.add(NodeRule(display_name=pattern, lost=True))
    assert not rules.take(NodeKind(display_name="a" * 255)).lost
    assert time.process_time() - began < 5


def test_a_thousand_rules_hold_up_a_request_for_a_moment_only() -> None:
    faults = Faults(seed=1)
    faults.add(FaultRule(path="/n/a+", latency_s=3))
    for number in range(1000):
        faults.add(FaultRule(path=f"(?:a?|.*){{100}}{number}", status=503))
    began = time.thread_time()
    assert faults.decide("GET", LONG, "x").latency_s == 3
    assert time.thread_time() - began < 2


def test_a_filter_over_many_calls_is_refused_when_it_takes_too_long(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    HTTP.get(cloud.access.url + LONG)
    monkeypatch.setattr(recorded_calls, "FILTER_S", -1)
    answer = HTTP.get(f"{cloud.access.url}/_emulator/calls", params={"path": ".*"})
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameter")
    assert "take too long" in answer.json()["message"]
    assert HTTP.get(f"{cloud.access.url}/_emulator/calls").json()


@pytest.mark.parametrize("where", ["/faults", "/nodes", "/calls"])
@pytest.mark.parametrize(
    "pattern", ["(", "a" * 1001, "[", "(?P<a>x)(?P<a", "(a{1000}){1000}", "(" * 900, "(?!a)b", r"(a)\1"]
)
def test_what_is_no_expression_is_refused(cloud: Cloud, where: str, pattern: str) -> None:
    url = f"{cloud.access.url}/_emulator{where}"
    if where == "/calls":
        answer = HTTP.get(url, params={"path": pattern})
    else:
        answer = HTTP.post(
            url, json={"path": pattern, "status": 503} if where == "/faults" else {"shape": pattern}
        )
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidParameter")
    assert "expression" in answer.json()["message"]


@pytest.mark.parametrize("where", ["/faults", "/nodes"])
def test_rules_are_not_taken_without_end(cloud: Cloud, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_rules, "MAX_RULES", 3)
    rule = {"status": 503, "path": "/none"} if where == "/faults" else {"exit_code": 1}
    url = f"{cloud.access.url}/_emulator{where}"
    assert [HTTP.post(url, json=rule).status_code for _ in range(4)] == [200, 200, 200, 400]
