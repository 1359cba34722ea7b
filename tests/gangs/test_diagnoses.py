"""What a failed node is said to have died of, and who of several is at fault: each rule of the supervisor alone."""

from __future__ import annotations

import random
import re
from dataclasses import astuple, replace
from typing import Any

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs import canceller, earlier_tries
from airflow_provider_ocidist.gangs.actions import Cancel, Fail
from airflow_provider_ocidist.gangs.decisions import UNREADABLE_LIMIT, decide, unread
from airflow_provider_ocidist.gangs.diagnoses import failed_node, is_unexplained, node_of, refused_in_place
from airflow_provider_ocidist.model.attempts import Attempt, Place
from airflow_provider_ocidist.model.homes import WORDS
from airflow_provider_ocidist.model.pauses import SAVED_WITHIN
from airflow_provider_ocidist.model.refusal import REMEMBERED, Refusal
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import Ending, Expectations, NodeState, NodeStatus, RunStatus
from tests.gangs.records import START, gang, node, record, report, trained

FAILED, MISSING, CANCELED, SUCCEEDED = (
    NodeState.FAILED,
    NodeState.MISSING,
    NodeState.CANCELED,
    NodeState.SUCCEEDED,
)


def judged(*nodes: NodeStatus, **changes: Any) -> Fail:
    known = replace(record(len(nodes)), **changes)
    action = decide(known, RunStatus(nodes=nodes), START + 100)
    assert isinstance(action, Fail)
    return action


DIAGNOSES = {
    "deleted": (node(0, MISSING), Cause.CANCELED, "node 0: its job run run0 was deleted outside this task"),
    "cancelled": (
        node(0, CANCELED, details="by me"),
        Cause.CANCELED,
        "node 0: its job run was cancelled outside this task (by me)",
    ),
    "the service's cause": (
        node(0, FAILED, cause=Cause.CAPACITY, details="no host"),
        Cause.CAPACITY,
        "node 0: no host",
    ),
    "no reason": (
        node(0, FAILED, cause=Cause.QUOTA),
        Cause.QUOTA,
        "node 0: the service gives no reason",
    ),
    "its own cause": (
        node(
            0, FAILED, cause=Cause.NODE, report=report(0, cause=Cause.OOM, message="no memory", exit_code=137)
        ),
        Cause.OOM,
        "node 0: no memory (exit code 137)",
    ),
    "a cause alone": (node(0, FAILED, report=report(0, cause=Cause.HANG)), Cause.HANG, "node 0: failed"),
    "a message alone": (
        node(0, FAILED, report=report(0, message="it burns")),
        Cause.NODE,
        "node 0: it burns",
    ),
    "no report": (
        node(0, FAILED, details="exit 1"),
        Cause.NODE,
        "node 0 ended before its agent could report: exit 1",
    ),
    "lost": (
        node(0, FAILED, report=report(0, phase=Phase.TRAINING), details="gone"),
        Cause.NODE,
        "node 0 was lost in phase TRAINING: gone",
    ),
    "a success nobody reported": (
        node(0, SUCCEEDED),
        Cause.NODE,
        "node 0: the service reports SUCCEEDED, but the agent wrote no report, so the result cannot be verified",
    ),
    "a success that exited otherwise": (
        node(0, SUCCEEDED, report=report(0, phase=Phase.DONE, exit_code=3)),
        Cause.NODE,
        "node 0: it exited with 3, though the service reports SUCCEEDED",
    ),
}


@pytest.mark.parametrize("name", DIAGNOSES)
def test_a_failure_has_its_cause_and_its_words(name: str) -> None:
    failed, cause, message = DIAGNOSES[name]
    assert judged(failed) == Fail(cause, message)
    assert node_of(record(1), RunStatus(nodes=(failed,)), message) == failed
    assert node_of(record(1), RunStatus(nodes=(failed,)), "another") is None


def test_without_an_agent_the_log_says_more() -> None:
    found = judged(node(0, FAILED, details="exit 1"), expects=Expectations(reports=False))
    assert found == Fail(Cause.USER, "node 0: exit 1; its log says more")


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


# In the place of a lost machine


