"""The state of a gang in one word, for the list of gangs and for a gang's page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.status_line import word_in_list, word_on_page
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import NodeState, RunStatus
from tests.gangs.records import gang, report

PENDING, RUNNING, ENDING = NodeState.PENDING, NodeState.RUNNING, NodeState.ENDING
SUCCEEDED, FAILED, CANCELED = NodeState.SUCCEEDED, NodeState.FAILED, NodeState.CANCELED
MISSING, UNKNOWN = NodeState.MISSING, NodeState.UNKNOWN
STATES = [
    states for nodes in (1, 2, 3, 4) for states in combinations_with_replacement(sorted(NodeState), nodes)
]


def without_the_last(*states: NodeState) -> RunStatus:
    """Return a gang of which all nodes but the last take part."""
    status = gang(*states)
    fewer = Restart(cause=Cause.CAPACITY, message="no machine", members=tuple(range(len(states) - 1)))
    first, *others = status.nodes
    return replace(status, nodes=(replace(first, report=report(0, restarts=(fewer,))), *others))


def test_a_gang_has_one_state_whatever_its_nodes_have() -> None:
    assert word_in_list(gang(SUCCEEDED, SUCCEEDED)) == "SUCCEEDED"
    assert word_in_list(gang(FAILED, SUCCEEDED)) == "FAILED"
    assert word_in_list(gang(RUNNING, PENDING)) == "RUNNING"


def test_nodes_that_take_no_part_do_not_count_for_the_state_of_a_gang() -> None:
    for word in (word_in_list, word_on_page):
        assert word(without_the_last(SUCCEEDED, SUCCEEDED, FAILED)) == "SUCCEEDED"
        assert word(without_the_last(RUNNING, RUNNING, FAILED)) == "RUNNING"
        assert word(without_the_last(SUCCEEDED, FAILED, CANCELED)) == "FAILED"
        assert word(without_the_last(SUCCEEDED, SUCCEEDED, RUNNING)) == "ENDING"


@pytest.mark.parametrize("word", [word_in_list, word_on_page])
def test_the_state_is_that_of_the_members_until_only_others_live(word: Callable[[RunStatus], str]) -> None:
    for members in STATES:
        for other in NodeState:
            is_left_over = all(state.terminal for state in members) and not other.terminal
            expected = "ENDING" if is_left_over else word(gang(*members))
            assert word(without_the_last(*members, other)) == expected, (members, other)


def differ(states: set[NodeState]) -> bool:
    """Whether list and page have different words for a gang whose nodes have these states."""
    if all(state.terminal for state in states):
        return MISSING in states and FAILED not in states
    if ENDING in states:
        return False
    has_lost_one = bool(states & {FAILED, CANCELED, MISSING})
    has_begun = SUCCEEDED in states and RUNNING not in states
    return has_lost_one or has_begun or states == {UNKNOWN}


def test_list_and_page_differ_only_where_nodes_do_or_the_service_has_lost_some() -> None:
    for states in STATES:
        status = gang(*states)
        assert (word_in_list(status) != word_on_page(status)) == differ(set(states)), states
