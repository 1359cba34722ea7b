"""Who takes part in a launch: the last restart says it, and nobody before it counts (docs/decisions/0016)."""

from __future__ import annotations

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.members import in_words, members_of, others_of
from airflow_provider_ocidist.model.report import Restart


def launches(*members: tuple[int, ...]) -> tuple[Restart, ...]:
    """Return restarts, each with the ranks that take part from then on."""
    return tuple(Restart(cause=Cause.CAPACITY, message="m", members=each) for each in members)


def test_the_last_launch_says_who_takes_part() -> None:
    assert members_of((), 3) == (0, 1, 2)
    assert members_of(launches((0, 2)), 3) == (0, 2)
    assert members_of(launches((0, 2), (1, 2), (0, 1)), 3) == (0, 1)


def test_a_launch_that_names_nobody_is_of_all_nodes() -> None:
    assert members_of(launches((0, 2), ()), 3) == (0, 1, 2)
    assert members_of(launches((), (1,)), 3) == (1,)


def test_a_node_is_none_of_its_others() -> None:
    assert others_of(1, (), 3) == (0, 2)
    assert others_of(1, launches((1, 3)), 4) == (3,)


def test_members_are_named_in_a_message() -> None:
    assert in_words([2]) == "node 2"
    assert in_words([0, 2]) == "nodes 0, 2"
    assert in_words((0, 1, 2)) == "nodes 0, 1, 2"
