"""A task whose machines are refused asks for others that its job names; what was refused is known to all tasks."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, LeftRuns, TrainingFailed
from airflow_provider_ocidist.gangs import capacity
from airflow_provider_ocidist.gangs.candidates import Candidates, Choice, choose, label
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model import refusal
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.refusal import REMEMBERED, KnownRefusals, Refusal
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import BACKEND, PROGRAMS, a_job, a_key, wait_until
from tests.walks.test_capacity import NO_CAPACITY, Ti, context, defers

SEED = random.randrange(10_000)
FIRST, SECOND = "VM.Standard.E4.Flex", "VM.Standard.E5.Flex"
log = logging.getLogger("candidates")


def job_with(*candidates: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "name": "steps",
        "nodes": 2,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "0.2"]},
        "launcher": {"kind": "python"},
        "checkpoints": {},
        "limits": {"stop_grace": 1, **changes.pop("limits", {})},
        "backend": {**BACKEND, "shape": FIRST, "candidates": list(candidates), **changes.pop("backend", {})},
        **changes,
    }


# which one is asked for


def test_the_first_that_was_not_refused_lately_is_asked_for() -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(500):
        now, nodes = draw.uniform(0, 1e6), draw.randrange(1, 9)
        refused = [
            draw.choice([None, a_refusal(now - draw.uniform(-2, 2) * REMEMBERED, draw.randrange(1, 9))])
            for _ in range(draw.randrange(1, 6))
        ]
        held = [
            each is not None and each.nodes <= nodes and abs(now - each.at) < REMEMBERED for each in refused
        ]
        choice = choose(nodes, refused, now)
        if all(held):
            assert not choice.is_free
            assert all(refused[choice.number].at <= each.at for each in refused)
        else:
            assert choice == Choice(held.index(False), tuple(range(held.index(False))))


def a_refusal(at: float, nodes: int) -> Refusal:
    return Refusal(cause=Cause.CAPACITY, message=NO_CAPACITY, at=at, nodes=nodes)


def test_people_read_what_a_candidate_changes() -> None:
    assert label({}) == ""
    assert label({"shape": "VM.GPU.A10.2", "ocpus": 4.0}) == "shape VM.GPU.A10.2, ocpus 4.0"
    assert label({"node_selector": {"pool": "a"}}) == 'node_selector {"pool": "a"}'


def test_people_read_no_secret_of_a_candidate() -> None:
    variables = [{"name": "DB_PASS", "value": "hunter-2-secret"}, {"name": "EPOCHS", "value": "3"}]
    text = label({"pod_template": {"spec": {"containers": [{"name": "pytorch", "env": variables}]}}})
    assert "hunter-2-secret" not in text
    assert "DB_PASS" in text
    assert '"EPOCHS", "value": "3"' in text


# at the service


@pytest.fixture(autouse=True)
def _connection(emulator: Access, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A work directory of its own for each test: what is refused in one must not be in another."""
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": fields}))


@pytest.fixture
def nodes(emulator: Access) -> Iterator[Callable[..., None]]:
    def rule(**values: Any) -> None:
        http.post(f"{emulator.url}/_emulator/nodes", json=values).raise_for_status()

    yield rule
    http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()


@pytest.fixture
def ti(backend: OciDataScience) -> Iterator[Ti]:
    ti = Ti()
    yield ti
    end(ti, backend)


def end(ti: Ti, backend: OciDataScience) -> None:
    if "run" in ti.xcoms:
        backend.cancel(RunRef.from_json(ti.xcoms["run"]))


def a_task(*candidates: dict[str, Any], **changes: Any) -> DistributedTrainingOperator:
    arguments = {"deferrable": False, "poll_interval": 0.2, **changes.pop("arguments", {})}
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(task_id="train", job=job_with(*candidates, **changes), **arguments)