REFUSED = Refusal(cause=Cause.QUOTA, message="the limit is reached", at=START, nodes=2)


@pytest.mark.parametrize(
    "at, found",
    [
        (None, (Cause.QUOTA, "the limit is reached")),
        (START + 60.0, (Cause.QUOTA, "the limit is reached")),
        (START + REMEMBERED, None),
    ],
)
def test_a_refused_request_says_why_no_machine_took_the_place_of_a_lost_one_for_a_while(
    at: float | None, found: Any
) -> None:
    lost = node(1, FAILED, report=report(1), details="gone")
    status = RunStatus(nodes=(node(0, CANCELED, report=report(0)), lost), at=at)
    assert refused_in_place(record(refused=REFUSED), status) == found
    assert refused_in_place(record(), status) is None


# Who is blamed


def test_the_node_that_names_a_cause_is_blamed_and_not_the_one_that_ended_first() -> None:
    asked = node(0, NodeState.FAILED, report=report(0, exit_code=143), finished_at=START + 1)
    guilty = node(
        1, NodeState.FAILED, report=report(1, cause=Cause.OOM, message="killed"), finished_at=START + 2
    )
    action = decide(record(), RunStatus(nodes=(asked, guilty)), START + 5)
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


def test_a_node_that_was_asked_to_stop_says_by_whom() -> None:
    asked = node(0, NodeState.FAILED, report=report(0, message="stopped by SIGTERM"), details="exit code 143")
    action = decide(record(nodes=1), RunStatus(nodes=(asked,)), START + 5)
    assert action == Fail(Cause.NODE, "node 0: stopped by SIGTERM")


def test_the_failure_of_a_node_without_an_agent_points_at_its_log():
    failed = gang(NodeState.FAILED)
    assert decide(record(nodes=1, expects=Expectations(reports=False)), failed, START + 60) == Fail(
        Cause.USER, "node 0: the service gives no reason; its log says more"
    )


def test_the_root_of_the_trouble_is_named_first() -> None:
    follower = node(0, FAILED, cause=Cause.NODE, finished_at=1.0, report=report(0, message="asked to stop"))
    root = node(1, FAILED, finished_at=9.0, report=report(1, cause=Cause.USER, message="ValueError: x"))
    assert judged(follower, root).cause is Cause.USER
    early = node(0, FAILED, finished_at=1.0, cause=Cause.NODE, details="early")
    late = node(1, FAILED, finished_at=2.0, cause=Cause.NODE, details="late")
    never = node(2, FAILED, cause=Cause.NODE, details="never")
    for nodes in ((never, late, early), (late, early, never)):
        assert judged(*nodes).message == "node 0: early"
    assert judged(never, late).message == "node 1: late"


def test_of_nodes_that_name_no_cause_the_one_is_blamed_whose_reason_the_service_gives() -> None:
    first = node(0, FAILED, details="exit 1", finished_at=1.0)
    known = node(1, FAILED, cause=Cause.CAPACITY, details="no host", finished_at=9.0)
    for nodes in ((first, known), (known, first)):
        assert judged(*nodes) == Fail(Cause.CAPACITY, "node 1: no host")


def test_a_success_that_nobody_has_reported_yet_counts_as_a_failure_once_all_nodes_have_ended() -> None:
    silent, runs = node(0, SUCCEEDED), node(1, NodeState.RUNNING)
    assert failed_node(record(), RunStatus(nodes=(silent, runs))) is None
    _, cause, message = DIAGNOSES["a success nobody reported"]
    assert failed_node(record(), RunStatus(nodes=(silent, trained(1)))) == (cause, message)
    exited, cause, message = DIAGNOSES["a success that exited otherwise"]
    assert failed_node(record(), RunStatus(nodes=(exited, runs))) == (cause, message)


def test_only_a_failure_without_the_services_reason_waits_for_reports_that_cannot_be_read() -> None:
    runs = node(1, NodeState.RUNNING)
    for first, expected in (
        (node(0, FAILED), True),
        (node(0, FAILED, cause=Cause.CAPACITY), False),
        (node(0, CANCELED), False),
    ):
        status = RunStatus(nodes=(first, runs), reports_readable=False)
        assert is_unexplained(record(), status) is expected
        assert not is_unexplained(record(), replace(status, reports_readable=True))
        assert not is_unexplained(record(expects=Expectations(reports=False)), status)


