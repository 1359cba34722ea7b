"""Submissions: what they cost whatever else the compartment holds, and what they leave when they fail."""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oci.identity.models import CreateCompartmentDetails

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.ads_variables import (
    MAIN_RUN,
    wants_main_run,
    with_main_run,
)
from airflow_provider_ocidist.errors import BackendError, Cause, LeftRuns
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef, Tries
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, a_job, a_key, wait_until

SEED = random.randrange(10_000)
TERMINAL = {"SUCCEEDED", "FAILED", "CANCELED", "DELETED"}


def a_compartment(backend: OciDataScience, emulator: Access) -> str:
    identity = clients.client(backend.access, "identity")
    details = CreateCompartmentDetails(
        compartment_id=emulator.compartment_id, name=uuid.uuid4().hex, description="other"
    )
    return str(identity.create_compartment(details).data.id)


def submit(backend: OciDataScience, job: Any, key: RunKey, number: int = 1) -> RunRef:
    gang = GangSubmitter(backend, job, logging.getLogger("test"), None, threading.Event())
    return gang.adopt_or_submit(key, None, number).ref


def requests(emulator: Access, work_dir: str) -> list[str]:
    """Return what was asked of the service and of the store since the last time, for others' nodes left out."""
    calls = http.get(f"{emulator.url}/_emulator/calls").json()
    http.delete(f"{emulator.url}/_emulator/calls").raise_for_status()
    return [
        f"{call['method']} {call['path'].split('?')[0].split('/')[2]}"
        for call in calls
        if call["path"].startswith("/20190101/") or urllib.parse.quote(work_dir, safe="") in call["path"]
    ]


def test_a_submission_a_retry_and_a_clear_cost_the_same_however_many_jobs_there_are(
    fields: dict[str, Any], emulator: Access, never_starts: None
) -> None:
    spent = {others: _spent_among(others, fields, emulator) for others in (0, 100, 1500)}
    # Two are saved where the list is faster than the job is made; while an old gang ends, it is looked at.
    assert all(first <= 12 and retry <= 8 and clear <= 38 for first, retry, clear in spent.values()), spent


@pytest.fixture
def never_starts(emulator: Access) -> Iterator[None]:
    """Let no node start: nodes make requests too."""
    http.post(f"{emulator.url}/_emulator/nodes", json={"never_starts": True}).raise_for_status()
    yield
    http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()


def _spent_among(others: int, fields: dict[str, Any], emulator: Access) -> list[int]:
    """Return how many requests a first try, a retry and a clear send where there are so many jobs of others."""
    place = a_compartment(OciDataScience.connect(fields), emulator)
    backend = OciDataScience.connect({**fields, "compartment_id": place})
    body = backend.plan(a_job(nodes=1), a_key()).requests[0].body
    named = [{**body, "displayName": str(number)} for number in range(others)]
    in_parallel(backend._client.create_job, named)
    key, job = a_key(), a_job(nodes=2, seconds=30)
    spent = []
    seen = (emulator, fields["work_dir"].partition("/work/")[2])
    requests(*seen)
    for asked, number in ((key, 1), (key, 2), (dataclasses.replace(key, generation=4), 3)):
        ref = submit(backend, job, asked, number)
        spent.append(len(requests(*seen)))
    backend.cancel(ref)
    return spent


@pytest.mark.parametrize("number", range(4))
def test_a_submission_that_fails_leaves_no_run_alive_behind_lists_that_are_stale(
    backend: OciDataScience, emulator: Access, faults: Callable[..., None], number: int
) -> None:
    seed = SEED + number
    chance = random.Random(seed)
    nodes = chance.randint(2, 5)
    plan = backend.plan(a_job(nodes=nodes, seconds=60), a_key())
    faults(method="GET", path="/20190101/jobRuns", stale_s=600)
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=1)
    if chance.random() < 0.5:
        refusal = chance.choice(
            [{"status": 409, "code": "IncorrectState"}, {"status": 429}, {"drop": "before"}]
        )
        faults(method="POST", path=".*/actions/cancelJobRun", times=chance.randint(1, nodes), **refusal)
    with pytest.raises(BackendError, match="LimitExceeded"):
        backend.submit(plan)
    states = _runs_of(plan.key, backend, emulator)
    assert len(states) == nodes - 1, seed
    assert set(states.values()) <= TERMINAL, (seed, states)
    assert backend._store(plan.run_dir).exists(STOP_FILE), seed


