"""How long something has looked the same: what begins anew, what goes on, what counts for nothing (gangs.durations)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs import durations
from airflow_provider_ocidist.gangs.durations import begin_again, has_begun, is_fewer, observe, seconds
from airflow_provider_ocidist.model.report import Phase, Progress
from airflow_provider_ocidist.model.run import Expectations, NodeState, NodeStatus, RunRecord, RunStatus
from tests.gangs.test_decisions import gang, node, record, report
from tests.gangs.test_elastic_rules import FEWER, fewer
from tests.gangs.test_replacement_rules import LOST, a_node, a_record, a_ref, a_report, gone

RUNNING, PENDING, ENDING, FAILED, SUCCEEDED = (
    NodeState.RUNNING,
    NodeState.PENDING,
    NodeState.ENDING,
    NodeState.FAILED,
    NodeState.SUCCEEDED,
)


def after(known: RunRecord, *looks: tuple[float, RunStatus]) -> RunRecord:
    """Return the record after these looks, each so many seconds after the one before."""
    for elapsed, status in looks:
        known = observe(known, status, elapsed)
    return known


def beating(*beats: float | None, **changes: Any) -> RunStatus:
    """Return nodes that train, with their last heartbeats."""
    nodes = (
        node(rank, RUNNING, report=None if beat is None else report(rank, heartbeat_at=beat))
        for rank, beat in enumerate(beats)
    )
    return RunStatus(nodes=tuple(nodes), **changes)


def test_what_looks_the_same_is_counted_from_the_look_at_which_it_began() -> None:
    first, second = beating(1.0, 1.0), beating(2.0, 1.0)
    found = after(record(), (100.0, first), (10.0, first), (5.0, second), (7.0, second))
    assert [seconds(found, durations.heartbeat_of(rank)) for rank in (0, 1)] == [7.0, 22.0]
    assert seconds(found, durations.heartbeat_of(2)) == 0.0
    assert seconds(begin_again(found, durations.heartbeat_of(1)), durations.heartbeat_of(1)) == 0.0
    assert seconds(begin_again(found, durations.heartbeat_of(1)), durations.heartbeat_of(0)) == 7.0


def test_a_heartbeat_counts_by_the_mark_of_its_write_where_there_is_one() -> None:
    def signed(sign: str | None) -> RunStatus:
        return RunStatus(nodes=(node(0, RUNNING, report=report(0), sign=sign),))

    known = record(nodes=1)
    assert seconds(after(known, (0.0, signed("a")), (9.0, signed("a"))), "node 0") == 9.0
    assert seconds(after(known, (0.0, signed("a")), (9.0, signed("b"))), "node 0") == 0.0


@pytest.mark.parametrize("state", NodeState)
@pytest.mark.parametrize("reported", [True, False])
def test_only_a_node_that_may_run_can_be_silent(state: NodeState, *, reported: bool) -> None:
    first = node(0, state, report=report(0) if reported else None)
    status = RunStatus(nodes=(first, node(1, RUNNING, report=report(1))))
    found = after(record(), (0.0, status), (9.0, status))
    may_run = state in (RUNNING, ENDING, NodeState.UNKNOWN) if reported else state is RUNNING
    assert seconds(found, "node 0") == (9.0 if may_run else 0.0)


def test_silence_goes_on_whatever_state_the_service_shows_meanwhile() -> None:
    shown = [RUNNING, NodeState.UNKNOWN, RUNNING, ENDING, ENDING]
    looks = [(10.0, RunStatus(nodes=(node(0, state, report=report(0)),))) for state in shown]
    assert seconds(after(record(nodes=1), *looks), "node 0") == 40.0


def test_a_node_without_an_agent_is_not_silent_unless_it_has_reported() -> None:
    without = record(expects=Expectations(reports=False))
    for known, beat, expected in (
        (without, None, 0.0),
        (without, 1.0, 9.0),
        (record(), None, 9.0),
        (record(), 1.0, 9.0),
    ):
        status = beating(beat, 2.0)
        assert seconds(after(known, (0.0, status), (9.0, status)), "node 0") == expected


def test_while_reports_cannot_be_read_neither_silence_nor_standstill_goes_on() -> None:
    seen = beating(1.0, 1.0)
    hidden = beating(None, None, reports_readable=False)
    found = after(record(), (0.0, seen), (10.0, seen), (1000.0, hidden), (1000.0, hidden))
    for of in ("node 0", "node 1", durations.PROGRESS):
        assert seconds(found, of) == 10.0
    # The time in which nothing could be read counts for nothing.
    assert seconds(after(found, (5.0, seen)), "node 0") == 15.0


def test_a_gang_stands_still_while_all_train_and_none_moves() -> None:
    def moved(*at: float | None, phase: Phase = Phase.TRAINING) -> RunStatus:
        nodes = (
            node(
                rank,
                RUNNING,
                report=report(
                    rank, phase=phase if rank else Phase.TRAINING, progress=each and Progress(updated_at=each)
                ),
            )
            for rank, each in enumerate(at)
        )
        return RunStatus(nodes=tuple(nodes))

    def still(*looks: RunStatus) -> float:
        return seconds(after(record(), *[(10.0, each) for each in looks]), durations.PROGRESS)

    assert still(moved(1.0, 1.0), moved(1.0, 1.0), moved(1.0, 1.0)) == 20.0
    assert still(moved(1.0, 1.0), moved(1.0, 1.0), moved(1.0, 2.0)) == 0.0
    assert still(moved(None, None), moved(None, None)) == 10.0
    assert still(moved(None, 1.0), moved(None, 1.0)) == 10.0
    for phase, expected in (
        (Phase.DONE, 10.0),
        (Phase.SAVING, 0.0),
        (Phase.JOINING, 0.0),
        (Phase.FETCHING, 0.0),
    ):
        assert still(*[moved(1.0, 1.0, phase=phase)] * 2) == expected
    done = [replace(moved(1.0), nodes=(node(0, RUNNING, report=report(0, phase=Phase.DONE)),))] * 2
    assert still(*done) == 0.0, "nobody trains"


def test_the_end_of_a_node_beside_one_that_trains_is_a_movement() -> None:
    def status(finished: float | None) -> RunStatus:
        done = report(0, phase=Phase.DONE, exit_code=0, finished_at=finished)
        return RunStatus(nodes=(node(0, RUNNING, report=done), node(1, RUNNING, report=report(1))))

    assert seconds(after(record(), (0.0, status(None)), (9.0, status(None))), durations.PROGRESS) == 9.0
    assert seconds(after(record(), (0.0, status(None)), (9.0, status(5.0))), durations.PROGRESS) == 0.0


def test_time_in_which_not_all_reports_were_read_counts_once_they_are_the_same() -> None:
    read = beating(1.0, 1.0)
    unread = RunStatus(nodes=(read.nodes[0], replace(read.nodes[1], report_is_newest=False)))
    looks = ((0.0, read), (10.0, read), (100.0, unread), (100.0, unread))
    assert seconds(after(record(), *looks), durations.PROGRESS) == 10.0
    assert seconds(after(record(), *looks, (5.0, read)), durations.PROGRESS) == 215.0
    assert seconds(after(record(), *looks, (5.0, read), (1.0, read)), durations.PROGRESS) == 216.0


@pytest.mark.parametrize(
    "other, counts",
    [
        (node(1, FAILED), True),
        (node(1, NodeState.CANCELED), True),
        (node(1, NodeState.MISSING), True),
        (node(1, SUCCEEDED, report=report(1, phase=Phase.DONE, exit_code=1)), True),
        (node(1, SUCCEEDED, report=report(1, phase=Phase.DONE, exit_code=0)), False),
        (node(1, SUCCEEDED), False),
        (node(1, RUNNING), False),
    ],
)
def test_a_failure_counts_while_others_live(other: NodeStatus, counts: bool) -> None:
    for first, lives in ((RUNNING, True), (ENDING, True), (PENDING, True), (SUCCEEDED, False)):
        status = RunStatus(nodes=(node(0, first), other))
        found = after(record(), (0.0, status), (9.0, status))
        assert seconds(found, durations.FAILURE) == (9.0 if counts and lives else 0.0)


def test_an_end_that_takes_long_is_of_those_who_end_and_begins_anew_with_each_of_them() -> None:
    for states, expected in (
        ((ENDING, ENDING), 9.0),
        ((ENDING, SUCCEEDED), 9.0),
        ((ENDING, RUNNING), 0.0),
        ((SUCCEEDED, SUCCEEDED), 0.0),
    ):
        found = after(record(), (0.0, gang(*states)), (9.0, gang(*states)))
        assert seconds(found, durations.ENDING) == expected
    found = after(record(), (0.0, gang(ENDING, ENDING)), (9.0, gang(ENDING, SUCCEEDED)))
    assert seconds(found, durations.ENDING) == 0.0


def test_a_gang_has_begun_once_all_have_run_at_once_and_waits_only_after_that() -> None:
    running, waiting = gang(RUNNING, RUNNING), gang(RUNNING, PENDING)
    assert not has_begun(after(record(), (0.0, waiting), (9.0, waiting)))
    assert seconds(after(record(), (0.0, waiting), (9.0, waiting)), durations.WAITING) == 0.0
    begun = after(record(), (0.0, running))
    assert has_begun(begun)
    assert seconds(after(begun, (9.0, waiting), (5.0, waiting)), durations.WAITING) == 5.0
    assert has_begun(after(begun, (9.0, waiting)))
    assert seconds(after(begun, (9.0, waiting), (5.0, running)), durations.WAITING) == 0.0
    assert has_begun(replace(record(), ref=a_ref(replaced=(LOST,))))


def test_one_that_is_paused_waits_for_no_machine() -> None:
    paused = RunStatus(nodes=(node(0, RUNNING), node(1, PENDING, cause=Cause.CANCELED)))
    queued = RunStatus(nodes=(node(0, RUNNING), node(1, PENDING, cause=Cause.QUOTA)))
    begun = after(record(), (0.0, gang(RUNNING, RUNNING)))
    for status, expected in ((paused, 0.0), (queued, 9.0)):
        assert seconds(after(begun, (0.0, status), (9.0, status)), durations.WAITING) == expected


def test_only_members_count_and_the_last_report_names_them() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.JOINING, restarts=(LOST, FEWER)))
    for other in (late, gone(2)):
        status = fewer(other)
        found = after(a_record(), (0.0, status), (9.0, status))
        assert (found.members, is_fewer(found)) == ((0, 1), True)
        # The silence of one that takes no part counts too: a frozen one is asked for again.
        assert seconds(found, "node 2") == (9.0 if other is late else 0.0)
        assert seconds(found, durations.FAILURE) == 0.0
        assert seconds(found, durations.PROGRESS) == seconds(found, durations.FEWER) == 9.0
    # A machine was asked for again: that time begins anew.
    asked = replace(found, ref=a_ref(replaced=(LOST,)))
    assert seconds(after(asked, (9.0, status)), durations.FEWER) == 0.0


def test_all_nodes_are_not_fewer() -> None:
    assert not is_fewer(a_record())
    assert not is_fewer(replace(a_record(), members=(0, 1, 2)))
    assert is_fewer(replace(a_record(), members=(0,)))
    status = RunStatus(nodes=(a_node(0), a_node(1), a_node(2)))
    assert seconds(after(a_record(), (0.0, status), (9.0, status)), durations.FEWER) == 0.0


def test_without_a_launch_the_members_stay_those_that_are_known() -> None:
    known = replace(a_record(), members=(0, 1))
    status = RunStatus(nodes=(a_node(0), a_node(1), a_node(2)))
    assert after(known, (0.0, status)).members == (0, 1)


def test_what_is_measured_keeps_its_name_from_one_version_to_the_next() -> None:
    names = (
        durations.PROGRESS,
        durations.FAILURE,
        durations.ENDING,
        durations.BEGUN,
        durations.WAITING,
        durations.FEWER,
        durations.heartbeat_of(3),
    )
    assert names == ("movement", "failure", "ending", "begun", "waiting", "fewer", "node 3")


def test_a_failure_counts_also_while_reports_cannot_be_read() -> None:
    status = gang(RUNNING, FAILED, reports_readable=False)
    known = after(record(), (0.0, beating(1.0, 1.0)), (5.0, beating(1.0, 1.0)))
    found = after(known, (0.0, status), (9.0, status))
    assert (seconds(found, durations.FAILURE), seconds(found, "node 0")) == (9.0, 5.0)