def runs_of(backend: OciDataScience, ti: Ti) -> list[Any]:
    """Return all job runs of a task, oldest first."""
    digest = replace(a_key(), run_id=ti.run_id).task_digest
    compartment = str(backend.defaults.compartment_id)
    found = [
        run
        for run in pages(backend._client.list_job_runs, compartment)
        if (run.freeform_tags or {}).get("ocidist-task") == digest
    ]
    whole = [backend._client.get_job_run(run.id).data for run in found]
    return sorted(whole, key=lambda run: run.time_accepted)


def shape_of(run: Any) -> str:
    return str(run.job_infrastructure_configuration_details.shape_name)


def test_the_same_try_trains_on_the_next_candidate_and_says_which(
    ti: Ti, backend: OciDataScience, nodes: Callable[..., None]
) -> None:
    nodes(shape=FIRST, failure=NO_CAPACITY)
    result = a_task({"shape": SECOND}).execute(context(ti))
    assert result["checkpoint_uri"]
    assert result["candidate"] == f"shape {SECOND}"
    assert "failure" not in ti.xcoms
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (ref.key.attempt, ref.candidate) == (2, f"shape {SECOND}")
    runs = runs_of(backend, ti)
    first = [run for run in runs if shape_of(run) == FIRST]
    second = [run for run in runs if shape_of(run) == SECOND]
    assert len(second) == 2
    # Never two gangs: all of the first had ended before any of the second was asked for.
    assert max(run.time_finished for run in first) <= min(run.time_accepted for run in second)
    assert len({run.job_id for run in runs}) == 2


@pytest.mark.parametrize(
    "rule", [{"failure": NO_CAPACITY}, {"never_starts": True}], ids=["refused", "never comes"]
)
def test_a_gang_that_is_made_again_as_no_machine_replaced_a_lost_one_asks_for_the_next_candidate(
    ti: Ti, backend: OciDataScience, nodes: Callable[..., None], rule: dict[str, Any]
) -> None:
    nodes(shape=FIRST, display_name=r".*-1\.1", **rule)
    # After the other node has reported a step, which it does every two seconds.
    fault = {DRILL_VARIABLE: "kill-node@training:node=1,step=8"}
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "6"]}
    limits = {"replace_timeout": 5}
    result = a_task(
        {"shape": SECOND}, program=program, env=fault, restarts={"node": 1}, limits=limits
    ).execute(context(ti))
    assert result["checkpoint_uri"]
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (ref.key.attempt, ref.candidate) == (2, f"shape {SECOND}")
    assert [shape_of(run) for run in runs_of(backend, ti)] == [FIRST] * 3 + [SECOND] * 2


@pytest.mark.parametrize(
    "code, cause", [("LimitExceeded", Cause.QUOTA), ("OutOfHostCapacity", Cause.CAPACITY)]
)
def test_a_request_that_is_refused_for_the_place_of_a_lost_machine_leads_to_the_next_candidate(
    ti: Ti,
    backend: OciDataScience,
    emulator: Access,
    faults: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    cause: Cause,
) -> None:
    replace_nodes, asked = OciDataScience.replace_nodes, []

    def refuses(*arguments: Any) -> RunRef:
        asked.append(arguments)
        faults(method="POST", path="/20190101/jobRuns", status=400, code=code)
        try:
            return replace_nodes(*arguments)
        finally:
            http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()

    monkeypatch.setattr(OciDataScience, "replace_nodes", refuses)
    fault = {DRILL_VARIABLE: "kill-node@training:node=1,step=8"}
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "6"]}
    result = a_task(
        {"shape": SECOND}, program=program, env=fault, restarts={"node": 1}, limits={"replace_timeout": 5}
    ).execute(context(ti))
    assert asked
    assert result["checkpoint_uri"]
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (ref.key.attempt, ref.candidate) == (2, f"shape {SECOND}")
    remembered, _ = backend.directories.refusals.of(
        Candidates(backend, parsing.build(job_with({"shape": SECOND})), log).plans(ref.key)
    )
    assert remembered
    assert (remembered.cause, remembered.nodes) == (cause, 2)
    assert [shape_of(run) for run in runs_of(backend, ti)] == [FIRST] * 2 + [SECOND] * 2


