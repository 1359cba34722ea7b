"""The supervisor's decisions, on a clock that only the test moves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.decisions import Action, Cancel, Fail, Succeed, Wait, decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.job import Limits, Program
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import (
    Ending,
    Expectations,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
)

START = 1_000_000.0
KEY = RunKey(dag_id="dag", run_id="run", task_id="train")
CHECKPOINT = CheckpointRef(uri="oci://b@n/checkpoints/step-10", step=10)


def record(nodes: int = 2, **changes: object) -> RunRecord:
    ref = RunRef(
        backend="oci_data_science",
        key=KEY,
        nodes=nodes,
        job_id="job",
        run_ids=tuple(f"run{rank}" for rank in range(nodes)),
        run_dir="oci://b@n/work/x",
        submitted_at=START,
    )
    return replace(RunRecord(ref=ref), **changes)


def report(rank: int, **changes: object) -> NodeReport:
    base = NodeReport(
        rank=rank, phase=Phase.TRAINING, address="127.0.0.1", started_at=START, heartbeat_at=START
    )
    return replace(base, **changes)


def node(rank: int, state: NodeState, **changes: object) -> NodeStatus:
    return replace(NodeStatus(rank=rank, run_id=f"run{rank}", state=state), **changes)


def gang(*states: NodeState, **changes: object) -> RunStatus:
    nodes = tuple(node(rank, state) for rank, state in enumerate(states))
    return replace(RunStatus(nodes=nodes), **changes)


def trained(rank: int, **changes: object) -> NodeStatus:
    return node(rank, NodeState.SUCCEEDED, report=report(rank, exit_code=0, phase=Phase.DONE, **changes))


def watched(known: RunRecord, *looks: tuple[float, RunStatus]) -> Action:
    """Return the last action of a watcher who looks at these times, and compares no clock with another."""
    action, before = Wait(), looks[0][0]
    for at, status in looks:
        known, before = observe(known, status, at - before), at
        action = decide(known, status, at)
    return action


def test_waits_while_nodes_start_and_run() -> None:
    for states in [(NodeState.PENDING, NodeState.PENDING), (NodeState.RUNNING, NodeState.PENDING)]:
        assert decide(record(), gang(*states), START + 5) == Wait()


def test_succeeds_when_every_node_has_succeeded() -> None:
    assert (
        decide(record(), RunStatus(nodes=(trained(0, checkpoint=CHECKPOINT), trained(1))), START + 5)
        == Succeed()
    )


def test_waits_for_the_last_node_though_the_main_node_has_succeeded() -> None:
    assert decide(record(), gang(NodeState.SUCCEEDED, NodeState.RUNNING), START + 5) == Wait()


def test_a_program_that_exits_0_without_a_checkpoint_has_failed() -> None:
    promised = record(expects=Expectations(checkpoint=True))
    action = decide(promised, RunStatus(nodes=(trained(0), trained(1))), START + 5)
    assert isinstance(action, Fail)
    assert action.cause is Cause.USER
    assert "no checkpoint" in action.message


def test_a_missing_output_is_a_failure_that_names_it() -> None:
    promised = record(nodes=1, expects=Expectations(outputs=("oci://b@n/out",)))
    action = decide(promised, RunStatus(nodes=(trained(0),)), START + 5)
    assert isinstance(action, Fail)
    assert "oci://b@n/out" in action.message


def test_success_needs_the_checkpoint_and_every_required_output() -> None:
    promised = record(nodes=1, expects=Expectations(checkpoint=True, outputs=("oci://b@n/out",)))
    status = RunStatus(nodes=(trained(0, checkpoint=CHECKPOINT, outputs=("oci://b@n/out",)),))
    assert decide(promised, status, START + 5) == Succeed()


def test_a_corrupt_checkpoint_is_no_success() -> None:
    status = RunStatus(
        nodes=(trained(0, checkpoint=CHECKPOINT),), checkpoint_problem="x.pt has 3 of 10 bytes"
    )
    action = decide(record(nodes=1), status, START + 5)
    assert action == Fail(Cause.USER, "x.pt has 3 of 10 bytes")


def test_unreadable_reports_are_waited_for_and_are_no_failure() -> None:
    promised = record(expects=Expectations(checkpoint=True))
    status = gang(NodeState.SUCCEEDED, NodeState.SUCCEEDED, reports_readable=False)
    assert decide(promised, status, START + 10_000) == Wait()


def test_reports_that_stay_unreadable_are_not_waited_for_without_end() -> None:
    promised = record(expects=Expectations(checkpoint=True))
    nodes = tuple(node(rank, NodeState.SUCCEEDED, finished_at=START) for rank in range(2))
    status = RunStatus(nodes=nodes, reports_readable=False)
    assert decide(promised, status, START + 9999) == Wait()
    waiting = replace(promised, unread_since=START + 9000)
    assert decide(waiting, status, START + 10799) == Wait()
    action = decide(waiting, status, START + 10801)
    assert isinstance(action, Fail)
    assert action.cause is Cause.SERVICE
    assert "their reports cannot be read, in oci://b@n/work/x" in action.message
    assert isinstance(decide(replace(record(), unread_since=START), status, START + 10801), Fail)
    nobody_reports = record(expects=Expectations(reports=False))
    assert decide(nobody_reports, status, START) == Succeed()


def test_one_failed_node_ends_the_others_with_its_cause() -> None:
    failed = report(1, exit_code=3, cause=Cause.USER, message="ValueError: boom")
    status = RunStatus(nodes=(node(0, NodeState.RUNNING), node(1, NodeState.FAILED, report=failed)))
    action = decide(record(), status, START + 5)
    assert action == Cancel(
        Ending(cause=Cause.USER, message="node 1: ValueError: boom (exit code 3)", since=START + 5)
    )


def preempted(**changes: object) -> NodeStatus:
    details = {"cause": Cause.PREEMPTED, "details": "The instance was preempted."}
    return node(1, NodeState.FAILED, finished_at=START + 9, **{**details, **changes})


@pytest.mark.parametrize("said", [None, Cause.NODE, Cause.HANG])
@pytest.mark.parametrize("own", [None, Cause.NODE])
def test_a_preempted_node_explains_what_the_others_have_reported(
    said: Cause | None, own: Cause | None
) -> None:
    survivor = node(
        0,
        NodeState.FAILED,
        finished_at=START + 5,
        report=report(0, cause=said, exit_code=1, message="lost the connection", phase=Phase.DONE),
    )
    gone = preempted(report=report(1, cause=own, message="stopped by SIGTERM", phase=Phase.DONE))
    expected = Fail(Cause.PREEMPTED, "node 1: The instance was preempted.")
    assert decide(record(), RunStatus(nodes=(survivor, gone)), START + 10) == expected
    # The service may call it ended when the gang is being ended for what the survivor has reported.
    ending = Ending(cause=Cause.NODE, message="node 0: lost the connection", since=START + 6)
    assert decide(record(ending=ending), RunStatus(nodes=(survivor, gone)), START + 10) == expected


def test_a_preemption_does_not_excuse_a_program_that_has_failed() -> None:
    failed = node(0, NodeState.FAILED, report=report(0, cause=Cause.USER, exit_code=1, message="ValueError"))
    action = decide(record(), RunStatus(nodes=(failed, preempted())), START + 10)
    assert isinstance(action, Fail)
    assert action.cause is Cause.USER
    late = Ending(cause=Cause.DEADLINE, message="too late", since=START + 6)
    gone = RunStatus(nodes=(node(0, NodeState.CANCELED), preempted()))
    assert decide(record(ending=late), gone, START + 10) == Fail(Cause.DEADLINE, "too late")


def test_the_node_that_names_a_cause_is_blamed_and_not_the_one_that_ended_first() -> None:
    told = node(0, NodeState.FAILED, report=report(0, exit_code=143), finished_at=START + 1)
    guilty = node(
        1, NodeState.FAILED, report=report(1, cause=Cause.OOM, message="killed"), finished_at=START + 2
    )
    action = decide(record(), RunStatus(nodes=(told, guilty)), START + 5)
    assert action == Fail(Cause.OOM, "node 1: killed")


@pytest.mark.parametrize("seed", range(20))
def test_the_node_that_names_a_cause_is_blamed_though_the_service_calls_it_ended_last(seed: int) -> None:
    draw = random.Random(seed)
    guilty, cause = draw.randrange(4), draw.choice([Cause.USER, Cause.OOM, Cause.DATA])
    asked = f"node {guilty} ended the run ({cause}): broken"

    def status_of(rank: int) -> NodeStatus:
        if rank == guilty:
            own = report(rank, phase=Phase.DONE, cause=cause, message="broken", exit_code=1)
            return node(rank, NodeState.RUNNING, report=own)
        state = draw.choice([NodeState.FAILED, NodeState.SUCCEEDED])
        return node(rank, state, report=report(rank, phase=Phase.DONE, message=asked, exit_code=143))

    action = decide(record(nodes=4), RunStatus(nodes=tuple(map(status_of, range(4)))), START + 5)
    assert isinstance(action, Cancel)
    assert (action.ending.cause, action.ending.message) == (cause, f"node {guilty}: broken (exit code 1)")


def test_an_ended_gang_fails_for_the_reason_it_was_ended() -> None:
    ending = Ending(cause=Cause.HANG, message="stuck", since=START)
    status = gang(NodeState.CANCELED, NodeState.CANCELED)
    assert decide(record(ending=ending), status, START + 5) == Fail(Cause.HANG, "stuck")


def test_a_gang_that_finished_before_the_cancel_took_hold_has_succeeded() -> None:
    ending = Ending(cause=Cause.DEADLINE, message="late", since=START)
    status = RunStatus(nodes=(trained(0, checkpoint=CHECKPOINT), trained(1)))
    assert decide(record(ending=ending), status, START + 5) == Succeed()


def test_a_node_that_does_not_hear_the_cancel_is_cancelled_again_after_a_while() -> None:
    ending = Ending(cause=Cause.USER, message="x", since=START)
    status = gang(NodeState.RUNNING, NodeState.CANCELED)
    assert decide(record(ending=ending), status, START + 14) == Wait()
    again = decide(record(ending=ending), status, START + 15)
    assert again == Cancel(Ending(cause=Cause.USER, message="x", since=START + 15, began=START))


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


def test_a_node_that_is_saving_its_checkpoint_is_left_alone_for_a_while() -> None:
    failed = node(
        1, NodeState.FAILED, report=report(1, cause=Cause.USER, message="boom"), finished_at=START + 5
    )
    saving = node(0, NodeState.RUNNING, report=report(0, phase=Phase.SAVING))
    status = RunStatus(nodes=(saving, failed))
    assert watched(record(), (START + 6, status), (START + 125, status)) == Wait()
    assert isinstance(watched(record(), (START + 6, status), (START + 127, status)), Cancel)


def test_a_failure_that_only_the_node_reported_leaves_those_that_save_no_longer_than_any_other() -> None:
    failed = node(1, NodeState.SUCCEEDED, report=report(1, phase=Phase.DONE, exit_code=1))
    saving = node(0, NodeState.RUNNING, report=report(0, phase=Phase.SAVING))
    status = RunStatus(nodes=(saving, failed))
    assert watched(record(), (START + 6, status), (START + 125, status)) == Wait()
    assert isinstance(watched(record(), (START + 6, status), (START + 127, status)), Cancel)


@pytest.mark.parametrize("other", [NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.CANCELED])
def test_a_failure_is_not_judged_before_its_report_could_be_read(other: NodeState) -> None:
    """What a node says of its own failure decides about retries; one bad moment of the store hides it."""
    failed = node(1, NodeState.FAILED, report=report(1, phase=Phase.DONE, exit_code=1, cause=Cause.USER))
    beside = node(0, other, report=report(0, phase=Phase.DONE, exit_code=0))
    readable = RunStatus(nodes=(beside, failed))
    hidden = RunStatus(
        nodes=tuple(replace(each, report=None) for each in readable.nodes), reports_readable=False
    )
    known = record(unread_since=START + 6) if hidden.ended else record()
    at_last = Cause.CANCELED if other is NodeState.CANCELED else Cause.NODE
    looks = [(START + 6, hidden), (START + 66, hidden)]
    assert watched(known, *looks) == Wait()
    assert cause_of(watched(known, *looks, (START + 67, readable))) is Cause.USER
    assert cause_of(watched(known, *looks, (START + 127, hidden))) is at_last
    assert cause_of(watched(known, (START + 6, _for_want_of_machines(hidden)))) is Cause.CAPACITY


def _for_want_of_machines(status: RunStatus) -> RunStatus:
    nodes = (
        replace(each, cause=Cause.CAPACITY) if each.state is NodeState.FAILED else each
        for each in status.nodes
    )
    return replace(status, nodes=tuple(nodes))


def cause_of(action: Action) -> Cause:
    assert isinstance(action, Cancel | Fail)
    return action.cause if isinstance(action, Fail) else action.ending.cause


def test_nodes_that_end_for_ever_are_asked_to_end_and_then_given_up_with_their_names() -> None:
    status = gang(NodeState.ENDING, NodeState.SUCCEEDED)
    assert watched(record(), (START, status), (START + 1800, status)) == Wait()
    action = watched(record(), (START, status), (START + 1801, status))
    assert isinstance(action, Cancel)
    assert action.ending.cause is Cause.SERVICE
    assert "node 0 began to end 1801 s ago" in action.ending.message
    failed = decide(record(ending=action.ending), status, START + 1801 + 1800)
    assert isinstance(failed, Fail)
    assert "node 0 (ENDING, run0)" in failed.message


def test_an_ending_that_an_older_version_has_begun_is_limited_too() -> None:
    ending = Ending(cause=Cause.USER, message="x", since=START)
    assert isinstance(decide(record(ending=ending), gang(NodeState.RUNNING), START + 1800), Fail)
    again = decide(record(ending=ending), gang(NodeState.RUNNING), START + 1799)
    assert isinstance(again, Cancel)
    assert (again.ending.first, again.ending.since) == (START, START + 1799)


def test_a_node_that_was_asked_to_stop_says_by_whom() -> None:
    told = node(
        0, NodeState.FAILED, report=report(0, message="told to stop by SIGTERM"), details="exit code 143"
    )
    action = decide(record(nodes=1), RunStatus(nodes=(told,)), START + 5)
    assert action == Fail(Cause.NODE, "node 0: told to stop by SIGTERM")


def test_fetching_data_for_hours_is_no_hang() -> None:
    limits = record(nodes=1, hang_timeout=30.0)
    fetching = report(0, phase=Phase.FETCHING, progress=Progress(updated_at=START))
    status = RunStatus(nodes=(node(0, NodeState.RUNNING, report=fetching),))
    assert watched(limits, (START, status), (START + 9999, status)) == Wait()


def test_an_unknown_state_is_waited_out() -> None:
    assert decide(record(), gang(NodeState.RUNNING, NodeState.UNKNOWN), START + 1e6) == Wait()


@pytest.mark.parametrize("seed", range(200))
def test_any_history_ends_in_one_verdict_and_never_in_a_success_with_a_failed_node(seed: int) -> None:
    random_ = random.Random(seed)
    print("seed", seed)
    known = record(
        nodes=3, deadline=START + 50, start_deadline=START + 20, expects=Expectations(reports=False)
    )
    states = [NodeState.PENDING] * 3
    now = START
    for _ in range(500):
        now += random_.uniform(0.1, 3)
        action = decide(known, gang(*states), now)
        if isinstance(action, Succeed | Fail):
            break
        if isinstance(action, Cancel):
            known = replace(known, ending=action.ending)
        states = [_move(state, known.ending is not None, random_) for state in states]
    assert isinstance(action, Succeed | Fail)
    assert all(state.terminal for state in states)
    assert isinstance(action, Succeed) == all(state is NodeState.SUCCEEDED for state in states)


def _move(state: NodeState, ending: bool, random_: random.Random) -> NodeState:
    if state.terminal or random_.random() < 0.6:
        return state
    if ending and random_.random() < 0.8:
        return NodeState.CANCELED
    return {
        NodeState.PENDING: random_.choice([NodeState.RUNNING, NodeState.FAILED, NodeState.UNKNOWN]),
        NodeState.UNKNOWN: NodeState.RUNNING,
        NodeState.RUNNING: random_.choice([NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.FAILED]),
    }[state]


def test_a_record_survives_json_and_stays_small() -> None:
    big = record(
        nodes=8,
        ending=Ending(cause=Cause.USER, message="m" * 200, since=START),
        deadline=START,
        expects=Expectations(checkpoint=True, outputs=("oci://b@n/out",)),
    )
    assert RunRecord.from_json(big.to_json()) == big
    assert len(str(big.to_json())) < 4096


def test_a_node_without_an_agent_is_not_lost_for_its_silence() -> None:
    silent = record(nodes=1, lost_timeout=10.0)
    looks = (START, gang(NodeState.RUNNING)), (START + 60, gang(NodeState.RUNNING))
    assert isinstance(watched(silent, *looks), Cancel)
    assert watched(replace(silent, expects=Expectations(reports=False)), *looks) == Wait()


def test_the_failure_of_a_node_without_an_agent_points_at_its_log():
    failed = gang(NodeState.FAILED)
    assert decide(record(nodes=1, expects=Expectations(reports=False)), failed, START + 60) == Fail(
        Cause.USER, "node 0: the service gives no reason; its log says more"
    )


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


def test_of_two_nodes_only_the_one_that_is_silent_is_lost() -> None:
    def status(turn: int) -> RunStatus:
        beating = node(0, NodeState.RUNNING, report=report(0, heartbeat_at=START + turn))
        return RunStatus(nodes=(beating, node(1, NodeState.RUNNING, report=report(1))))

    looks = [(START + 100 * turn, status(turn)) for turn in range(4)]
    action = watched(record(lost_timeout=120.0), *looks)
    assert isinstance(action, Cancel)
    assert "node 1 has sent no heartbeat for 300 s" in action.ending.message


def test_what_one_watcher_has_measured_goes_to_the_next_and_moments_do_not() -> None:
    quiet = RunStatus(nodes=(node(0, NodeState.RUNNING, report=report(0)),))
    first = observe(observe(record(nodes=1), quiet, 0.0), quiet, 100.0)
    second = observe(RunRecord.from_json(first.to_json()), quiet, 0.0)
    third = observe(second, quiet, 21.0)
    assert isinstance(decide(replace(third, lost_timeout=120.0), quiet, START), Cancel)
    fresh = observe(observe(record(nodes=1), quiet, 0.0), quiet, 4.0)
    assert fresh.to_json() == record(nodes=1).to_json(), "a record stays small"
