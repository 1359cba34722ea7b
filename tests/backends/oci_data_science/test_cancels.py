"""A cancel is done when the nodes end, and not when the service has given some answer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import CancelFailed, Cause
from airflow_provider_ocidist.model.run import Ending, NodeState, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.http_client import http

NODES = 3
ANSWERS = {
    401: "NotAuthenticated",
    404: "NotAuthorizedOrNotFound",
    409: "IncorrectState",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, 16, NODES) as gangs:
        yield gangs


def answer(
    faults: Any, run_id: str, status: int, *, action: str = "/actions/cancelJobRun", **more: Any
) -> None:
    faults(path=f".*/jobRuns/{run_id}{action}", status=status, code=ANSWERS[status], **more)


def states(idle: IdleGangs, ref: RunRef) -> list[NodeState]:
    (status,) = idle.backend.status([ref])
    return [node.state for node in status.nodes]


def ending(state: NodeState) -> bool:
    return state.terminal or state is NodeState.ENDING


def stop_request(idle: IdleGangs, ref: RunRef) -> dict[str, Any]:
    return dict(json.loads(open_store(ref.run_dir, idle.backend.access).read(STOP_FILE)))


def _cancel_error(idle: IdleGangs, ref: RunRef) -> CancelFailed | None:
    try:
        idle.backend.cancel(ref)
    except CancelFailed as error:
        return error
    return None


def fresh(idle: IdleGangs, number: int) -> RunRef:
    return idle.records[number].ref


def test_a_409_of_a_run_that_goes_on_is_no_cancel(idle: IdleGangs, faults: Any) -> None:
    ref = fresh(idle, 0)
    answer(faults, ref.run_ids[1], 409, times=1)
    with pytest.raises(CancelFailed, match=f"cancelling job run {ref.run_ids[1]}.*it is RUNNING") as caught:
        idle.backend.cancel(ref)
    assert caught.value.retryable
    assert caught.value.stop_requested
    assert [ending(state) for state in states(idle, ref)] == [True, False, True]
    idle.backend.cancel(ref)
    assert all(map(ending, states(idle, ref)))


def test_a_409_of_runs_that_have_ended_is_what_was_asked_for(idle: IdleGangs) -> None:
    ref = fresh(idle, 1)
    for _ in range(3):
        idle.backend.cancel(ref)
    assert all(map(ending, states(idle, ref)))


def test_a_404_counts_only_where_the_list_of_the_job_bears_it_out(idle: IdleGangs, faults: Any) -> None:
    ref = fresh(idle, 2)
    answer(faults, ref.run_ids[0], 404, times=1)
    with pytest.raises(CancelFailed, match="404 NotAuthorizedOrNotFound"):
        idle.backend.cancel(ref)
    deleted = replace(ref, run_ids=("ocid1.datasciencejobrun.oc1.iad.absent", *ref.run_ids[1:]))
    idle.backend.cancel(deleted)
    faults(path="/20190101/jobRuns", status=404, code="NotAuthorizedOrNotFound")
    with pytest.raises(CancelFailed):
        idle.backend.cancel(deleted)


def test_nodes_that_are_known_are_cancelled_though_the_list_of_the_job_is_refused(
    idle: IdleGangs, faults: Any
) -> None:
    ref = fresh(idle, 3)
    faults(path="/20190101/jobRuns", status=401, code="NotAuthenticated")
    with pytest.raises(CancelFailed):
        idle.backend.cancel(replace(ref, run_ids=("", *ref.run_ids[1:])))
    http.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
    assert [ending(state) for state in states(idle, ref)] == [False, True, True]


def test_the_stop_request_says_why_and_is_left_though_the_service_refuses(
    idle: IdleGangs, faults: Any
) -> None:
    ref = fresh(idle, 4)
    faults(path="/20190101/jobRuns.*", status=401, code="NotAuthenticated")
    why = Ending(cause=Cause.HANG, message="no step for 10 s", since=1.0)
    with pytest.raises(CancelFailed, match="a stop request in the run directory reaches the nodes") as caught:
        idle.backend.cancel(ref, why)
    assert (caught.value.status_code, caught.value.stop_requested) == (401, True)
    assert stop_request(idle, ref) == {"cause": "HANG", "message": "no step for 10 s"}


def test_where_neither_side_is_reached_it_says_so(idle: IdleGangs, faults: Any) -> None:
    ref = fresh(idle, 5)
    faults(path=".*", method="PUT|POST", status=401, code="NotAuthenticated")
    with pytest.raises(CancelFailed, match="no stop request could be written") as caught:
        idle.backend.cancel(ref)
    assert not caught.value.stop_requested


def test_a_service_that_asks_for_a_minutes_patience_does_not_hold_up_a_cancel(
    idle: IdleGangs, faults: Any
) -> None:
    ref = fresh(idle, 6)
    faults(path=".*/actions/cancelJobRun", status=429, code="TooManyRequests", retry_after_s=60, times=NODES)
    idle.forget_calls()
    idle.backend.cancel(ref)
    asked = idle.calls(".*/actions/cancelJobRun")
    assert sorted(call["status"] for call in asked) == [204] * NODES + [429] * NODES
    # Had it waited as asked, its caller would have been killed long before.
    times = [float(str(call["time"])) for call in asked]
    assert max(times) - min(times) < 30


@pytest.mark.parametrize("seed", range(6))
def test_a_cancel_that_has_succeeded_leaves_nothing_that_goes_on(
    idle: IdleGangs, faults: Any, seed: int
) -> None:
    dice = random.Random(seed)
    ref = fresh(idle, 8 + seed)
    for run_id in ref.run_ids:
        for _ in range(dice.randint(0, 3)):
            path = dice.choice(["/actions/cancelJobRun", "/actions/cancelJobRun", ""])
            answer(faults, run_id, dice.choice(sorted(ANSWERS)), action=path, times=dice.randint(1, 2))
    if dice.random() < 0.5:
        faults(path="/20190101/jobRuns", status=dice.choice([401, 404, 503]), times=dice.randint(1, 8))
    tried = 0
    while (error := _cancel_error(idle, ref)) is not None:
        assert error.stop_requested, f"seed {seed}: {error}"
        tried += 1
        assert tried < 30, f"seed {seed}: {error}"
    http.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
    assert all(map(ending, states(idle, ref))), f"seed {seed}"


def test_requests_of_others_do_not_use_the_connections_by_which_is_cancelled(backend: OciDataScience) -> None:
    assert backend._clients.cancels is not backend._client
    adapters = [
        client.base_client.session.get_adapter("http://x")
        for client in (backend._clients.cancels, backend._client)
    ]
    assert adapters[0] is not adapters[1]


def test_what_must_not_wait_gives_up_within_seconds(backend: OciDataScience) -> None:
    urgent = clients.client(replace(backend.access, urgent=True), "data_science")
    assert urgent.base_client.timeout == (5.0, 5.0)