def test_when_every_candidate_is_refused_the_task_fails_with_that_cause(
    ti: Ti, backend: OciDataScience, nodes: Callable[..., None]
) -> None:
    nodes(failure=NO_CAPACITY)
    with pytest.raises(TrainingFailed) as failed:
        a_task({"shape": SECOND}, limits={"capacity_timeout": 0}).execute(context(ti))
    assert failed.value.cause is Cause.CAPACITY
    assert [shape_of(run) for run in runs_of(backend, ti)] == [FIRST] * 2 + [SECOND] * 2


def test_a_candidate_without_quota_does_not_shorten_the_wait_for_another_without_capacity(
    ti: Ti, nodes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FIRST_PAUSE", 0.1)
    nodes(shape=FIRST, failure=NO_CAPACITY, times=2)
    nodes(shape=SECOND, failure="The quota of this shape is used up.")
    result = a_task({"shape": SECOND}, limits={"capacity_timeout": 600}).execute(context(ti))
    assert result["checkpoint_uri"]
    assert RunRef.from_json(ti.xcoms["run"]).candidate == ""


def test_without_quota_for_any_candidate_nothing_is_waited_for(ti: Ti, nodes: Callable[..., None]) -> None:
    nodes(failure="The quota of this shape is used up.")
    with pytest.raises(TrainingFailed) as failed:
        a_task({"shape": SECOND}, limits={"capacity_timeout": 600}).execute(context(ti))
    assert failed.value.cause is Cause.QUOTA


def test_a_gang_that_gets_all_but_one_node_gives_them_back_and_moves(
    ti: Ti, backend: OciDataScience, nodes: Callable[..., None]
) -> None:
    nodes(shape=FIRST, display_name=".*-1", never_starts=True)
    # A node that has its machine waits for the others so long, whatever start_timeout allows, and gives it back.
    a_task({"shape": SECOND}, limits={"join_timeout": 3, "start_timeout": 600}).execute(context(ti))
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (ref.key.attempt, ref.candidate) == (2, f"shape {SECOND}")
    first = [run for run in runs_of(backend, ti) if shape_of(run) == FIRST]
    assert {run.lifecycle_state for run in first} <= {"FAILED", "CANCELED"}


@defers
def test_a_deferred_task_moves_when_it_resumes(
    ti: Ti, backend: OciDataScience, nodes: Callable[..., None]
) -> None:
    nodes(shape=FIRST, failure=NO_CAPACITY)
    arguments = {"deferrable": True}
    with pytest.raises(TaskDeferred) as first:
        a_task({"shape": SECOND}, arguments=arguments).execute(context(ti))
    deferred = first.value
    while RunRef.from_json(ti.xcoms["run"]).key.attempt == 1:
        task = a_task({"shape": SECOND}, arguments=arguments)
        with pytest.raises(TaskDeferred) as again:
            task.resume(context(ti), deferred.trigger.record, **(deferred.kwargs or {}))
        deferred = again.value
    assert deferred.trigger.record["ref"]["candidate"] == f"shape {SECOND}"


def test_two_runs_at_once_share_what_there_is(backend: OciDataScience, nodes: Callable[..., None]) -> None:
    nodes(shape=FIRST, at_most=2, when_full="fail")
    tis, failed = [Ti(), Ti()], []

    def run(ti: Ti) -> None:
        try:
            a_task({"shape": SECOND}, program=slow()).execute(context(ti))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(ti,)) for ti in tis]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    try:
        assert not failed
        refs = [RunRef.from_json(ti.xcoms["run"]) for ti in tis]
        # Both may have been a node short of the first, and moved; neither waits, and neither has two gangs.
        assert f"shape {SECOND}" in {ref.candidate for ref in refs}
        for ti, ref in zip(tis, refs, strict=True):
            live = [run.id for run in runs_of(backend, ti) if run.lifecycle_state == "SUCCEEDED"]
            assert sorted(live) == sorted(ref.run_ids)
    finally:
        for ti in tis:
            end(ti, backend)


def slow() -> dict[str, Any]:
    return {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "3"]}


