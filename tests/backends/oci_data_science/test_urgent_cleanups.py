"""What a failed submission has created is ended at once, whatever the store and the service make others wait for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science import cleanup as module
from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.cleanup import Cleanup
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_RUN
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import Plan, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.backends.oci_data_science import test_cancel_rules as cancel_rules
from tests.backends.silent import Silent
from tests.http_client import http
from tests.training_jobs import a_job, a_key

SEED = random.randrange(10_000)
NODES = 4
ENDED = {"CANCELED", "DELETED"}
PATIENCE = 30.0
"""Seconds for which a test waits for what comes at once, or not before minutes have passed."""


def fails_in_part(backend: OciDataScience, faults: Callable[..., None]) -> Plan:
    """Return the plan of a gang of which the service creates all nodes but one."""
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=1)
    return backend.plan(a_job(nodes=NODES, seconds=60), a_key())


def as_it_fails(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call `act` once, when the creation of a node was refused, and nothing is cancelled yet."""
    abandoned, done = Submission.abandoned, []

    def then(submission: Submission) -> dict[int, str]:
        if not done:
            done.append(act())
        return abandoned(submission)

    monkeypatch.setattr(Submission, "abandoned", then)


def cancelled(emulator: Access) -> set[str]:
    """Return the runs whose cancel the service has accepted."""
    calls = http.get(f"{emulator.url}/_emulator/calls").raise_for_status().json()
    paths = [call["path"].split("/") for call in calls if call["status"] == 204]
    return {path[3] for path in paths if path[-1] == "cancelJobRun"}


def created(backend: OciDataScience, plan: Plan) -> dict[str, str]:
    """Return the states of the runs of a plan."""
    newest = backend._client.list_job_runs(
        plan.compartment_id, sort_by="timeCreated", sort_order="DESC", limit=100
    ).data
    return {
        str(run.id): str(run.lifecycle_state)
        for run in newest
        if (run.freeform_tags or {}).get("ocidist-task") == plan.key.task_digest
    }


@pytest.fixture
def calls_begin(emulator: Access) -> None:
    http.delete(f"{emulator.url}/_emulator/calls").raise_for_status()


@pytest.mark.usefixtures("calls_begin", "no_node_starts")
@pytest.mark.parametrize("refused", [0, NODES - 1])
def test_nodes_of_a_failed_submission_are_cancelled_before_a_silent_store_has_answered(
    backend: OciDataScience,
    emulator: Access,
    faults: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    refused: int,
) -> None:
    """Also those whose first cancel was refused."""
    monkeypatch.setattr(clients, "_URGENT_TIMEOUT_S", 600.0)
    plan = fails_in_part(backend, faults)
    if refused:
        cancel = {"method": "POST", "path": ".*/actions/cancelJobRun"}
        faults(status=409, code="IncorrectState", times=refused, **cancel)
    with ThreadPoolExecutor(1) as pool, Silent() as store:

        def falls_silent() -> None:
            # The clients of the service stay where they are.
            backend._storage = replace(backend._storage, endpoint=store.url)
            backend._run_dirs.clear()
            backend._cancel_dirs.clear()

        as_it_fails(monkeypatch, falls_silent)
        submitted = pool.submit(backend.submit, plan)
        assert store.was_asked.wait(PATIENCE), "no stop request is on its way: the case is not met"
        runs = set(created(backend, plan))
        assert len(runs) == NODES - 1
        deadline = time.monotonic() + PATIENCE
        while cancelled(emulator) != runs:
            assert time.monotonic() < deadline, "a cancel waits for the store"
            time.sleep(0.05)
        assert not submitted.done(), "the store is waited for"
    with pytest.raises(BackendError, match="LimitExceeded"):
        submitted.result(PATIENCE)


@pytest.mark.usefixtures("calls_begin", "no_node_starts")
def test_nodes_are_cancelled_before_the_service_has_answered_for_another_that_has_to_wait(
    backend: OciDataScience, emulator: Access, faults: Callable[..., None]
) -> None:
    plan = fails_in_part(backend, faults)
    waits = {"status": 429, "code": "TooManyRequests", "retry_after_s": 10}
    faults(method="POST", path="/20190101/jobRuns", times=1, **waits)
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(backend.submit, plan)
        deadline = time.monotonic() + PATIENCE
        while len(cancelled(emulator)) < NODES - 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert len(created(backend, plan)) == NODES - 2, "the last one was waited for"
        with pytest.raises(BackendError, match="LimitExceeded"):
            submitted.result(2 * PATIENCE)
    assert set(created(backend, plan).values()) <= ENDED
    assert len(created(backend, plan)) == NODES - 1