def _runs_of(key: RunKey, backend: OciDataScience, emulator: Access) -> dict[str, str]:
    """Return the states of all runs of a task, as the service has them once its lists are not behind any more."""
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    newest = backend._client.list_job_runs(
        emulator.compartment_id, sort_by="timeCreated", sort_order="DESC"
    ).data
    # Other tests leave runs behind, some of them without our tags.
    return {
        run.id: run.lifecycle_state
        for run in newest
        if (run.freeform_tags or {}).get("ocidist-task") == key.task_digest
    }


@pytest.mark.parametrize(
    "status, code, hidden",
    [(400, "LimitExceeded", False), (401, "NotAuthenticated", False), (400, "LimitExceeded", True)],
)
def test_runs_that_do_not_end_are_named_and_the_next_try_ends_them_first(
    backend: OciDataScience,
    faults: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    emulator: Access,
    status: int,
    code: str,
    hidden: bool,
) -> None:
    within = 2.5 if hidden else 1.0
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.WITHIN", within)
    key, job = a_key(), a_job(nodes=3, seconds=60)
    faults(method="GET", path="/20190101/jobRuns", stale_s=600)
    faults(method="POST", path="/20190101/jobRuns", status=status, code=code, times=1)
    faults(method="POST", path=".*/actions/cancelJobRun", status=409, code="IncorrectState")
    if hidden:
        # As for a moment after their creation: that the service does not find them is no end.
        faults(method="GET", path="/20190101/jobRuns/.*", status=404, code="NotAuthorizedOrNotFound")
    with pytest.raises(BackendError, match=rf"{code}.*may still run: ocid1\.datasciencejobrun") as caught:
        submit(backend, job, key)
    alive = _runs_of(key, backend, emulator)
    assert all(run_id in str(caught.value) for run_id in alive)
    assert caught.value.retryable
    # Hopeless to Airflow's retries, it would leave them to themselves.
    assert caught.value.cause in (Cause.QUOTA, Cause.SERVICE)
    faults(method="GET", path="/20190101/jobRuns", stale_s=3)
    ref = submit(backend, job, key, 2)
    states = _runs_of(key, backend, emulator)
    assert len(alive) == 2
    assert ref.complete
    assert set(alive).isdisjoint(ref.run_ids), "they were asked to stop"
    assert {run_id for run_id, state in states.items() if state not in TERMINAL} <= set(ref.run_ids), states
    backend.cancel(ref)


HIDDEN = {
    "jobs": "though live job runs of it are listed",
    "jobRuns": "though it is listed",
    "job(s|Runs)": "though it was created",
    "nothing": "though live job runs of it are listed",
}
"""Lists that do not show a gang yet, and what speaks for the gang all the same."""


@pytest.mark.parametrize("behind", HIDDEN)
@pytest.mark.parametrize("number", range(2))
def test_a_moment_in_which_the_service_hides_a_gang_lets_no_second_one_be_made(
    backend: OciDataScience,
    faults: Callable[..., None],
    emulator: Access,
    no_node_starts: None,
    behind: str,
    number: int,
) -> None:
    dice = random.Random(SEED + number)
    print("seed", SEED + number)
    faults(method="GET", path=f"/20190101/{behind}", stale_s=600)
    key, job = a_key(), a_job(nodes=dice.randint(1, 3))
    first = submit(backend, job, key)
    hide(faults, first)
    later = dataclasses.replace(key, generation=number % 2)
    with pytest.raises(BackendError, match=rf"{first.job_id} .*\(404\), {HIDDEN[behind]}") as caught:
        submit(backend, job, later, 2)
    assert caught.value.retryable
    assert caught.value.after_acceptance, "a first try has to wait, too"
    assert set(_runs_of(key, backend, emulator)) == set(first.run_ids)
    ref = submit(backend, job, later, 2)
    live = {run_id for run_id, state in _runs_of(key, backend, emulator).items() if state not in TERMINAL}
    assert live == set(ref.run_ids)
    backend.cancel(ref)


def hide(faults: Callable[..., None], ref: RunRef) -> None:
    """Let the service find neither the job of a gang nor its runs, where it is asked for them by their ids."""
    for path in (f"jobs/{ref.job_id}", *(f"jobRuns/{run_id}" for run_id in ref.run_ids)):
        faults(method="GET", path=f"/20190101/{path}", status=404, code="NotAuthorizedOrNotFound")


