"""One bad answer ends no waiting: what does is repeated, of one kind, and old."""

from __future__ import annotations

import random

import pytest

from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.evidence import (
    ABSENT_ANSWERS,
    ABSENT_FOR,
    ANSWERED,
    LONGEST_PAUSE,
    REFUSALS_NEEDED,
    REFUSED_AT_ALL_FOR,
    REFUSED_FOR,
    UNANSWERED_FOR,
    Absent,
    Unanswered,
)

KINDS = ("401", "403", "404")


def test_the_limits_are_those_that_the_documents_name() -> None:
    assert (REFUSALS_NEEDED, REFUSED_FOR) == (5, 15 * 60)
    assert (REFUSED_AT_ALL_FOR, UNANSWERED_FOR, LONGEST_PAUSE) == (3600, 24 * 3600, 120)
    assert (ABSENT_ANSWERS, ABSENT_FOR) == (4, 120)


def refused(times: int, every: float, kind: str = "401") -> Unanswered:
    evidence = ANSWERED
    for number in range(times):
        evidence = evidence.refused(kind, every if number else 0.0)
    return evidence.with_new_credentials()


def test_refusals_end_the_waiting_only_when_they_are_many_and_old_and_met_new_credentials() -> None:
    enough = refused(REFUSALS_NEEDED, REFUSED_FOR / (REFUSALS_NEEDED - 1))
    assert enough.is_conclusive
    assert not refused(REFUSALS_NEEDED - 1, REFUSED_FOR).is_conclusive
    assert not refused(100, REFUSED_FOR / 100).is_conclusive
    old = ANSWERED
    for number in range(REFUSALS_NEEDED + 1):
        old = old.refused("401", REFUSED_FOR / REFUSALS_NEEDED if number else 0.0)
    assert not old.is_conclusive
    assert old.with_new_credentials().is_conclusive


def test_new_credentials_before_the_first_refusal_prove_nothing() -> None:
    assert not ANSWERED.with_new_credentials().refused("401", 0).renewed


@pytest.mark.parametrize("seed", range(20))
def test_refusals_of_changing_kinds_end_the_waiting_only_after_an_hour(seed: int) -> None:
    dice = random.Random(seed)
    evidence, kind, asked = ANSWERED, "", 0.0
    while not evidence.is_conclusive:
        kind = dice.choice([each for each in KINDS if each != kind])
        pause = dice.uniform(1, 120)
        asked += pause
        evidence = evidence.refused(kind, pause).with_new_credentials()
    assert REFUSED_AT_ALL_FOR <= asked <= REFUSED_AT_ALL_FOR + 120


@pytest.mark.parametrize("seed", range(50))
def test_whatever_the_order_no_row_that_is_short_or_young_ends_the_waiting(seed: int) -> None:
    """Against the rule, written another way: over the list of all answers since the last good one."""
    dice = random.Random(seed)
    evidence, history, now = ANSWERED, list[tuple[float, str]](), 0.0
    renewed_at: float | None = None
    for _ in range(400):
        pause = dice.choice([1, 10, 60, 120, 300])
        now += pause
        answer = dice.choices(["401", "404", "503", "good", "renew"], [30, 3, 10, 0.5, 3])[0]
        match answer:
            case "good":
                evidence, renewed_at = ANSWERED, None
                history.clear()
                continue
            case "renew":
                now -= pause
                if any(kind != "503" for _, kind in history):
                    renewed_at = now
                evidence = evidence.with_new_credentials()
            case "503":
                history.append((now, answer))
                evidence = evidence.failed(pause if len(history) > 1 else 0.0)
            case kind:
                history.append((now, kind))
                evidence = evidence.refused(kind, pause if len(history) > 1 else 0.0)
        assert evidence.is_conclusive == _conclusive(history, renewed_at), f"seed {seed}: {history}"


def _conclusive(history: list[tuple[float, str]], renewed_at: float | None) -> bool:
    refusals = [(at, kind) for at, kind in history if kind != "503"]
    if not refusals:
        return bool(history) and history[-1][0] - history[0][0] >= UNANSWERED_FOR
    if history[-1][0] - history[0][0] >= (
        REFUSED_AT_ALL_FOR if len(refusals) >= REFUSALS_NEEDED else UNANSWERED_FOR
    ):
        return True
    row = []
    for at, kind in reversed(refusals):
        if kind != refusals[-1][1]:
            break
        row.append(at)
    old = history[-1][0] - row[-1] >= REFUSED_FOR
    return len(row) >= REFUSALS_NEEDED and old and renewed_at is not None


def test_an_outage_is_waited_out_for_a_day() -> None:
    evidence = ANSWERED.failed(0.0)
    while not evidence.is_conclusive:
        before = evidence
        evidence = evidence.failed(120.0)
    assert before.seconds < UNANSWERED_FOR <= evidence.seconds


