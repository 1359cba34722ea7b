"""For how long, and for which requests, it is remembered that a service had no machines: pure rules."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.refusal import (
    NO_MACHINE,
    REMEMBERED,
    KnownRefusals,
    Refusal,
    refusal_file,
)


def refusal(nodes: int, at: float, message: str = "out of capacity") -> Refusal:
    return Refusal(cause=Cause.CAPACITY, message=message, at=at, nodes=nodes)


def test_only_where_there_was_no_machine_another_candidate_may_have_one() -> None:
    assert Cause.CAPACITY in NO_MACHINE
    assert not {Cause.USER, Cause.NODE, Cause.PREEMPTED, Cause.DATA} & set(NO_MACHINE)


def test_it_is_remembered_for_ten_minutes() -> None:
    assert REMEMBERED == 600.0


@pytest.mark.parametrize("nodes, holds", [(1, False), (3, False), (4, True), (5, True), (400, True)])
def test_fewer_machines_may_be_free_and_as_many_or_more_are_not(nodes: int, *, holds: bool) -> None:
    assert refusal(4, 1000.0).holds(nodes, 1001.0) is holds


@pytest.mark.parametrize("since", [0.0, REMEMBERED - 1])
@pytest.mark.parametrize("is_set_back", [False, True])
def test_it_holds_for_its_time_and_no_longer_also_where_a_clock_was_set_back(
    since: float, *, is_set_back: bool
) -> None:
    one = refusal(4, 10_000.0)
    sign = -1 if is_set_back else 1
    assert one.holds(4, 10_000.0 + sign * since)
    assert not one.holds(4, 10_000.0 + sign * REMEMBERED)
    assert not one.holds(4, 10_000.0 + sign * (REMEMBERED + 1))


@pytest.mark.parametrize("now, age", [(1000.0, 0.0), (1001.5, 1.5), (900.0, 0.0)])
def test_its_age_is_never_negative(now: float, age: float) -> None:
    assert refusal(4, 1000.0).age(now) == age


def known(*heard: Refusal, now: float = 1000.0) -> tuple[Refusal, ...]:
    found = KnownRefusals()
    for each in heard:
        found = found.after(each, now)
    return found.refusals


def test_of_as_many_machines_the_latest_is_kept_in_whatever_order_they_are_heard_of() -> None:
    early, late = refusal(4, 990.0, "early"), refusal(4, 991.0, "late")
    assert known(early, late) == known(late, early) == (late,)


def test_what_is_of_more_machines_and_no_later_says_nothing_that_fewer_do_not() -> None:
    few, more = refusal(2, 990.0), refusal(8, 990.0)
    for order in itertools.permutations([few, more]):
        assert known(*order) == (few,)
    later = refusal(8, 991.0)
    for order in itertools.permutations([few, more, later]):
        assert known(*order) == (few, later), "it holds for longer"
    between = refusal(4, 990.5)
    for order in itertools.permutations([few, between, later]):
        assert known(*order) == (few, between, later)


def test_what_is_over_is_forgotten_when_another_comes() -> None:
    old, new = refusal(2, 1000.0), refusal(4, 1000.0 + REMEMBERED)
    assert known(old) == (old,)
    assert KnownRefusals(refusals=(old,)).after(new, new.at) == KnownRefusals(refusals=(new,))
    assert KnownRefusals(refusals=(old,)).after(new, new.at - 1).refusals == (old, new)
    assert KnownRefusals().after(old, old.at + REMEMBERED) == KnownRefusals()


def test_a_request_is_answered_by_the_latest_refusal_of_as_many_machines_or_fewer() -> None:
    few, between, more = refusal(2, 990.0), refusal(4, 995.0), refusal(8, 993.0)
    remembered = KnownRefusals(refusals=(few, between, more))
    found = [remembered.of(nodes) for nodes in (1, 2, 3, 4, 7, 8, 9)]
    assert found == [None, few, few, between, between, between, between]
    assert KnownRefusals().of(9) is None


def test_each_task_finds_the_same_file_for_the_same_machines() -> None:
    file = refusal_file("oci_data_science", {"shape": "VM.GPU.A10.1", "ad": "1"})
    assert file == refusal_file("oci_data_science", {"ad": "1", "shape": "VM.GPU.A10.1"})
    # Others of another version must find it too.
    assert file == "77583e23c36df9c1.json"
    assert file not in {
        refusal_file("pytorchjob", {"shape": "VM.GPU.A10.1", "ad": "1"}),
        refusal_file("oci_data_science", {"shape": "VM.GPU.A10.2", "ad": "1"}),
        refusal_file("oci_data_science", {"shape": "VM.GPU.A10.1"}),
    }