def test_nodes_that_live_on_are_named_with_the_way_to_end_them() -> None:
    ending = Ending(cause=Cause.HANG, message="no step", since=START)
    known = replace(record(3), ending=ending, ending_limit=60.0)
    alive = (trained(0), replace(node(1, NodeState.RUNNING), run_id=""), node(2, NodeState.ENDING))
    found = decide(known, RunStatus(nodes=alive), START + 60)
    assert isinstance(found, Fail)
    assert found.cause is Cause.HANG
    assert found.message.startswith("no step; NOT ENDED 60 s after the first cancel")
    assert "node 1 (RUNNING, no id), node 2 (ENDING, run2)" in found.message
    assert (
        "Cancel again with ocidist cancel job, or in the console (Data Science, Jobs, job runs); if"
        in found.message
    )
    here = replace(known, ref=replace(known.ref, backend="local", job_id="/srv/my work/x"))
    at_home = decide(here, RunStatus(nodes=alive), START + 60)
    assert isinstance(at_home, Fail)
    assert (
        "ocidist cancel --backend local '/srv/my work/x', or on its machine, with kill; if" in at_home.message
    )


def messages_at(kind: str) -> dict[str, str]:
    """Return what people read of a gang of this kind that ends in each of the ways which are not the training's."""
    ref = replace(record(1).ref, backend=kind)
    waiting = replace(record(1), ref=ref, start_deadline=START + 60)
    ending = replace(
        waiting, ending=Ending(cause=Cause.HANG, message="no step", since=START), ending_limit=60.0
    )
    alive = RunStatus(nodes=(node(0, NodeState.ENDING),))
    never_started = decide(waiting, RunStatus(nodes=(node(0, NodeState.PENDING),)), START + 60)
    still_alive = decide(ending, alive, START + 60)
    assert isinstance(never_started, Cancel)
    assert isinstance(still_alive, Fail)
    return {
        "never started": never_started.ending.message,
        "still alive": still_alive.message,
        "deleted": judged(node(0, MISSING), ref=ref).message,
        "cancelled": judged(node(0, CANCELED), ref=ref).message,
        "no report": judged(node(0, FAILED), ref=ref).message,
        "no agent": judged(node(0, FAILED), ref=ref, expects=Expectations(reports=False)).message,
        "unreadable": unread(waiting, alive),
        "begun": earlier_tries._begun(Attempt(key=ref.key, place=Place(backend=kind, run_dir="/run"))),
        "may still be running": earlier_tries._alive(ref, BackendError("refused")),
        "earlier gang": str(canceller._still_alive([(ref, alive)], 60.0)),
        "incomplete gang": str(canceller._not_removed(ref, 60.0)),
    }


@pytest.mark.parametrize("kind", kinds.names("backends"))
def test_each_home_is_spoken_of_in_its_own_words(kind: str) -> None:
    own, others = WORDS[kind], [words for name, words in WORDS.items() if name != kind]
    own_words = set(astuple(own))
    found = messages_at(kind)
    for text in found.values():
        foreign = {
            part for words in others for part in astuple(words) if isinstance(part, str) and part
        } - own_words
        # `job` is also what every home is given, and `process` what runs on every node.
        said = [
            part for part in foreign - {"job", "process", "id"} if re.search(rf"\b{re.escape(part)}\b", text)
        ]
        assert said == [], text
    for name in ("still alive", "begun", "earlier gang", "incomplete gang"):
        assert own.where in found[name], name
    assert own.helper in found["still alive"]
    assert f"its {own.node} run0 was deleted" in found["deleted"]
    assert f"its {own.node} was cancelled" in found["cancelled"]
    assert f"its {own.gang} job could not be deleted" in found["incomplete gang"]


def test_how_long_is_waited_is_as_documented() -> None:
    assert (SAVED_WITHIN, UNREADABLE_LIMIT) == (120.0, 1800.0)