@pytest.mark.usefixtures("no_node_starts")
def test_a_service_that_asks_for_a_minutes_patience_does_not_hold_up_the_end_of_a_failed_submission(
    backend: OciDataScience, emulator: Access, faults: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each of its requests waited for Retry-After, all nodes would run for more than a minute."""
    plan = fails_in_part(backend, faults)
    told = {"status": 429, "code": "TooManyRequests", "retry_after_s": 60}

    def is_throttled() -> None:
        faults(path=".*/actions/cancelJobRun", times=NODES - 1, **told)
        faults(method="GET", path="/20190101/jobRuns.*", times=3, **told)

    as_it_fails(monkeypatch, is_throttled)
    with ThreadPoolExecutor(1) as pool:
        submitted = pool.submit(backend.submit, plan)
        with pytest.raises(BackendError, match="LimitExceeded"):
            submitted.result(55)
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert set(created(backend, plan).values()) <= ENDED


@pytest.mark.usefixtures("no_node_starts")
@pytest.mark.parametrize("alive", [True, False])
def test_a_stop_request_that_the_store_did_not_take_in_seconds_is_written_later_for_what_may_live(
    backend: OciDataScience,
    emulator: Access,
    faults: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    alive: bool,
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.WITHIN", 0.5)
    plan = fails_in_part(backend, faults)
    if alive:
        faults(method="POST", path=".*/actions/cancelJobRun", status=409, code="IncorrectState")
    # More often than what is urgent asks.
    faults(method="PUT", path=r".*stop\.json", status=503, retry_after_s=1, times=6)
    with pytest.raises(BackendError, match="LimitExceeded"):
        backend.submit(plan)
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert backend._store(plan.run_dir).exists(STOP_FILE) is alive
    assert (set(created(backend, plan).values()) <= ENDED) is not alive
    for run_id in created(backend, plan):
        backend._cancels.cancel_runs([run_id])


# Against a service in memory


class Service(cancel_rules.Service):
    """Says, too, which of its gang's runs a run is."""

    was_listed = False

    def list_job_runs(self, compartment_id: str, **filters: Any) -> Any:
        found = super().list_job_runs(compartment_id, **filters)
        self.was_listed = True
        return found

    def cancel_job_run(self, run_id: str) -> None:
        super().cancel_job_run(run_id)
        self.states[run_id] = cancel_rules.ENDED

    def described_run(self, run_id: str) -> Any:
        self._do("number", run_id)
        return {"freeformTags": {TAG_RUN: str("abc".index(run_id))}}


def cleanup_of(service: Service, known: Iterable[str]) -> Cleanup:
    ref = RunRef(
        backend="oci_data_science",
        key=a_key(),
        nodes=3,
        job_id="job",
        run_ids=tuple(run_id if run_id in known else "" for run_id in "abc"),
        run_dir="nowhere",
        submitted_at=1.0,
        compartment_id="here",
        topology="job_runs",
    )
    return Cleanup(Cancels(lambda: service, cancel_rules.directories(open_store)), ref)


def verbs(service: Service) -> list[str]:
    """Return what was asked, without repetitions."""
    asked = [verb for verb, _ in service.asked]
    return [verb for verb, before in zip(asked, [None, *asked], strict=False) if verb != before]


@pytest.mark.parametrize("within", [0.0, 20.0])
def test_what_is_known_is_cancelled_first_and_what_a_list_shows_before_its_number_is_read(
    within: float,
) -> None:
    service = Service(dict.fromkeys("abc", cancel_rules.LIVE))
    runs, alive = cleanup_of(service, "ac").end(within)
    assert runs == {0: "a", 1: "b", 2: "c"}
    looks = [] if within == 0 else ["get"]
    assert verbs(service) == ["cancel", "list", "cancel", *looks, "number"]
    assert sorted(service.asked[:2]) == [("cancel", "a"), ("cancel", "c")]
    assert service.asked[3] == ("cancel", "b")
    # Nobody has looked at them since, in the seconds that a killed task has.
    assert set(alive) == (set("abc") if within == 0 else set())


@pytest.mark.parametrize("number", range(30))
def test_a_clean_up_says_of_each_run_that_lives_that_it_may_live(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    print("seed", SEED + number)
    dice = random.Random(SEED + number)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.001)
    states = [cancel_rules.LIVE, "ACCEPTED", "NEEDS_ATTENTION", "ODD", "CANCELING", "CANCELED", "FAILED"]
    service = Service({run_id: dice.choice(states) for run_id in "abc"})
    for run_id in "abc":
        for verb in ("cancel", "get", "number"):
            answers = dice.choices([0, *sorted(cancel_rules.CODES)], k=dice.choice([0, 1, 3, 500]))
            service.answer(verb, run_id, *answers)
    service.answer("list", "job", *dice.choices([0, 401, 404, 503], k=dice.randint(0, 4)))
    known = [run_id for run_id in "abc" if dice.random() < 0.7]
    runs, alive = cleanup_of(service, known).end(dice.choice([0.0, 0.05, 0.3]))
    met = set("abc") if service.was_listed else set(known)
    going = {run_id for run_id, state in service.states.items() if state not in ("CANCELED", "FAILED")}
    assert met & going <= set(alive), "it is said to have ended"
    assert {0: "a", 1: "b", 2: "c"}.items() >= runs.items()
    assert set(known) <= set(runs.values())
