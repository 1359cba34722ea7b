"""The phases of Run:ai as states of nodes, against what its public description lists."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from airflow_provider_ocidist.backends.runai.phases import STATES, Workload, node_states
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState

PHASES = tuple(
    "Creating Initializing Resuming Pending Deleting Running Updating Stopped Stopping Degraded Failed "  # noqa: SIM905 - one list
    "Completed Terminating Unknown".split()
)


def workload(phase: str, message: str = "", reason: str | None = None, *, waits: bool = False) -> Workload:
    return Workload(id="i", name="n", phase=phase, message=message, reason=reason, waits=waits)


def report(phase: Phase, cause: Cause | None = None, exit_code: int | None = None) -> NodeReport:
    return NodeReport(
        rank=0, phase=phase, address="", started_at=1.0, heartbeat_at=2.0, cause=cause, exit_code=exit_code
    )


def test_every_phase_of_the_description_has_a_state_and_no_other_is_guessed() -> None:
    assert set(STATES) == set(PHASES)
    assert workload("Vanishing").state is NodeState.UNKNOWN


@pytest.mark.parametrize("phase", PHASES)
def test_only_completed_is_a_success_and_only_an_end_is_terminal(phase: str) -> None:
    state = workload(phase).state
    assert (state is NodeState.SUCCEEDED) == (phase == "Completed")
    assert state.terminal == (phase in ("Completed", "Failed", "Stopped"))


@pytest.mark.parametrize("phase", PHASES)
def test_what_is_being_deleted_is_told_from_all_else(phase: str) -> None:
    assert workload(phase).is_going == (phase in ("Deleting", "Terminating"))


def test_a_suspension_is_no_success_and_says_what_it_is() -> None:
    stopped = workload("Stopped")
    assert stopped.state is NodeState.CANCELED
    assert "suspended by somebody" in str(stopped.details)


@pytest.mark.parametrize("phase", ["Stopping", "Stopped"])
def test_a_suspension_is_a_pause_where_the_job_says_so(phase: str) -> None:
    paused = workload(phase, waits=True)
    assert paused.state is NodeState.PENDING
    assert "waiting until it is resumed" in str(paused.details)


@pytest.mark.parametrize("reason", ["NonPreemptibleOverQuota", "OverLimit"])
def test_over_quota_is_waiting_with_the_platforms_sentence(reason: str) -> None:
    waiting = workload("Pending", "Workload requested 8 GPUs, but research quota is 4 GPUs", reason)
    assert waiting.state is NodeState.PENDING
    assert waiting.cause is Cause.QUOTA
    assert waiting.details == f"{reason}: Workload requested 8 GPUs, but research quota is 4 GPUs"


@pytest.mark.parametrize(
    "message, cause",
    [
        ("ImagePullBackOff: Back-off pulling image", Cause.CONFIG),
        ("container was OOMKilled", Cause.OOM),
        ("Pod was Preempted by a higher priority", Cause.PREEMPTED),
        ("Evicted: the node was low on memory", Cause.PREEMPTED),
        ("1 Worker replica(s) failed", None),
    ],
)
def test_words_that_name_a_cause_are_that_cause(message: str, cause: Cause | None) -> None:
    assert workload("Failed", message).cause is cause


SAID = [
    None,
    report(Phase.TRAINING),
    report(Phase.SAVING),
    report(Phase.DONE, exit_code=0),
    report(Phase.DONE, Cause.USER, 3),
    report(Phase.DONE, exit_code=3),
]


def test_reports_refine_a_running_workload_and_nothing_else_of_what_lives() -> None:
    for first, second in itertools.product(SAID, repeat=2):
        states = node_states(NodeState.RUNNING, [first, second], 2)
        over = all(each is not None and each.phase is Phase.DONE for each in (first, second))
        for own, each in zip(states, (first, second), strict=True):
            assert not own.terminal or (each is not None and each.cause is not None and not over)
            if each is None:
                assert own is NodeState.PENDING
            elif each.phase is not Phase.DONE:
                assert own is NodeState.RUNNING
        for state in set(NodeState) - {NodeState.RUNNING, NodeState.FAILED, NodeState.SUCCEEDED}:
            assert node_states(state, [first, second], 2) == [state] * 2


def test_without_an_agent_the_phase_of_the_workload_is_that_of_its_nodes() -> None:
    for state in NodeState:
        assert node_states(state, [None, None], 2, has_agent=False) == [state] * 2


def test_of_a_failed_workload_only_a_node_that_reports_its_success_has_succeeded() -> None:
    for each in SAID:
        (state,) = node_states(NodeState.FAILED, [each], 1)
        well = each is not None and each.phase is Phase.DONE and each.exit_code == 0
        assert state is (NodeState.SUCCEEDED if well else NodeState.FAILED)


def test_of_a_failed_workload_a_node_that_was_stopped_has_not_succeeded_though_its_program_exits_with_0() -> (
    None
):
    stopped = replace(report(Phase.DONE, exit_code=0), stopped=True)
    assert node_states(NodeState.FAILED, [stopped], 1) == [NodeState.FAILED]
    assert node_states(NodeState.SUCCEEDED, [stopped], 1) == [NodeState.SUCCEEDED]


def test_of_a_workload_that_has_succeeded_a_node_that_reports_its_failure_has_failed() -> None:
    for each in SAID:
        (state,) = node_states(NodeState.SUCCEEDED, [each], 1)
        failed = each is not None and each.phase is Phase.DONE and each.exit_code != 0
        assert state is (NodeState.FAILED if failed else NodeState.SUCCEEDED)


@pytest.mark.parametrize("state", [NodeState.RUNNING, NodeState.FAILED, NodeState.SUCCEEDED])
def test_without_readable_reports_the_workload_speaks_for_all(state: NodeState) -> None:
    assert node_states(state, None, 3) == [state] * 3


@pytest.mark.parametrize("phase, state", [("RUNNING", NodeState.RUNNING), ("completed", NodeState.SUCCEEDED)])
def test_a_phase_means_the_same_in_any_case(phase: str, state: NodeState) -> None:
    found = Workload.of({"id": "i", "name": "n", "phase": phase})
    assert found.state is state
    assert Workload.of({"id": "i", "name": "n", "phase": "STOPPED"}).cause is Cause.CANCELED


def test_what_waits_for_nodes_lacks_capacity_and_says_what_the_platform_does() -> None:
    waiting = workload("Pending", "Not enough resources in the requested nodepool")
    assert (waiting.state, waiting.cause) == (NodeState.PENDING, Cause.CAPACITY)
    assert waiting.details == "Not enough resources in the requested nodepool"
    assert workload("Pending").cause is None


def test_an_answer_is_read_with_its_times() -> None:
    found = Workload.of(
        {
            "id": "i",
            "name": "n",
            "phase": "Failed",
            "phaseMessage": "gone",
            "createdAt": "2026-11-23T00:00:00.500Z",
            "completedAt": "2026-11-23T00:00:10Z",
            "phaseUpdatedAt": "2026-11-23T00:00:09.750Z",
            "environmentVariables": {"OCIDIST_WHEN_SUSPENDED": "wait"},
        }
    )
    assert found.waits
    assert found.completed_at is not None
    assert found.completed_at - found.created_at == pytest.approx(9.5)
    assert found.phase_since == pytest.approx(found.completed_at - 0.25)
    assert unix_time(None) is None
    # Go leaves out zeros at the end.
    for text, seconds in (("00:00:00.5Z", 0.5), ("00:00:00.123456789Z", 0.123456), ("00:00:01+00:00", 1.0)):
        begin = unix_time("2026-11-23T00:00:00Z") or 0.0
        assert (unix_time(f"2026-11-23T{text}") or 0.0) - begin == pytest.approx(seconds, abs=1e-5)


def test_an_answer_that_says_little_is_a_workload_of_which_little_is_known() -> None:
    found = Workload.of({"id": 7, "name": "n"})
    assert found == Workload(id="7", name="n", phase="Unknown")
    assert (found.message, found.reason, found.namespace, found.created_at) == ("", None, "", 0.0)
    assert (found.completed_at, found.waits, found.has_agent) == (None, False, None)
    assert found.phase_since is None
    assert (found.details, found.cause, found.state) == (None, None, NodeState.UNKNOWN)


def test_an_answer_says_where_its_pods_are_why_it_waits_and_whether_its_nodes_report() -> None:
    answer = {"id": "i", "name": "n", "phaseReason": "why", "namespace": "runai-p"}
    found = Workload.of(answer)
    assert (found.reason, found.namespace) == ("why", "runai-p")
    shown = Workload.of({**answer, "phase": "Running", "phaseMessage": "m"})
    assert (shown.phase, shown.message) == ("Running", "m")
    for names, has_agent in (
        (("OCIDIST_KEY", "OCIDIST_START"), True),
        (("OCIDIST_KEY",), False),
        (("OCIDIST_START",), None),
    ):
        variables = [{"name": name, "value": "x"} for name in names]
        assert Workload.of({**answer, "environmentVariables": variables}).has_agent is has_agent
    other = {**answer, "environmentVariables": {"OCIDIST_WHEN_SUSPENDED": "fail"}}
    assert not Workload.of(other).waits


@pytest.mark.parametrize("phase", PHASES)
def test_a_workload_is_paused_once_it_has_stopped_and_is_to_go_on(phase: str) -> None:
    assert workload(phase, waits=True).is_paused == (phase == "Stopped")
    assert not workload(phase).is_paused
    stopped = phase in ("Stopping", "Stopped")
    assert (workload(phase).cause is Cause.CANCELED) == stopped
    if not stopped:
        assert workload(phase, waits=True).state is workload(phase).state


def test_the_platforms_words_are_shown_with_their_reason_unless_they_hold_it() -> None:
    assert workload("Failed", "m", "r").details == "r: m"
    assert workload("Failed", "the r of it", "r").details == "the r of it"
    assert workload("Failed", "", "r").details == "r"
    assert workload("Failed", "m").details == "m"
    assert workload("Failed").details is None
    assert workload("Stopped", "m", "r").details == (
        "suspended by somebody in Run:ai; clear the task in Airflow to train again; "
        "to let it wait next time, set backend.when_suspended: wait"
    )
    assert workload("Stopping", "m", waits=True).details == (
        "suspended by somebody in Run:ai: waiting until it is resumed"
    )


@pytest.mark.parametrize(
    "sign, cause",
    [
        ("NonPreemptibleOverQuota", Cause.QUOTA),
        ("OverLimit", Cause.QUOTA),
        ("ErrImagePull", Cause.CONFIG),
        ("ImagePullBackOff", Cause.CONFIG),
        ("InvalidImageName", Cause.CONFIG),
        ("OOMKilled", Cause.OOM),
        ("Preempt", Cause.PREEMPTED),
        ("Evict", Cause.PREEMPTED),
    ],
)
def test_a_cause_is_named_by_the_reason_or_the_message(sign: str, cause: Cause) -> None:
    assert workload("Pending", "m", sign).cause is cause
    assert workload("Pending", f"so it is: {sign}.", "r").cause is cause
    assert workload("Failed", "m", "r").cause is None


def test_the_first_of_several_causes_counts() -> None:
    assert workload("Failed", "OOMKilled, then Evicted", "OverLimit").cause is Cause.QUOTA


def test_of_a_running_workload_a_node_that_is_done_is_ending_and_one_that_failed_before_the_others_has_failed() -> (
    None
):
    training, well = report(Phase.TRAINING), report(Phase.DONE, exit_code=0)
    failed = report(Phase.DONE, Cause.USER, 3)
    running = NodeState.RUNNING
    assert node_states(running, [training, well], 2) == [running, NodeState.ENDING]
    assert node_states(running, [training, failed], 2) == [running, NodeState.FAILED]
    assert node_states(running, [well, failed], 2) == [NodeState.ENDING] * 2
    assert node_states(running, [None, failed], 2) == [NodeState.PENDING, NodeState.FAILED]
    assert node_states(running, [report(Phase.SAVING)], 1) == [running]


def test_a_node_that_is_done_with_a_cause_has_failed_whatever_its_exit_code() -> None:
    odd = report(Phase.DONE, Cause.DATA, 0)
    assert node_states(NodeState.SUCCEEDED, [odd], 1) == [NodeState.FAILED]
    assert node_states(NodeState.FAILED, [odd], 1) == [NodeState.FAILED]
    assert node_states(NodeState.SUCCEEDED, [report(Phase.DONE)], 1) == [NodeState.FAILED]