# without a node, by the books of the service


@pytest.fixture
def submit(
    backend: OciDataScience, no_node_starts: None, ends: Callable[[RunRef], RunRef]
) -> Callable[..., RunRef]:
    def submitted(
        *candidates: dict[str, Any], number: int = 1, key: RunKey | None = None, **changes: Any
    ) -> RunRef:
        job = parsing.build(job_with(*candidates, **changes))
        gang = GangSubmitter(backend, job, log, None, threading.Event())
        return ends(gang.adopt_or_submit(key or a_key(), None, number).ref)

    return submitted


@pytest.fixture
def refuse(faults: Callable[..., None]) -> Callable[[int], None]:
    """Let the service refuse so many job runs for want of quota."""
    return lambda times: faults(
        method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=times
    )


@pytest.mark.parametrize("topology, requests", [("job_runs", 2), ("multi_node", 1)])
def test_what_is_refused_with_the_request_leads_to_the_next_candidate(
    submit: Callable[..., RunRef], refuse: Callable[[int], None], topology: str, requests: int
) -> None:
    refuse(requests)
    ref = submit({"shape": SECOND}, backend={"topology": topology})
    assert (ref.topology, ref.candidate, ref.key.attempt) == (topology, f"shape {SECOND}", 2)


def test_another_task_skips_what_was_refused_a_moment_ago_and_says_so(
    backend: OciDataScience,
    submit: Callable[..., RunRef],
    refuse: Callable[[int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    refuse(2)
    submit({"shape": SECOND})
    caplog.clear()
    with caplog.at_level(logging.INFO):
        other = submit({"shape": SECOND})
    assert (other.candidate, other.key.attempt) == (f"shape {SECOND}", 1)
    said = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("skipped: as the job says, refused 0 min ago (QUOTA: ") for line in said)
    assert f"asking for candidate 1 of 1: shape {SECOND}" in said
    # Fewer nodes than were refused may be there.
    assert submit({"shape": SECOND}, nodes=1).candidate == ""


def test_whatever_is_refused_one_after_the_other_none_is_forgotten_while_it_holds() -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(500):
        now, kept, all_of_them = draw.uniform(0, 1e6), KnownRefusals(), []
        for _ in range(draw.randrange(1, 12)):
            now += draw.uniform(0, REMEMBERED / 2)
            # Some are heard of only later.
            all_of_them.append(
                a_refusal(now - draw.choice([0.0, REMEMBERED / 3, 6 * REMEMBERED]), draw.randrange(1, 9))
            )
            kept = kept.after(all_of_them[-1], now)
            then = now + draw.uniform(0, REMEMBERED)
            for nodes in range(1, 10):
                found = kept.of(nodes)
                is_refused = any(each.holds(nodes, then) for each in all_of_them)
                assert (found is not None and found.holds(nodes, then)) is is_refused
        assert len(kept.refusals) <= 8
        assert kept.after(all_of_them[-1], now) == kept, "what is heard twice is kept once"


def test_a_task_skips_what_was_refused_though_more_machines_were_refused_since(
    backend: OciDataScience,
) -> None:
    few, many = (parsing.build(job_with({"shape": SECOND}, nodes=nodes)) for nodes in (2, 8))
    for job in (few, many):
        Candidates(backend, job, log).refuse(a_key(), "", Cause.QUOTA, "as the service says")
    for job in (few, many):
        assert Candidates(backend, job, log).chosen(a_key()) == 1


def test_when_a_refusal_of_few_machines_is_over_a_later_one_of_many_is_known(backend: OciDataScience) -> None:
    few, many = (parsing.build(job_with({"shape": SECOND}, nodes=nodes)) for nodes in (2, 8))
    now = now_at(backend)
    for job, at in ((few, now - REMEMBERED - 30), (many, now - 60)):
        Candidates(backend, job, log).refuse(a_key(), "", Cause.QUOTA, "as the service says", at)
    assert [Candidates(backend, job, log).chosen(a_key()) for job in (few, many)] == [0, 1]


def test_what_was_refused_long_ago_is_asked_for_again(
    submit: Callable[..., RunRef], refuse: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(2)
    submit({"shape": SECOND})
    monkeypatch.setattr(refusal, "REMEMBERED", 0.0)
    assert submit({"shape": SECOND}).candidate == ""


def test_a_job_without_candidates_asks_whatever_was_refused(
    submit: Callable[..., RunRef], refuse: Callable[[int], None]
) -> None:
    refuse(2)
    submit({"shape": SECOND})
    assert submit().candidate == ""


def test_a_later_try_adopts_the_gang_of_a_candidate(
    submit: Callable[..., RunRef], refuse: Callable[[int], None]
) -> None:
    refuse(2)
    key = a_key()
    first = submit({"shape": SECOND}, key=key)
    later = submit({"shape": SECOND}, key=key, number=2)
    assert (later.run_ids, later.candidate) == (first.run_ids, f"shape {SECOND}")


def test_a_retry_does_not_ask_for_machines_that_were_refused_after_the_worker_had_died(
    backend: OciDataScience, nodes: Callable[..., None], ends: Callable[[RunRef], RunRef]
) -> None:
    nodes(shape=FIRST, failure=NO_CAPACITY)
    nodes(shape=SECOND, never_starts=True)
    key, job, ti = a_key(), parsing.build(job_with({"shape": SECOND})), Ti()
    ti.run_id = key.run_id
    dead = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None)
    wait_until(backend, dead.ref, lambda status: status.ended)
    later = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None, 2)
    ends(later.ref)
    assert (later.ref.key.attempt, later.ref.candidate) == (2, f"shape {SECOND}")
    runs = runs_of(backend, ti)
    assert [shape_of(run) for run in runs] == [FIRST] * 2 + [SECOND] * 2
    refused, other = backend.directories.refusals.of(Candidates(backend, job, log).plans(key))
    assert refused
    assert refused.cause is Cause.CAPACITY
    assert refused.at in [run.time_finished.timestamp() for run in runs[:2]], (
        "when it came, not when it was seen"
    )
    assert other is None


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it on its way."""


@pytest.mark.parametrize("before", ["refused", "written off", "submitted"])
def test_a_submitter_that_is_killed_between_two_candidates_leaves_one_gang(
    backend: OciDataScience,
    faults: Callable[..., None],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
) -> None:
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    key, job = a_key(), parsing.build(job_with({"shape": SECOND}))

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if before == "refused":
            patched.setattr(Candidates, "refuse", die)
        elif before == "written off":
            patched.setattr(type(backend.gangs), "write_off", die)
        else:
            real = backend.submit
            first: list[Any] = []
            patched.setattr(
                backend,
                "submit",
                lambda plan, *rest: die() if first else (first.append(plan), real(plan, *rest))[1],
            )
        with pytest.raises(Killed):
            GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None)
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None, 2)
    try:
        ti = Ti()
        ti.run_id = key.run_id
        live = [run for run in runs_of(backend, ti) if run.lifecycle_state in ("ACCEPTED", "IN_PROGRESS")]
        assert sorted(run.id for run in live) == sorted(record.ref.run_ids)
        shapes = {shape_of(run) for run in live}
        assert shapes == {SECOND if record.ref.candidate else FIRST}
    finally:
        backend.cancel(record.ref)


def test_without_a_usable_memory_the_candidates_are_tried_all_the_same(
    backend: OciDataScience, faults: Callable[..., None], no_node_starts: None
) -> None:
    faults(method="PUT", path=".*/refusals/.*", status=403, code="NotAuthorized")
    faults(method="GET", path=".*/refusals/.*", status=403, code="NotAuthorized")
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    job = parsing.build(job_with({"shape": SECOND}))
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(a_key(), None)
    backend.cancel(record.ref)
    assert record.ref.candidate == f"shape {SECOND}"


def test_other_refusals_do_not_lead_to_another_candidate(
    backend: OciDataScience, faults: Callable[..., None]
) -> None:
    faults(method="POST", path="/20190101/jobRuns", status=400, code="InvalidParameter", times=9)
    job = parsing.build(job_with({"shape": SECOND}))
    with pytest.raises(BackendError):
        GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(a_key(), None)


# the price of each


def test_a_limit_in_money_needs_the_price_of_every_candidate(backend: OciDataScience) -> None:
    given = job_with({"shape": SECOND}, limits={"max_cost": 5}, prices={FIRST: 1.5})
    with pytest.raises(JobFileError) as failed:
        Candidates(backend, parsing.build(given), log).plans(a_key())
    assert f"limits.max_cost: needs the price of a node for an hour: add one for {SECOND}" in str(
        failed.value
    )
    priced = {**given, "prices": {FIRST: 1.5, "*": 3}}
    plans = Candidates(backend, parsing.build(priced), log).plans(a_key())
    assert [plan.price for plan in plans] == [1.5, 3.0]


@pytest.mark.parametrize("given", ['{"VM.Standard.E4.Flex": 2.5}', {"VM.Standard.E4.Flex": 2.5, "*": 9}])
def test_prices_may_stand_in_the_connection_and_those_of_the_job_win(
    fields: dict[str, Any], given: Any
) -> None:
    backend = OciDataScience.connect({**fields, "prices": given})
    assert backend.plan(a_job(), a_key()).price == 2.5
    assert backend.plan(a_job(prices={FIRST: 7}), a_key()).price == 7.0


@pytest.mark.parametrize("given", ["nonsense", '{"a": 0}', '{"a": "x"}', "[1]", {"a": -1}, '{"a": NaN}'])
def test_prices_of_a_connection_that_are_none_are_an_error_that_says_so(
    fields: dict[str, Any], given: Any
) -> None:
    backend = OciDataScience.connect({**fields, "prices": given})
    with pytest.raises(JobFileError, match="prices: of the connection must be JSON"):
        backend.plan(a_job(), a_key())


def test_while_a_node_of_a_refused_candidate_may_live_no_other_is_asked_for(
    backend: OciDataScience,
    faults: Callable[..., None],
    emulator: Access,
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.WITHIN", 0.5)
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=1)
    faults(method="POST", path=".*/actions/cancelJobRun", status=409, code="IncorrectState")
    key, job, ti = a_key(), parsing.build(job_with({"shape": SECOND})), Ti()
    ti.run_id = key.run_id
    with pytest.raises(LeftRuns, match=r"LimitExceeded.*may still run"):
        GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None)
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    (left,) = runs_of(backend, ti)
    assert shape_of(left) == FIRST
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None, 2)
    live = {run.id for run in runs_of(backend, ti) if run.lifecycle_state in ("ACCEPTED", "IN_PROGRESS")}
    assert live == set(record.ref.run_ids)
    assert left.id not in live
    backend.cancel(record.ref)


def test_while_a_run_that_no_list_shows_may_live_no_other_candidate_is_asked_for(
    backend: OciDataScience, faults: Callable[..., None], emulator: Access, no_node_starts: None
) -> None:
    """The answer to the creation of one run is lost, and what is asked then is refused."""
    faults(method="GET", path="/20190101/jobRuns", stale_s=600)
    faults(method="POST", path="/20190101/jobRuns", drop="after", times=1)
    faults(method="POST", path="/20190101/jobRuns", status=400, code="LimitExceeded", times=2)
    key, job, ti = a_key(), parsing.build(job_with({"shape": SECOND})), Ti()
    ti.run_id = key.run_id
    with pytest.raises(LeftRuns, match=r"LimitExceeded.*may still run: runs of ocid1"):
        GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None)
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    (left,) = runs_of(backend, ti)
    assert (shape_of(left), left.lifecycle_state) == (FIRST, "ACCEPTED")
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None, 2)
    live = {run.id for run in runs_of(backend, ti) if run.lifecycle_state in ("ACCEPTED", "IN_PROGRESS")}
    assert live == set(record.ref.run_ids)
    assert left.id not in live
    backend.cancel(record.ref)
