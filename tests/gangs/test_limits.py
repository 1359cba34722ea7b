"""When a gang that goes on exceeds a limit, on a clock that only the test moves."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose import flight_records, stacks
from airflow_provider_ocidist.agent.stages.program_launch import STACKS_LIMIT
from airflow_provider_ocidist.agent.train.supervise import RESTART_GRACE
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.gangs.limits import END_MARGIN, HANG_MARGIN
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Limits, Program
from airflow_provider_ocidist.model.report import Phase, Progress
from airflow_provider_ocidist.model.run import Expectations, NodeState, RunRecord, RunStatus
from tests.gangs.records import START, gang, node, record, report, watched


def test_the_deadline_ends_a_running_gang() -> None:
    limited = record(deadline=START + 60)
    running = gang(NodeState.RUNNING, NodeState.RUNNING)
    assert decide(limited, running, START + 59.9) == Wait()
    action = decide(limited, running, START + 60)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.DEADLINE
    assert "within 60 s" in action.ending.message


def test_a_node_that_never_starts_ends_the_gang() -> None:
    limited = record(start_deadline=START + 300)
    action = decide(limited, gang(NodeState.RUNNING, NodeState.PENDING), START + 300)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.CAPACITY
    assert action.ending.message.startswith("node 1 did not start within 300 s")


def test_a_gang_that_had_begun_has_the_time_to_start_once_more_whenever_it_waits_again() -> None:
    limited = record(start_deadline=START + 300)
    running, waiting = gang(*[NodeState.RUNNING] * 2), gang(NodeState.RUNNING, NodeState.PENDING)
    looks = ((START + 10, running), (START + 100, running), (START + 400, waiting))
    assert watched(limited, *looks, (START + 699, waiting)) == Wait()
    action = watched(limited, *looks, (START + 701, waiting))
    assert isinstance(action, Cancel)
    assert "did not start within 300 s" in action.ending.message
    # What this watcher has seen, the next knows.
    known = record(start_deadline=START + 300)
    for at, before, status in ((START, START, running), (START + 100, START, running)):
        known = observe(known, status, at - before)
    assert watched(RunRecord.from_json(known.to_json()), (START + 600, waiting)) == Wait()


def test_a_pause_of_a_gang_that_had_begun_lasts_until_somebody_ends_it() -> None:
    limited = record(start_deadline=START + 300)
    running, waiting = gang(*[NodeState.RUNNING] * 2), gang(*[NodeState.PENDING] * 2)
    paused = replace(
        waiting, nodes=tuple(replace(each, cause=Cause.CANCELED, details="paused") for each in waiting.nodes)
    )
    looks = ((START, running), (START + 10, paused), (START + 9999, paused), (START + 10_000, waiting))
    for last in ((START + 10_299, waiting), (START + 10_100, running)):
        assert watched(limited, *looks, last) == Wait()
    assert isinstance(watched(limited, *looks, (START + 10_301, waiting)), Cancel)
    # A gang that has never begun waits no longer than the job says.
    assert isinstance(watched(limited, (START + 301, paused)), Cancel)


def test_a_silent_node_is_lost_only_when_its_reports_can_be_read() -> None:
    limits = record(nodes=1, lost_timeout=120.0)
    status = RunStatus(nodes=(node(0, NodeState.RUNNING, report=report(0)),))
    unreadable = replace(status, reports_readable=False)
    assert watched(limits, (START, status), (START + 119, status)) == Wait()
    action = watched(limits, (START, status), (START + 121, status))
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    assert watched(limits, (START, status), (START + 9999, unreadable)) == Wait()
    assert watched(limits, (START, status), (START + 9999, unreadable), (START + 10_009, status)) == Wait()


def test_of_two_nodes_only_the_one_that_is_silent_is_lost() -> None:
    def status(turn: int) -> RunStatus:
        beating = node(0, NodeState.RUNNING, report=report(0, heartbeat_at=START + turn))
        return RunStatus(nodes=(beating, node(1, NodeState.RUNNING, report=report(1))))

    looks = [(START + 100 * turn, status(turn)) for turn in range(4)]
    action = watched(record(lost_timeout=120.0), *looks)
    assert isinstance(action, Cancel)
    assert "node 1 has sent no heartbeat for 300 s" in action.ending.message


def test_a_node_without_an_agent_is_not_lost_for_its_silence() -> None:
    silent = record(nodes=1, lost_timeout=10.0)
    looks = (START, gang(NodeState.RUNNING)), (START + 60, gang(NodeState.RUNNING))
    assert isinstance(watched(silent, *looks), Cancel)
    assert watched(replace(silent, expects=Expectations(reports=False)), *looks) == Wait()


@pytest.mark.parametrize("seed", range(20))
def test_a_node_that_holds_a_finished_model_is_left_alone_for_as_long_as_it_may_try_to_save_it(
    seed: int,
) -> None:
    dice = random.Random(seed)
    lost, save = dice.uniform(30, 300), dice.uniform(600, 7200)
    limits = record(nodes=dice.randint(1, 4), lost_timeout=lost, save_timeout=save)
    rank = dice.randrange(limits.ref.nodes)
    # The others beat on, or have ended.
    others = dice.choice([Phase.SAVING, Phase.TRAINING, Phase.DONE])

    def status(turn: int, phase: Phase) -> RunStatus:
        silent = report(rank, phase=phase, trained_for=600.0 if phase is Phase.SAVING else None)
        return RunStatus(
            nodes=tuple(
                node(each, NodeState.RUNNING, report=silent)
                if each == rank
                else node(
                    each, NodeState.RUNNING, report=report(each, phase=others, heartbeat_at=START + turn)
                )
                for each in range(limits.ref.nodes)
            )
        )

    def looks(until: float, phase: Phase) -> list[tuple[float, RunStatus]]:
        times = [START, *sorted(START + dice.uniform(1, until) for _ in range(5)), START + until]
        return [(at, status(turn, phase)) for turn, at in enumerate(times)]

    assert watched(limits, *looks(lost + save - 1, Phase.SAVING)) == Wait()
    late = watched(limits, *looks(lost + save + 1, Phase.SAVING))
    assert isinstance(late, Cancel)
    assert "limits.save_timeout" in late.ending.message
    earlier = watched(limits, *looks(lost + 1, dice.choice([Phase.TRAINING, Phase.JOINING])))
    assert isinstance(earlier, Cancel)
    assert "limits.lost_timeout" in earlier.ending.message


def test_how_long_a_node_may_save_is_in_the_record_and_an_hour_in_one_of_before() -> None:
    job = AgentConfig(
        run_name="r",
        nodes=2,
        run_dir="d",
        program=Program(script="train.py"),
        limits=Limits(save_timeout=77.0),
    )
    known = RunRecord.of(record().ref, job, Expectations())
    assert RunRecord.from_json(known.to_json()).save_timeout == 77.0
    before = known.to_json()
    del before["save_timeout"]
    assert RunRecord.from_json(before).save_timeout == 3600.0


def test_a_node_that_writes_is_no_silent_one_whatever_its_clock_says() -> None:
    limits = record(nodes=1, lost_timeout=120.0)
    back = [
        RunStatus(nodes=(node(0, NodeState.RUNNING, report=report(0, heartbeat_at=START - 100 * turn)),))
        for turn in range(9)
    ]
    assert watched(limits, *[(START + 60 * turn, status) for turn, status in enumerate(back)]) == Wait()
    unread = [
        RunStatus(
            nodes=(node(0, NodeState.RUNNING, report=report(0), sign=str(turn), report_is_newest=False),)
        )
        for turn in range(9)
    ]
    assert watched(limits, *[(START + 60 * turn, status) for turn, status in enumerate(unread)]) == Wait()


def test_what_one_watcher_has_measured_goes_to_the_next_and_moments_do_not() -> None:
    quiet = RunStatus(nodes=(node(0, NodeState.RUNNING, report=report(0)),))
    first = observe(observe(record(nodes=1), quiet, 0.0), quiet, 100.0)
    second = observe(RunRecord.from_json(first.to_json()), quiet, 0.0)
    third = observe(second, quiet, 21.0)
    assert isinstance(decide(replace(third, lost_timeout=120.0), quiet, START), Cancel)
    fresh = observe(observe(record(nodes=1), quiet, 0.0), quiet, 4.0)
    assert fresh.to_json() == record(nodes=1).to_json(), "a record stays small"


def test_a_gang_without_progress_hangs_though_its_nodes_live() -> None:
    limits = record(hang_timeout=30.0)

    def alive(at: float) -> RunStatus:
        reports = [report(rank, heartbeat_at=at, progress=Progress(updated_at=START)) for rank in range(2)]
        return RunStatus(
            nodes=tuple(node(rank, NodeState.RUNNING, report=reports[rank]) for rank in range(2))
        )

    looks = [(START + after, alive(START + after)) for after in (0, 40, 80, 95)]
    assert watched(limits, *looks[:3]) == Wait()
    action = watched(limits, *looks)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.HANG


@pytest.mark.parametrize("longest", [5.0, 40.0, 400.0])
def test_a_step_may_take_as_long_for_the_task_as_for_the_nodes(longest: float) -> None:
    limits, limit = record(hang_timeout=30.0), max(30.0, 2 * longest)
    moved = Progress(updated_at=START, step=7, by_steps=True, longest_step=longest)

    def alive(at: float) -> RunStatus:
        reports = [report(rank, heartbeat_at=at, progress=moved) for rank in range(2)]
        return RunStatus(
            nodes=tuple(node(rank, NodeState.RUNNING, report=reports[rank]) for rank in range(2))
        )

    looks = [(START + after, alive(START + after)) for after in (0.0, limit / 2, limit + 60, limit + 61)]
    assert watched(limits, *looks[:3]) == Wait()
    action = watched(limits, *looks)
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.HANG


def test_a_gang_whose_nodes_have_saved_their_stacks_has_time_to_end_its_programs() -> None:
    limits = record(hang_timeout=30.0)
    for stands, patience in ((None, HANG_MARGIN), ((), HANG_MARGIN + END_MARGIN)):
        still = [report(rank, progress=Progress(updated_at=START)) for rank in range(2)]
        nodes = [
            node(0, NodeState.RUNNING, report=replace(still[0], stack_positions=stands)),
            node(1, NodeState.RUNNING, report=still[1]),
        ]
        status = RunStatus(nodes=tuple(nodes))
        assert watched(limits, (START, status), (START + 30 + patience, status)) == Wait()
        action = watched(limits, (START, status), (START + 31 + patience, status))
        assert isinstance(action, Cancel)
        assert action.ending.cause is Cause.HANG


def test_the_steps_of_a_node_that_hangs_take_no_longer_than_the_waiting_side_waits() -> None:
    collecting = stacks.TOTAL_LIMIT + stacks.KILL_LIMIT + stacks.ABORT_TIME + flight_records.WRITE_LIMIT
    # As long again for the files to be written, and until the waiting side reads the report.
    assert 2 * collecting < HANG_MARGIN
    assert 2 * (STACKS_LIMIT + RESTART_GRACE) < END_MARGIN


def test_a_node_that_hangs_beside_one_that_is_done_is_noticed() -> None:
    limits = record(hang_timeout=30.0)
    done = report(0, phase=Phase.DONE, exit_code=0, heartbeat_at=START + 500, finished_at=START + 10)
    stuck = report(1, heartbeat_at=START + 500, progress=Progress(updated_at=START))
    nodes = (node(0, NodeState.SUCCEEDED, report=done), node(1, NodeState.RUNNING, report=stuck))
    status = RunStatus(nodes=nodes)
    assert watched(limits, (START, status), (START + 90, status)) == Wait()
    action = watched(limits, (START, status), (START + 91, status))
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.HANG


def test_fetching_data_for_hours_is_no_hang() -> None:
    limits = record(nodes=1, hang_timeout=30.0)
    fetching = report(0, phase=Phase.FETCHING, progress=Progress(updated_at=START))
    status = RunStatus(nodes=(node(0, NodeState.RUNNING, report=fetching),))
    assert watched(limits, (START, status), (START + 9999, status)) == Wait()


def test_a_gang_whose_reports_were_not_read_lately_is_not_taken_for_stuck_before_they_are() -> None:
    limits = record(hang_timeout=1800.0)
    at_work = report(0, progress=Progress(step=1, updated_at=START + 10))
    nodes = [node(rank, NodeState.RUNNING, report=replace(at_work, rank=rank)) for rank in range(2)]
    read = RunStatus(nodes=tuple(nodes))
    unread = RunStatus(nodes=tuple(replace(each, report_is_newest=False) for each in nodes))
    moved = RunStatus(nodes=(nodes[0], replace(nodes[1], report=replace(at_work, progress=Progress(step=2)))))
    looks = (START, read), (START + 1000, unread), (START + 10_000, unread)
    assert watched(limits, *looks) == Wait()
    assert watched(limits, *looks, (START + 10_001, moved)) == Wait()
    assert isinstance(watched(limits, *looks, (START + 10_001, read)), Cancel)


def test_nodes_that_end_for_ever_are_asked_to_end_and_then_given_up_with_their_names() -> None:
    status = gang(NodeState.ENDING, NodeState.SUCCEEDED)
    assert watched(record(), (START, status), (START + 1800, status)) == Wait()
    action = watched(record(), (START, status), (START + 1801, status))
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.SERVICE
    assert action.ending.message == "node 0 began to end 1801 s ago, and has not ended"
    both = gang(NodeState.ENDING, NodeState.ENDING)
    of_both = watched(record(), (START, both), (START + 1801, both))
    assert isinstance(of_both, Cancel)
    assert of_both.ending.message == "nodes 0, 1 began to end 1801 s ago, and have not ended"
    failed = decide(record(ending=action.ending), status, START + 1801 + 1800)
    assert isinstance(failed, Fail)
    assert "node 0 (ENDING, run0)" in failed.message


# In a state that ocidist does not know


UNKNOWN = NodeState.UNKNOWN


@pytest.mark.parametrize("state", [NodeState.RUNNING, UNKNOWN])
@pytest.mark.parametrize("phase, limit", [(Phase.TRAINING, 120.0), (Phase.SAVING, 720.0)])
def test_a_node_may_be_silent_no_longer_in_a_state_that_is_not_known(
    state: NodeState, phase: Phase, limit: float
) -> None:
    limits = record(lost_timeout=120.0, save_timeout=600.0)

    def at(seconds: float, *, beats: bool) -> tuple[float, RunStatus]:
        heartbeat_at = START + seconds if beats else START
        silent = report(1, phase=phase, heartbeat_at=heartbeat_at)
        other = report(0, heartbeat_at=START + seconds)
        return START + seconds, RunStatus(
            nodes=(node(0, NodeState.RUNNING, report=other), node(1, state, report=silent))
        )

    looks = [at(seconds, beats=True) for seconds in (0.0, 100.0, 1e6)]
    assert watched(limits, *looks) == Wait()
    first = at(0.0, beats=False)
    assert watched(limits, first, at(limit, beats=False)) == Wait()
    action = watched(limits, first, at(limit / 2, beats=False), at(limit + 1, beats=False))
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.NODE
    assert action.ending.message.startswith("node 1 ")


@pytest.mark.parametrize("phase", [Phase.DONE, Phase.SAVING, Phase.TRAINING])
def test_a_node_that_ends_with_its_work_done_is_not_silent_while_another_of_its_run_saves(
    phase: Phase,
) -> None:
    limits = record(lost_timeout=60.0, save_timeout=3600.0)

    def at(seconds: float) -> tuple[float, RunStatus]:
        saves = report(0, phase=Phase.SAVING, heartbeat_at=START + seconds)
        ends = report(1, phase=phase, heartbeat_at=START)
        nodes = (node(0, NodeState.RUNNING, report=saves), node(1, NodeState.ENDING, report=ends))
        return START + seconds, RunStatus(nodes=nodes)

    limit = limits.lost_timeout + limits.replace_timeout if limits.lost_timeout else 0.0
    action = watched(limits, at(0.0), at(limit - 1.0), at(limit + 1.0))
    assert isinstance(action, Cancel if phase is Phase.TRAINING else Wait)


def test_a_node_that_has_never_reported_has_the_time_to_start_in_a_state_that_is_not_known() -> None:
    limits = record(start_deadline=START + 300, lost_timeout=30.0)
    running, odd = gang(NodeState.RUNNING, NodeState.RUNNING), gang(UNKNOWN, UNKNOWN)
    for action, seconds in ((Wait, 299.0), (Cancel, 300.0)):
        assert isinstance(watched(limits, (START, odd), (START + seconds, odd)), action)
    ended = watched(limits, (START, odd), (START + 300, odd))
    assert isinstance(ended, Cancel)
    assert ended.ending.cause is Cause.SERVICE
    assert ended.ending.message == (
        "nodes 0, 1 did not start within 300 s (limits.start_timeout): "
        "the service reports a state that this version does not know"
    )
    said = replace(odd, nodes=(replace(odd.nodes[0], details="NEEDS_REVIEW"), odd.nodes[1]))
    shown = watched(limits, (START, said), (START + 300, said))
    assert isinstance(shown, Cancel)
    assert shown.ending.message.endswith(": NEEDS_REVIEW")
    # One that had begun gets that time once more.
    looks = ((START + 290, running), (START + 310, odd))
    for action, seconds in ((Wait, 609.0), (Cancel, 610.0)):
        assert isinstance(watched(limits, *looks, (START + seconds, odd)), action)


@pytest.mark.parametrize(
    "changes, readable",
    [({}, False), ({"expects": Expectations(reports=False)}, True)],
    ids=["unread", "no agent"],
)
def test_nothing_is_known_of_a_node_in_an_unknown_state_whose_report_nobody_can_read(
    changes: dict[str, Any], *, readable: bool
) -> None:
    limits = record(start_deadline=START + 300, lost_timeout=30.0, **changes)
    odd = gang(UNKNOWN, UNKNOWN, reports_readable=readable)
    assert watched(limits, (START, odd), (START + 1e6, odd)) == Wait()