def test_a_fault_that_may_pass_neither_clears_refusals_nor_counts_as_one() -> None:
    evidence = refused(3, 100.0).failed(500.0)
    assert (evidence.refusals, evidence.refused_for) == (3, 700.0)
    assert not ANSWERED.failed(10.0).is_refused
    assert ANSWERED.failed(10.0).refused_for == 0.0
    assert evidence.is_refused


def test_without_a_question_nothing_is_known() -> None:
    assert (
        Unanswered(
            questions=0,
            seconds=0.0,
            refusal="",
            refusals=0,
            refused_for=0.0,
            refused_in_all=0,
            renewed=False,
        )
        == ANSWERED
    )


@pytest.mark.parametrize("number", [4, 5, 6])
def test_five_refusals_of_changing_kinds_over_an_hour_end_the_waiting(number: int) -> None:
    evidence = ANSWERED
    for count in range(number):
        evidence = evidence.refused(KINDS[count % len(KINDS)], 3600.0 / (number - 1) if count else 0.0)
    assert evidence.is_conclusive == (number >= 5)


@pytest.mark.parametrize("number", range(REFUSALS_NEEDED))
def test_an_outage_in_which_a_few_answers_are_refusals_is_still_an_outage(number: int) -> None:
    evidence = ANSWERED.failed(0.0)
    for kind in range(number):
        evidence = evidence.refused(KINDS[kind % len(KINDS)], 60.0).with_new_credentials()
    while not evidence.is_conclusive:
        before = evidence
        evidence = evidence.failed(120.0)
    assert before.seconds < UNANSWERED_FOR <= evidence.seconds


def test_the_pauses_grow_to_two_minutes_and_are_never_shorter_than_asked_for() -> None:
    evidence, pauses = ANSWERED, []
    for _ in range(8):
        evidence = evidence.refused("404", 1.0)
        pauses.append(evidence.pause(10.0))
    assert pauses == [10.0, 20.0, 40.0, 80.0, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert evidence.pause(300.0) == 300.0


def test_however_long_nobody_answers_the_pause_stays_a_number() -> None:
    evidence = ANSWERED
    assert evidence.pause(10.0) == 10.0
    for _ in range(5000):
        evidence = evidence.failed(1.0)
    assert evidence.pause(10.0) == LONGEST_PAUSE
    assert evidence.pause(0.0) == 0.0


@pytest.mark.parametrize("questions", [1, 2, 3, 30])
def test_a_gang_that_is_being_ended_is_given_up_after_an_hour_without_an_answer(questions: int) -> None:
    evidence = ANSWERED
    for _ in range(questions):
        evidence = evidence.failed(REFUSED_AT_ALL_FOR / questions)
        assert evidence.is_long == (evidence.questions == questions)


def test_a_quarter_of_an_hour_of_refusals_holds_enough_questions() -> None:
    evidence, asked = ANSWERED.refused("401", 0.0).with_new_credentials(), 0.0
    while not evidence.is_conclusive:
        pause = evidence.pause(10.0)
        asked += pause
        evidence = evidence.refused("401", pause)
    assert REFUSED_FOR <= asked <= REFUSED_FOR + LONGEST_PAUSE


def test_evidence_travels_as_json_and_costs_nothing_where_there_is_none() -> None:
    evidence = refused(3, 7.0)
    assert codec.decode(Unanswered, codec.encode(evidence)) == evidence
    assert codec.encode(ANSWERED) == {}


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_gone_only_after_several_answers_over_minutes(seed: int) -> None:
    dice = random.Random(seed)
    times = sorted(dice.uniform(0, 400) for _ in range(dice.randint(1, 12)))
    absent = Absent(times[0])
    for number, now in enumerate(times):
        if number:
            absent = absent.again()
        expected = number + 1 >= ABSENT_ANSWERS and now - times[0] >= ABSENT_FOR
        assert absent.is_gone(now) == expected, f"seed {seed}"


def test_a_run_is_gone_after_exactly_the_documented_answers_and_seconds() -> None:
    absent = Absent(since=0.0)
    for _ in range(ABSENT_ANSWERS - 1):
        assert not absent.is_gone(2 * ABSENT_FOR)
        absent = absent.again()
    assert not absent.is_gone(ABSENT_FOR - 1)
    assert absent.is_gone(ABSENT_FOR)


def test_one_refusal_is_a_refusal() -> None:
    assert not ANSWERED.is_refused
    assert ANSWERED.refused("401", 0).is_refused


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_met_is_a_refusal_of_its_kind_or_a_passing_fault(kind: str) -> None:
    met = ANSWERED.met(kind, 3.0)
    assert met == ANSWERED.refused(kind, 3.0)
    assert (met.refusal, met.refusals) == (kind, 1)
    assert met.met(None, 4.0) == met.failed(4.0)