class Clock:
    """Time that a test lets pass."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_gang_that_nothing_shows_counts_as_gone_after_four_looks_over_two_minutes(
    fields: dict[str, Any],
    emulator: Access,
    faults: Callable[..., None],
    no_node_starts: None,
) -> None:
    backend, clock = OciDataScience.connect(fields), Clock()
    backend.gangs._clock = clock
    faults(method="GET", path="/20190101/job(s|Runs)", stale_s=600)
    plan = backend.plan(a_job(nodes=2), a_key())
    ref = backend.submit(plan)
    known = Attempt.of(plan, ref)

    def looks(*seconds: float) -> list[bool]:
        """Return at which of these times the gang may still be running."""
        began, found = clock.now, []
        for each in seconds:
            clock.now = began + each
            try:
                found.append(backend.gangs.found(plan.key, [known]) != [])
            except BackendError as error:
                found.append(error.retryable)
        return found

    hide(faults, ref)
    assert all(looks(0, 1, 2, 3, 4, 60, 119)), "all at once, or in less than two minutes"
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert all(looks(10)), "the service shows it again"
    backend.cancel(ref)
    wait_until(backend, ref, lambda status: status.ended)
    backend.delete(ref)
    assert looks(1) == [False], "the service says that it is deleted"
    gone = dataclasses.replace(
        ref,
        job_id="ocid1.datasciencejob.oc1.iad.never",
        run_ids=("ocid1.datasciencejobrun.oc1.iad.never",) * 2,
    )
    known = Attempt.of(plan, gone)
    assert looks(0, 119, 120, 121) == [True, True, True, False], "four looks over two minutes"


def test_a_run_whose_creation_is_answered_too_late_is_cancelled(
    backend: OciDataScience, faults: Callable[..., None]
) -> None:
    plan = backend.plan(a_job(nodes=1, seconds=60), a_key())
    submission = backend._submission(plan)
    job_id = submission.job().id
    submission.artifact(job_id)
    assert submission.abandoned() == {}
    (run,) = submission.runs(job_id, {}).values()
    (ref,) = backend.gangs.find(plan) or backend.gangs.named(
        plan.key.name, plan.key, str(plan.compartment_id)
    )
    wait_until(backend, ref, lambda status: status.ended)
    assert backend._client.get_job_run(run.id).data.lifecycle_state == "CANCELED"


def test_each_worker_of_a_job_of_ads_gets_the_run_of_the_main_node(
    backend: OciDataScience, never_starts: None
) -> None:
    options = {**BACKEND, "contract": "ads_job", "topology": "job_runs"}
    plan = backend.plan(a_job(nodes=4, backend=options), a_key())
    ref = backend.submit(plan)
    told = [
        backend._client.get_job_run(run_id).data.job_configuration_override_details.environment_variables
        for run_id in ref.run_ids
    ]
    assert [each.get("MAIN_JOB_RUN_OCID") for each in told] == [None, *[ref.run_ids[0]] * 3]
    # A comparison with the plan finds no difference there.
    created = [request.body for request in backend.created(ref) if request.verb == "CreateJobRun"]
    assert [wants_main_run(run) and with_main_run(run, MAIN_RUN) == run for run in created] == [
        False,
        True,
        True,
        True,
    ]
    backend.cancel(ref)


@pytest.mark.parametrize(
    "status, code", [(429, "TooManyRequests"), (400, "LimitExceeded"), (503, "ServiceUnavailable")]
)
def test_a_try_after_one_whose_every_run_was_refused_is_not_asked_to_stop(
    fields: dict[str, Any], emulator: Access, faults: Callable[..., None], status: int, code: str
) -> None:
    """What calls off the nodes of the refused attempt must not reach those of the next."""
    backend = OciDataScience.connect({**fields, "max_attempts": 1})
    key, job = a_key(), a_job(nodes=1)
    faults(method="POST", path="/20190101/jobRuns", status=status, code=code)
    with pytest.raises(BackendError):
        submit(backend, job, key)
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    ref = submit(backend, job, key, 2)
    done = wait_until(backend, ref, lambda found: found.ended)
    assert [node.state for node in done.nodes] == [NodeState.SUCCEEDED], done


@pytest.fixture
def impatient(fields: dict[str, Any]) -> OciDataScience:
    return OciDataScience.connect({**fields, "max_attempts": 1})


def test_half_a_gang_that_was_asked_to_stop_is_not_completed(
    impatient: OciDataScience,
    faults: Callable[..., None],
    emulator: Access,
    monkeypatch: pytest.MonkeyPatch,
    no_node_starts: None,
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.WITHIN", 0.5)
    key, job = a_key(), a_job(nodes=2)
    faults(method="POST", path="/20190101/jobRuns", status=503, times=1)
    faults(method="POST", path=".*/actions/cancelJobRun", status=409, code="IncorrectState")
    with pytest.raises(BackendError, match="may still run"):
        submit(impatient, job, key)
    (left,) = _runs_of(key, impatient, emulator)
    ref = submit(impatient, job, key, 2)
    assert left not in ref.run_ids
    assert not impatient._store(ref.run_dir).exists(STOP_FILE)
    assert _runs_of(key, impatient, emulator)[left] in TERMINAL
    impatient.cancel(ref)


@pytest.mark.parametrize("nodes, lost", [(1, 1), (2, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("lag", [0, 4])
def test_runs_whose_creation_is_not_answered_and_that_no_list_shows_are_ended_before_the_next_gang(
    impatient: OciDataScience,
    faults: Callable[..., None],
    emulator: Access,
    no_node_starts: None,
    nodes: int,
    lost: int,
    lag: int,
) -> None:
    key, job = a_key(), a_job(nodes=nodes)
    plan = impatient.plan(job, key)
    faults(method="GET", path="/20190101/jobRuns", stale_s=600)
    faults(method="POST", path="/20190101/jobRuns", drop="after", times=lost)
    with pytest.raises(LeftRuns, match=r"may still run: runs of ocid1\.datasciencejob"):
        submit(impatient, job, key)
    (begun,) = impatient.gangs.attempts(plan)
    first = _runs_of(key, impatient, emulator)
    assert len(first) == nodes
    assert len(set(first.values()) - TERMINAL) > 0, "the case is not met"
    assert begun.end is None, "its runs live"
    if lag:
        faults(method="GET", path="/20190101/jobRuns", stale_s=lag)
    ref = submit(impatient, job, key, 2)
    states = _runs_of(key, impatient, emulator)
    assert {run_id for run_id, state in states.items() if state not in TERMINAL} == set(ref.run_ids)
    assert set(first).isdisjoint(ref.run_ids), "they were asked to stop"
    assert ref.key.attempt == 2
    impatient.cancel(ref)


@pytest.mark.parametrize("answered", [True, False])
def test_an_attempt_whose_creation_failed_is_closed_at_once_where_none_of_its_runs_can_live(
    impatient: OciDataScience,
    faults: Callable[..., None],
    emulator: Access,
    no_node_starts: None,
    answered: bool,
) -> None:
    """The service refuses to delete a job that has an active run, whatever its lists show."""
    key, job = a_key(), a_job(nodes=3)
    plan = impatient.plan(job, key)
    faults(method="GET", path="/20190101/jobRuns", stale_s=600)
    if answered:
        faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    else:
        faults(method="POST", path="/20190101/jobRuns", drop="before", times=3)
    with pytest.raises(BackendError) as caught:
        submit(impatient, job, key)
    assert not isinstance(caught.value, LeftRuns)
    (begun,) = impatient.gangs.attempts(plan)
    assert begun.end is not None
    states = _runs_of(key, impatient, emulator)
    assert len(states) == (1 if answered else 0)
    assert set(states.values()) <= TERMINAL


def test_an_attempt_that_nobody_sees_counts_as_ended_only_where_its_nodes_would_find_the_stop_request(
    impatient: OciDataScience,
    faults: Callable[..., None],
    emulator: Access,
    monkeypatch: pytest.MonkeyPatch,
    no_node_starts: None,
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.STALE", 0.1)
    key, job = a_key(), a_job(nodes=1)
    begun = Attempt.of(dataclasses.replace(impatient.plan(job, key), tries=Tries(try_number=1, max_tries=0)))
    impatient.gangs.record(begun)
    cleared = dataclasses.replace(key, generation=1)
    faults(method="PUT", path=r".*stop\.json", status=503)
    with pytest.raises(
        BackendError, match=f"{key.name}, .* may still be running, and no stop request"
    ) as caught:
        submit(impatient, job, cleared, 2)
    assert caught.value.retryable
    assert _runs_of(key, impatient, emulator) == {}
    (known,) = impatient.gangs.attempts(impatient.plan(job, key))
    assert known.end is None
    ref = submit(impatient, job, cleared, 2)
    assert impatient._store(begun.place.run_dir).exists(STOP_FILE)
    impatient.cancel(ref)
