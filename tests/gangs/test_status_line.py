"""The state of a gang in one word, for the list of gangs and for a gang's page, and in one line, for a log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.status_line import status_line, word_in_list, word_on_page
from airflow_provider_ocidist.model.report import Phase, Progress, Recovery, Restart
from airflow_provider_ocidist.model.run import NodeState, RunStatus
from tests.gangs.records import CHECKPOINT, gang, node, report

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


# In one line


def test_nodes_are_counted_by_their_state_and_by_their_phase_while_they_run() -> None:
    assert status_line(gang(PENDING, PENDING)) == "nodes: 2 PENDING"
    runs = [node(rank, RUNNING, report=report(rank, phase=phase)) for rank, phase in enumerate(Phase)]
    others = [node(8, RUNNING), node(9, SUCCEEDED, report=report(9, phase=Phase.DONE))]
    twice = [*runs, node(7, RUNNING, report=report(7))]
    said = ", ".join(f"{2 if phase is Phase.TRAINING else 1} RUNNING ({phase})" for phase in Phase)
    assert status_line(RunStatus(nodes=(*twice, *others))) == f"nodes: {said}, 1 RUNNING, 1 SUCCEEDED"


def test_what_a_node_waits_for_is_said_once_where_the_platform_names_it() -> None:
    no_gpu = "0/3 nodes are available"
    nodes = (
        node(0, PENDING, details=no_gpu, cause=Cause.CAPACITY),
        node(1, PENDING, details=no_gpu, cause=Cause.CAPACITY),
        node(2, PENDING, details="a quota", cause=Cause.QUOTA),
        node(3, PENDING, details="ContainerCreating"),
        node(4, PENDING, cause=Cause.QUOTA),
        node(5, RUNNING, details="odd", cause=Cause.NODE),
    )
    assert status_line(RunStatus(nodes=nodes)) == f"nodes: 5 PENDING, 1 RUNNING; {no_gpu}; a quota"


@pytest.mark.parametrize(
    "progress, words",
    [
        (Progress(step=40, steps=300, loss=2.3149), "; step 40/300, loss 2.315"),
        (Progress(step=40), "; step 40"),
        (Progress(step=0, loss=0.0), "; step 0, loss 0"),
        (Progress(loss=2.0, steps=300), ""),
        (None, ""),
    ],
)
def test_the_step_is_said_as_far_as_it_is_known_and_wanted(progress: Progress | None, words: str) -> None:
    status = RunStatus(nodes=(node(0, RUNNING, report=report(0, progress=progress)),))
    assert status_line(status) == f"nodes: 1 RUNNING (TRAINING){words}"
    assert status_line(status, with_step=False) == "nodes: 1 RUNNING (TRAINING)"


@pytest.mark.parametrize(
    "last, words",
    [
        (
            Restart(cause=Cause.NODE, message="gone", rank=0, step=7),
            "launched again (3) after NODE of node 0 at step 7: gone; back after 12 s",
        ),
        (
            Restart(cause=Cause.HANG, message="no step", step=0),
            "launched again (3) after HANG at step 0: no step; back after 12 s",
        ),
        (Restart(cause=Cause.USER, message="boom"), "launched again (3) after USER: boom; back after 12 s"),
    ],
)
def test_the_newest_checkpoint_and_the_last_launch_are_named(last: Restart, words: str) -> None:
    first = Restart(cause=Cause.PREEMPTED, message="before", rank=9)
    second = Restart(cause=Cause.HANG, message="between", step=5)
    last_report = report(0, restarts=(first, second, last), checkpoint=CHECKPOINT)
    status = RunStatus(nodes=(node(0, RUNNING, report=last_report),))
    words = words.replace("; back after 12 s", "")
    assert status_line(status) == f"nodes: 1 RUNNING (TRAINING); checkpoint at step 10; {words}"
    measured = replace(last_report, recoveries=(Recovery(launch=3, seconds=12.3),))
    back = RunStatus(nodes=(node(0, RUNNING, report=measured),))
    assert status_line(back).endswith(f"; {words}; back after 12 s")
