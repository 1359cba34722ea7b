"""A task that is killed, or gives up, ends its gang first: at whatever line it was, whatever the service answers."""

from __future__ import annotations

import json
import logging
import random
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.service_clients import ServiceClients
from airflow_provider_ocidist.backends.oci_data_science.submission import Submission
from airflow_provider_ocidist.errors import BackendError, Cause, GaveUp, Overtaken, StillAlive
from airflow_provider_ocidist.gangs import backoff, kills
from airflow_provider_ocidist.gangs.actions import Wait
from airflow_provider_ocidist.gangs.kills import Killer
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.task_watch import TaskWatch
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.hooks import task_context
from airflow_provider_ocidist.hooks.errors import as_airflow_errors
from airflow_provider_ocidist.model import evidence
from airflow_provider_ocidist.model.attempts import Attempt, Place
from airflow_provider_ocidist.model.job import Restarts, TrainingJob
from airflow_provider_ocidist.model.report import NodeReport, Phase, Sending
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of
from airflow_provider_ocidist.operators import DistributedTrainingOperator, gang_ending, training_try
from airflow_provider_ocidist.operators.task_jobs import TaskConnection
from airflow_provider_ocidist.operators.training_try import TrainingTry
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.http_client import http
from tests.killed_tasks import WAITING
from tests.training_jobs import a_job, a_key

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger("test")
CASES = 16
CANCELS = r"/20190101/jobRuns/{run_id}/actions/cancelJobRun"


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, CASES + 9, 2) as gangs:
        yield gangs


def ends(idle: IdleGangs, records: Sequence[RunRecord]) -> list[bool]:
    """Return of each gang whether no node of it goes on."""
    statuses = idle.backend.status([record.ref for record in records])
    return [
        all(node.state.terminal or node.state is NodeState.ENDING for node in status.nodes)
        for status in statuses
    ]


def stop_requested(idle: IdleGangs, record: RunRecord) -> bool:
    return open_store(record.ref.run_dir, idle.backend.access).exists(STOP_FILE)


# killed at any line


def test_a_task_that_is_killed_at_any_line_ends_its_gang_and_itself(idle: IdleGangs, tmp_path: Path) -> None:
    records = idle.records[:CASES]
    fields = idle.emulator.connection_fields(max_attempts=2)
    cases = [
        {"seed": seed, "record": record.to_json(), "fields": fields} for seed, record in enumerate(records)
    ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed_tasks", str(tmp_path / "cases.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seed"')]
    assert [each["exit"] for each in told] == [0] * CASES, f"{done.stdout}\n{done.stderr}"
    assert ends(idle, records) == [True] * CASES


# giving up


def task(conn_id: str) -> DistributedTrainingOperator:
    return DistributedTrainingOperator(
        task_id="train", job="unused.yaml", conn_id=conn_id, deferrable=False, poll_interval=0.05
    )


def try_of(operator: DistributedTrainingOperator, number: int) -> TrainingTry:
    """Return a try of a task, of this number, that has not begun anything."""
    context: Any = {"ti": SimpleNamespace(**WAITING, try_number=number)}
    return operator._training()._begun(context)


class Context(dict[str, Any]):
    """What a task that waits asks of Airflow."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}
        super().__init__(ti=SimpleNamespace(**WAITING, xcom_push=self._push, try_number=1))

    def _push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let evidence be old at once; how old it has to be is tested by itself."""
    monkeypatch.setattr(evidence, "REFUSED_FOR", 0.0)
    monkeypatch.setattr(evidence, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr("airflow_provider_ocidist.gangs.reconnection.RENEW_EVERY", 0.0)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_task_that_is_refused_for_good_ends_its_gang_and_may_be_retried(
    idle: IdleGangs, faults: Any, conn_id: str, no_patience: None, status: int
) -> None:
    record = idle.records[CASES + [401, 403, 404].index(status)]
    faults(path="/20190101/jobRuns.*", method="GET", status=status, code="Refused")
    context = Context()
    with pytest.raises(GaveUp, match="no state of its nodes from the service for") as caught:
        task(conn_id).resume(context, record.to_json())
    assert caught.value.retryable
    assert context.pushed["failure"]["cause"] == "SERVICE"
    assert stop_requested(idle, record)
    http.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
    assert ends(idle, [record]) == [True]


def test_what_the_nodes_of_a_gang_that_failed_were_sending_is_forgotten_and_nothing_of_a_later_one(
    idle: IdleGangs, conn_id: str
) -> None:
    record = idle.records[CASES + 8]
    key = replace(record.ref.key, generation=2, attempt=2)
    uri = f"{idle.emulator.work_dir}/checkpoints/{uuid.uuid4().hex}-g2"
    record = replace(record, ref=replace(record.ref, key=key, checkpoints_uri=uri))
    store = open_store(uri, idle.backend.access)
    for name in ("step-1/a", "step-2.attempt-2/a", "step-2.attempt-3/a"):
        store.upload(name, 3 << 20, 1 << 20).write(0, 0, b"x" * (1 << 20))
    # An output goes to a folder that others may use: only what the node has reported is its own.
    outputs = open_store(f"{uri}-out", idle.backend.access)
    own, others = (outputs.upload("model.bin", 1 << 20, 1 << 20) for _ in range(2))
    sending = (Sending(folder=outputs.uri, name="model.bin", upload_id=own.upload_id),)
    report = NodeReport(
        rank=0, phase=Phase.SAVING, address="", started_at=0.0, heartbeat_at=1.0, sending=sending
    )
    open_store(record.ref.run_dir, idle.backend.access).write(report_of(0), report.to_json())
    idle.backend.cancel(record.ref)
    with pytest.raises(AirflowFailException):
        task(conn_id).resume(Context(), record.to_json())
    assert [upload.name for upload in store.open_uploads()] == ["step-2.attempt-3/a"]
    assert [upload.id for upload in outputs.open_uploads()] == [others.upload_id]


def test_where_the_service_refuses_everything_the_nodes_are_asked_to_stop(
    idle: IdleGangs, faults: Any, conn_id: str, no_patience: None
) -> None:
    record = idle.records[CASES + 3]
    faults(path="/20190101/.*", status=401, code="NotAuthenticated")
    with pytest.raises(GaveUp):
        task(conn_id).resume(Context(), record.to_json())
    assert stop_requested(idle, record)
    http.delete(f"{idle.emulator.url}/_emulator/faults").raise_for_status()
    assert ends(idle, [record]) == [False]


def test_a_task_that_fails_for_a_reason_nobody_thought_of_ends_its_gang(
    idle: IdleGangs, conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = idle.records[CASES + 4]
    failing = task(conn_id)
    monkeypatch.setattr(TrainingTry, "_until_end", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        failing.resume(Context(), record.to_json())
    assert ends(idle, [record]) == [True]


def test_a_task_that_knows_its_gang_by_name_only_says_what_does_not_apply_to_it(
    idle: IdleGangs, conn_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    ref = replace(idle.records[CASES + 7].ref, job_id="ocid1.datasciencejob.oc1.iad.absent")
    one = try_of(task(conn_id), 1)
    one._log, one.context["ti"].xcom_pull = LOG, lambda **_: None
    record = one._recovered_record(ref)
    assert (record.ref, record.restarts, record.min_nodes, record.deadline) == (ref, Restarts(), None, None)
    assert "lost node is replaced (restarts)" in caplog.text


def test_a_task_that_is_killed_before_it_waits_ends_its_gang(idle: IdleGangs, conn_id: str) -> None:
    record = idle.records[CASES + 5]
    killed = task(conn_id)
    killed.on_kill()
    with pytest.raises(AirflowFailException, match="killed"):
        killed.resume(Context(), record.to_json())
    assert ends(idle, [record]) == [True]


def test_a_task_that_is_killed_while_it_looks_ends_its_gang_and_defers_no_more(
    idle: IdleGangs, conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = idle.records[CASES + 6]
    killed = task(conn_id)
    killed.deferrable = True
    # Just before the look, when everything else is ready.
    monkeypatch.setattr(
        "airflow_provider_ocidist.hooks.task_context.mask_secrets_of_nodes", lambda *_: killed.on_kill()
    )
    with pytest.raises(AirflowFailException, match="killed"):
        killed.resume(Context(), record.to_json())
    assert ends(idle, [record]) == [True]


class Service:
    """Brings about a gang only after some answers of another kind."""

    def __init__(self, *errors: BackendError) -> None:
        self.errors = list(errors)

    def adopt_or_submit(self, *_: Any) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "the gang"

    def cancel_earlier(self, *_: Any) -> list[str]:
        return []

    def earlier_canceller(self, *_: Any) -> Callable[[], list[str]]:
        return list

    def ended_if_interrupted(self, *_: Any) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("seed", range(6))
def test_one_refusal_amid_a_first_submission_costs_no_try(
    backend: OciDataScience,
    faults: Any,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    path = dice.choice([".*/jobRuns", ".*/jobRuns", ".*/artifact"])
    status, times = dice.choice([401, 403, 404]), dice.randint(1, 2)
    faults(method="POST", path=path, status=status, code="Refused", times=times)
    record = brought_about(backend, conn_id, a_job(nodes=2))
    ends(record.ref)
    (status_now,) = backend.status([record.ref])
    assert [node.state for node in status_now.nodes] == [NodeState.PENDING] * 2
    assert living(backend, record.ref.key) == [record.ref.key]


@pytest.mark.parametrize("seed", range(6))
def test_a_refused_look_up_beside_the_first_job_that_the_service_accepts_costs_no_try(
    backend: OciDataScience,
    faults: Any,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    status, times = dice.choice([401, 403, 404, 404]), dice.randint(1, backoff.AMID_REFUSALS - 1)
    faults(method="GET", path="/20190101/jobs", status=status, code="Refused", times=times)
    if refuses_both := bool(seed % 2):
        # What refuses one service for a moment may refuse the other at the same time.
        faults(method="PUT", path="/n/.*lease.*", status=status, code="Refused", times=1)
    job = a_job(nodes=2, limits={"lease": "1h", "stop_grace": 1} if refuses_both else {})
    record = brought_about(backend, conn_id, job)
    ends(record.ref)
    assert len(record.ref.run_ids) == 2
    assert living(backend, record.ref.key) == [record.ref.key]


@pytest.mark.parametrize("times", [1, 2, None])
@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("method", ["POST", ".*"])
def test_the_first_refusal_of_a_first_job_is_believed_once_it_is_repeated_with_credentials_read_anew(
    backend: OciDataScience,
    faults: Any,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    times: int | None,
    status: int,
    method: str,
) -> None:
    """Whatever the look-up beside it says."""
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    events: list[str] = []
    record_created(events, monkeypatch)
    reconnect = TaskConnection.reconnect
    monkeypatch.setattr(
        TaskConnection, "reconnect", lambda each: (events.append("read anew"), reconnect(each))
    )
    if times is None or method == "POST":
        faults(method=method, path="/20190101/jobs", status=status, code="Refused", times=times)
    else:
        # Of each round two requests: the job, and the look-up beside it.
        faults(method=method, path="/20190101/jobs", status=status, code="Refused", times=2 * times)
    if times == 1:
        record = brought_about(backend, conn_id, a_job(nodes=2))
        ends(record.ref)
        assert events == ["refused", "read anew", "accepted"]
        assert living(backend, record.ref.key) == [record.ref.key]
        return
    with pytest.raises(AirflowFailException, match=str(status)), as_airflow_errors():
        brought_about(backend, conn_id, a_job(nodes=2))
    assert events == ["refused", "read anew", "refused"]


def record_created(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Note how each request to create a job is answered."""
    create = Submission._post_job

    def post(submission: Submission, gone: Sequence[str]) -> Any:
        try:
            created = create(submission, gone)
        except BackendError:
            events.append("refused")
            raise
        events.append("accepted")
        return created

    monkeypatch.setattr(Submission, "_post_job", post)


def test_a_first_try_whose_key_is_just_being_exchanged_asks_again_with_the_new_one(
    fields: dict[str, Any],
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    now = Path(fields["config_file"]).read_text()
    config = tmp_path / "config"
    config.write_text(re.sub(r"(?m)^(user *= *).*$", r"\1ocid1.user.oc1..nobody", now))
    connection = json.dumps({"conn_type": "oci", "extra": {**fields, "config_file": str(config)}})
    monkeypatch.setenv("AIRFLOW_CONN_EXCHANGED", connection)
    reconnect = TaskConnection.reconnect
    monkeypatch.setattr(TaskConnection, "reconnect", lambda each: (config.write_text(now), reconnect(each)))
    one = try_of(task("exchanged"), 1)
    backend = one.connection.backend("oci_data_science")
    with pytest.raises(BackendError, match="401"):
        backend.gangs.attempts(backend.plan(a_job(nodes=2), a_key()))
    gang = GangSubmitter(backend, a_job(nodes=2), LOG, None, threading.Event())
    assert ends(one._created_or_adopted(gang, a_key(), None).ref).complete


@pytest.mark.parametrize("what", ["attempts", "lease"])
@pytest.mark.parametrize("status", [401, 403, 404])
def test_one_refusal_of_the_store_amid_a_first_submission_costs_no_try(
    backend: OciDataScience,
    faults: Any,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    status: int,
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    faults(method="PUT", path=f"/n/.*{what}.*", status=status, code="Refused", times=2)
    job = a_job(nodes=2, limits={"lease": "1h", "stop_grace": 1})
    record = brought_about(backend, conn_id, job)
    ends(record.ref)
    assert len(record.ref.run_ids) == 2


def test_nodes_that_a_refused_first_submission_could_not_end_at_once_cost_no_try(
    backend: OciDataScience,
    faults: Any,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr("airflow_provider_ocidist.backends.oci_data_science.gangs.WITHIN", 0.0)
    faults(method="POST", path=".*/jobRuns", status=404, code="NotAuthorizedOrNotFound", times=1)
    record = brought_about(backend, conn_id, a_job(nodes=2))
    ends(record.ref)
    assert living(backend, record.ref.key) == [record.ref.key]
    assert record.ref.key.attempt == 2


def brought_about(backend: OciDataScience, conn_id: str, job: TrainingJob) -> RunRecord:
    """Return the gang of a first try that submits it."""
    gang = GangSubmitter(backend, job, logging.getLogger("test"), None, threading.Event())
    return try_of(task(conn_id), 1)._created_or_adopted(gang, a_key(), None)


def living(backend: OciDataScience, key: RunKey) -> list[RunKey]:
    """Return the keys of all gangs of a task that have not ended."""
    return [ref.key for ref in backend.recent(20, key.name[:40]) if not backend.status([ref])[0].ended]


def test_a_refusal_amid_a_first_submission_is_believed_after_some_and_one_before_it_at_the_second(
    conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(backoff, "AMID_FOR", 0.0)
    error = BackendError("no such subnet", status_code=404)
    amid = BackendError("no such subnet", status_code=404)
    amid.after_acceptance = True
    believed_at = backoff.AMID_REFUSALS + 1
    cases = (([error] * 9, 2), ([amid] * 9, believed_at), ([amid, *[error] * 8], believed_at))
    for errors, asked in (*cases, ([error, *[amid] * 8], believed_at)):
        service = Service(*errors)
        with pytest.raises(BackendError, match="no such subnet"):
            try_of(task(conn_id), 1)._created_or_adopted(service, a_key(), None)
        assert len(errors) - len(service.errors) == asked


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503, None])
def test_a_try_that_may_have_an_earlier_ones_gang_waits_out_what_passes(
    conn_id: str, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    retryable = status not in (401, 403, 404)
    error = BackendError("not now", status_code=status, retryable=retryable)
    assert try_of(task(conn_id), 2)._created_or_adopted(Service(error, error), a_key(), None) == "the gang"
    with pytest.raises(BackendError, match="not now"):
        try_of(task(conn_id), 1)._created_or_adopted(
            Service(*[error] * (1 if retryable else 2)), a_key(), None
        )


class Silent(Service):
    """Answers nothing before it is let; says when the gangs of earlier tries are called off."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer, self.ended = (threading.Event() for _ in range(3))

    def adopt_or_submit(self, *_: Any) -> str:
        self.asked.set()
        self.may_answer.wait()
        return "the gang"

    def earlier_canceller(self, *_: Any) -> Callable[[], list[str]]:
        return lambda: self.ended.set() or []


@pytest.mark.parametrize("number", [1, 2])
def test_a_try_that_is_killed_while_the_service_does_not_answer_ends_what_it_and_earlier_ones_have_begun(
    conn_id: str, number: int
) -> None:
    service, retried = Silent(), task(conn_id)
    looking = threading.Thread(
        target=try_of(retried, number)._created_or_adopted, args=(service, a_key(), None)
    )
    looking.start()
    try:
        assert service.asked.wait(60)
        retried.on_kill()
        assert service.ended.wait(60)
    finally:
        service.may_answer.set()
        looking.join()


@pytest.mark.parametrize(
    "error",
    [
        *(
            BackendError("no machine", status_code=500, retryable=True, cause=cause)
            for cause in (Cause.CAPACITY, Cause.QUOTA, Cause.CANCELED)
        ),
        BackendError("no machine", status_code=400),
        # It was waited for already.
        StillAlive("no machine", retryable=True),
    ],
    ids=["capacity", "quota", "killed", "refused", "still alive"],
)
def test_what_is_no_fault_of_the_moment_is_reported_at_once(conn_id: str, error: BackendError) -> None:
    with pytest.raises(BackendError, match="no machine"):
        try_of(task(conn_id), 2)._created_or_adopted(Service(error), a_key(), None)


def test_credentials_that_cannot_be_loaded_for_a_moment_cost_no_gang(
    idle: IdleGangs, conn_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = idle.records[CASES + 7]
    waiting = task(conn_id)
    backend = waiting._training()._connection.backend(record.ref.backend)
    backend.access = replace(backend.access, config_file="/nowhere")
    backend._clients = ServiceClients(backend.access, backend._service_clock)

    def looked(_: TrainingTry, watch: Watch) -> dict[str, Any]:
        assert watch.look(1e9) == Wait()
        assert watch.record.unanswered.is_refused
        assert watch.look(1e9) == Wait()
        assert not watch.record.unanswered.is_refused
        return {}

    monkeypatch.setattr(TrainingTry, "_until_end", looked)
    assert waiting.resume(Context(), record.to_json()) == {}
    assert ends(idle, [record]) == [False]


# the thread that ends


def test_what_is_not_taken_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "AGAIN_AFTER", 0.01)
    answers = iter([BackendError("409"), BackendError("429"), None])

    def end() -> None:
        if (error := next(answers)) is not None:
            raise error

    killer = Killer(end)
    assert killer.kill(20)
    assert killer.kill(20)
    assert killer.error is None


def test_a_handler_does_not_wait_for_an_end_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "HANDLER_PATIENCE", 0.05)
    goes_on = threading.Event()
    killer = Killer(lambda: goes_on.wait(60))
    killer.kill_from_handler()
    assert not goes_on.is_set()
    goes_on.set()
    assert killer.kill(20)


def test_a_thread_that_nobody_asked_ends_nothing() -> None:
    ended: list[int] = []
    before = set(threading.enumerate())  # killers of tasks that other tests have left
    killer = Killer(lambda: ended.append(1))
    (thread,) = [each for each in set(threading.enumerate()) - before if each.name == "ocidist-killer"]
    killer.close()
    thread.join(20)
    assert not thread.is_alive()
    assert ended == []


def test_a_gang_that_nobody_can_reach_is_left_to_its_lease_and_named(
    idle: IdleGangs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "GIVE_UP_WITHIN", 0.0)

    class Unreachable:
        connections = None
        directories = property(lambda self: self)

        def cancel(self, *_: Any) -> None:
            raise BackendError("cannot reach the service", retryable=True)

        def claimed_by(self, _: Any) -> int:
            return 0

    ref = idle.records[0].ref
    why = ValueError("boom")
    kills.end_before_giving_up(
        Unreachable(),
        ref,
        1,
        why,
        logging.getLogger("test"),
        threading.Event(),
        lambda: None,
    )
    assert f"ocidist cancel {ref.job_id}" in caplog.text
    assert all(run_id in caplog.text for run_id in ref.run_ids)


# between its creation and the wait


class TimeIsOver(BaseException):
    """As Airflow's timeout."""


@pytest.mark.parametrize("why", [TimeIsOver, ZeroDivisionError, "killed"])
@pytest.mark.parametrize("point", ["the code is removed", "the backend", "the watch", "the killer"])
def test_a_task_that_ends_between_the_creation_of_its_gang_and_its_wait_ends_that(
    backend: OciDataScience,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    why: Any,
) -> None:
    key, job, one = a_key(), a_job(nodes=2), try_of(task(conn_id), 1)
    one.context["ti"].xcom_push = lambda *_, **__: None
    error = TimeIsOver if why == "killed" else why

    def fails(*_: Any) -> Any:
        if why == "killed":
            one.stop.set()
        raise error

    @contextmanager
    def with_code(complete: TrainingJob) -> Iterator[TrainingJob]:
        yield complete
        if point == "the code is removed":
            fails()

    monkeypatch.setattr(task_context, "key_of", lambda _: key)
    monkeypatch.setattr(TrainingTry, "_read_job", lambda _: job)
    monkeypatch.setattr(one.task_job, "with_code", with_code)
    monkeypatch.setattr(one.task_job, "plans", lambda _: [])
    if point == "the backend":
        monkeypatch.setattr(one.ending, "backend_of", fails)
    elif point == "the watch":
        monkeypatch.setattr(training_try, "TaskWatch", fails)
    elif point == "the killer":
        monkeypatch.setattr(gang_ending, "killer_of", fails)
    with pytest.raises(error):
        one.train()
    (ref,) = [each for each in backend.recent(20, key.name[:40]) if each.key == key]
    ends(ref)
    (status,) = backend.status([ref])
    assert all(node.state.terminal or node.state is NodeState.ENDING for node in status.nodes)
    assert one.ending._killer is None, "its thread would wait for ever"


def test_what_could_not_be_recorded_is_recorded_while_its_task_waits(
    backend: OciDataScience,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, one = a_key(), try_of(task(conn_id), 1)
    at_once = one.connection.backend("oci_data_science")
    record_it = at_once.gangs.record

    def fails(attempt: Attempt) -> None:
        if attempt.ref is not None:
            raise BackendError("the store is full")
        record_it(attempt)

    monkeypatch.setattr(at_once.gangs, "record", fails)
    gang = GangSubmitter(at_once, a_job(nodes=2), LOG, None, threading.Event())
    record = gang.adopt_or_submit(key, None)
    ends(record.ref)

    def known() -> RunRef | None:
        (attempt,) = backend.gangs.recorded(key, Place.of_gang(record.ref), [])
        return attempt.ref

    before = known()
    assert before is None or not before.complete
    watch = TaskWatch(at_once, record, LOG, 1)

    def wait() -> None:
        with suppress(AirflowFailException):
            one._until_end(watch)

    one.ending.arm(at_once, record.ref)
    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    deadline = time.monotonic() + 60
    while not ((ref := known()) and ref.complete) and time.monotonic() < deadline:
        time.sleep(0.1)
    one.stop.set()
    waits.join(60)
    assert ref is not None
    assert ref.run_ids == record.ref.run_ids


@pytest.mark.parametrize("refusals", [0, 1, 3, None])
def test_a_task_defers_once_its_gang_is_recorded_or_the_store_has_not_taken_that_for_a_while(
    backend: OciDataScience,
    conn_id: str,
    ends: Callable[[RunRef], RunRef],
    no_node_starts: None,
    monkeypatch: pytest.MonkeyPatch,
    refusals: int | None,
) -> None:
    """A process that defers ends, and a thread that records with it."""
    monkeypatch.setattr(training_try, "CAN_KILL", True)
    operator = DistributedTrainingOperator(
        task_id="train", job="unused.yaml", conn_id=conn_id, deferrable=True, poll_interval=0.05
    )
    key, one = a_key(), try_of(operator, 1)
    at_once = one.connection.backend("oci_data_science")
    record_it, index_of, refused = at_once.gangs.record, at_once.gangs.index, []

    def refuses(attempt: Attempt) -> None:
        if attempt.ref is not None:
            raise BackendError("the store is full")
        record_it(attempt)

    def index(work_dir: str) -> Any:
        found = index_of(work_dir)
        complete = found.complete

        def refuses_at_first(attempt: Attempt) -> None:
            if refusals is None or len(refused) < refusals:
                refused.append(attempt)
                raise BackendError("the store is full")
            complete(attempt)

        found.complete = refuses_at_first
        return found

    if refusals != 0:
        monkeypatch.setattr(at_once.gangs, "record", refuses)
        monkeypatch.setattr(at_once.gangs, "index", index)
    if refusals is None:
        monkeypatch.setattr(training_try, "RECORD_WITHIN", 0.3)
    gang = GangSubmitter(at_once, a_job(nodes=2), LOG, None, threading.Event())
    record = gang.adopt_or_submit(key, None)
    ends(record.ref)
    one.ending.arm(at_once, record.ref)
    with pytest.raises(TaskDeferred):
        one._until_end(TaskWatch(at_once, record, LOG, 1))
    (attempt,) = backend.gangs.recorded(key, Place.of_gang(record.ref), [])
    is_recorded = attempt.ref is not None and attempt.ref.run_ids == record.ref.run_ids
    assert is_recorded is (refusals is not None)
    assert len(refused) == refusals if refusals is not None else len(refused) > 1


# the last try


class Left:
    """Refuses every try, and notes what was called off."""

    def __init__(self, error: BackendError, left: Sequence[str] = ()) -> None:
        self.error, self.left = error, list(left)
        self.called_off: list[int] = []

    def adopt_or_submit(self, *_: Any) -> Any:
        raise self.error

    def earlier_canceller(self, *_: Any) -> Callable[[], list[str]]:
        return lambda: self.called_off.append(-1) or []

    def ended_if_interrupted(self, *_: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def cancel_earlier(self, _: Any, number: int, why: BaseException) -> list[str]:
        assert str(self.error) in str(why)
        self.called_off.append(number)
        return self.left


@pytest.mark.parametrize("seed", range(30))
def test_a_try_after_which_none_comes_ends_what_earlier_ones_have_left_and_no_other_does(
    conn_id: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    monkeypatch.setattr(backoff, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(evidence, "REFUSED_FOR", 0.0)
    monkeypatch.setattr(evidence, "LONGEST_PAUSE", 0.01)
    number, max_tries = dice.randint(1, 4), dice.randint(0, 3)
    status = dice.choice([400, 401, 404, 403])
    overtaken = dice.random() < 0.2
    error = Overtaken("overtaken", 9) if overtaken else BackendError("not now", status_code=status)
    left = Left(error, dice.choice([(), ("g0-a1 may still be running: end it with ocidist cancel OCID",)]))
    with pytest.raises(BackendError) as caught:
        try_of(task(conn_id), number)._created_or_adopted(left, replace(a_key(), generation=max_tries), None)
    # What is refused for good is not tried again by Airflow; what was waited out is.
    is_last = number > max_tries or status == 400
    expected = [number] if number > 1 and is_last and not overtaken else []
    assert left.called_off == expected
    assert all(each in str(caught.value) for each in (left.left if expected else ()))
