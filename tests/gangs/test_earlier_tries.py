"""The last try that gives up ends what earlier ones have left, by whichever side it reaches, and names the rest."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.earlier_tries import cancel_noted
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef, Tries
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.backends.silent import Silent
from tests.http_client import http
from tests.training_jobs import a_job, a_key, wait_until

pytestmark = pytest.mark.usefixtures("no_node_starts")

ENDED = {"CANCELING", "CANCELED"}
SEED = random.randrange(10_000)
LOG = logging.getLogger("test_earlier_tries")
GIVES_UP = BackendError("the service asks for patience", status_code=429, retryable=True)
SERVICE = {"path": "/20190101/.*", "status": 429, "code": "TooManyRequests"}
STORE = {"path": "/n/.*", "status": 503, "code": "ServiceUnavailable"}


@pytest.fixture
def impatient(fields: dict[str, Any]) -> OciDataScience:
    return OciDataScience.connect({**fields, "max_attempts": 1})


def left_by(backend: OciDataScience, key: RunKey, number: int, how: str) -> Attempt:
    """Leave what an earlier try has left; return what Airflow has noted of it."""
    plan = replace(
        backend.plan(a_job(nodes=2), key), tries=Tries(try_number=number, max_tries=key.generation)
    )
    if how == "begun":
        attempt = Attempt.of(plan)
    else:
        ref = backend.submit(plan, None, [])
        attempt = Attempt.of(plan, ref if how != "half" else half_of(plan, ref))
    backend.gangs.record(attempt)
    if how == "ended":
        backend.cancel(attempt.ref or attempt_ref(attempt))
        backend.gangs.close(attempt.ref or attempt_ref(attempt), End(succeeded=False))
    return attempt


def attempt_ref(attempt: Attempt) -> RunRef:
    assert attempt.ref is not None
    return attempt.ref


def half_of(plan: Plan, ref: RunRef) -> RunRef:
    """Return a gang as one knows it of whose second run the creation was never answered."""
    del plan
    return replace(ref, run_ids=(ref.run_ids[0], ""))


def has_stop_request(backend: OciDataScience, attempt: Attempt) -> bool:
    return backend._store(attempt.place.run_dir).exists(STOP_FILE)


def states(backend: OciDataScience, key: RunKey, compartment_id: str) -> set[str]:
    """Return the states of all runs of an attempt."""
    return {
        run.lifecycle_state
        for run in pages(backend._client.list_job_runs, compartment_id)
        if (run.freeform_tags or {}).get("ocidist-task") == key.task_digest
        and run.display_name.startswith(key.name)
    }


@pytest.mark.parametrize("case", range(12))
def test_what_gives_up_for_good_leaves_nothing_that_is_neither_asked_to_end_nor_named(
    impatient: OciDataScience, emulator: Access, faults: Callable[..., None], case: int
) -> None:
    print("seed", SEED + case)
    dice = random.Random(SEED + case)
    task = a_key()
    down = [(), (SERVICE,), (STORE,), (SERVICE, STORE)][case % 4]
    number = dice.randint(3, 5)
    left: dict[str, Attempt] = {}
    for generation in range(dice.randint(1, 2)):
        key = replace(task, generation=generation)
        how = dice.choice(["whole", "half", "begun", "ended", "of a later try"])
        left[how] = left_by(impatient, key, number + 1 if how == "of a later try" else 1, how)
    notes: Any = (
        {NOTE: {"attempts": [each.to_json() for each in left.values()]}} if dice.random() < 0.5 else None
    )
    for rule in down:
        faults(**rule)
    if dice.random() < 0.5:
        gang = GangSubmitter(impatient, a_job(nodes=2), LOG, notes, threading.Event())
        said = "\n".join(gang.cancel_earlier(task, number, GIVES_UP))
    else:
        # Its job cannot be read any more.
        said = "\n".join(cancel_noted(lambda _: impatient, task, number, GIVES_UP, notes, LOG))
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    for how, attempt in left.items():
        found = states(impatient, attempt.key, emulator.compartment_id)
        is_stopped = has_stop_request(impatient, attempt)
        if how == "of a later try":
            assert not is_stopped, "what a later try waits for got a stop request"
            # Where its claim cannot be read, it is ended: nothing lives on for want of an answer.
            assert STORE in down or found <= {"ACCEPTED", "IN_PROGRESS"}
        elif how != "ended" and not is_stopped and not (found and found <= {"CANCELING", "CANCELED"}):
            named = attempt.key.name in said
            # What nobody has noted and no side shows cannot be named: then it is said that there may be more.
            assert named or (notes is None and "cannot be listed" in said), (how, said)
            assert len(down) == 2 or notes is None or how == "begun", (how, said)


def test_a_try_after_the_last_one_gave_up_does_not_begin_what_that_has_called_off(
    backend: OciDataScience,
) -> None:
    key = a_key()
    begun = left_by(backend, key, 1, "begun")
    gang = GangSubmitter(backend, a_job(nodes=2), LOG, None, threading.Event())
    assert gang.cancel_earlier(key, 2, GIVES_UP) == []
    assert has_stop_request(backend, begun)
    ref = gang.adopt_or_submit(key, None, 3).ref
    assert ref.key == replace(key, attempt=2)
    assert not backend._store(ref.run_dir).exists(STOP_FILE)


@pytest.mark.parametrize(
    "how, is_left",
    [("gives up", True), ("its job is broken", True), ("is killed", False), ("was killed", False)],
)
def test_a_claim_that_is_answered_late_is_waited_for_by_a_task_that_has_time(
    backend: OciDataScience,
    emulator: Access,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    is_left: bool,
) -> None:
    """A cold connection, or a store that says 429 once; a killed task has five seconds in all."""
    monkeypatch.setattr("airflow_provider_ocidist.backends.claims.CLAIM_PATIENCE", 0.2)
    monkeypatch.setattr("airflow_provider_ocidist.gangs.submission.CLAIM_PATIENCE", 0.2)
    key, stop = a_key(), threading.Event()
    attempt = left_by(backend, key, 1, "whole")
    assert backend.directories.claim(attempt_ref(attempt), 4) == 4
    claimed_by = backend.directories.claimed_by

    def late(ref: RunRef) -> int:
        time.sleep(2.0)
        return claimed_by(ref)

    monkeypatch.setattr(backend.directories, "claimed_by", late)
    gang = GangSubmitter(backend, a_job(nodes=2), LOG, noted(attempt), stop)
    if how == "was killed":
        stop.set()
    {
        "gives up": lambda: gang.cancel_earlier(key, 3, GIVES_UP),
        "was killed": lambda: gang.cancel_earlier(key, 3, GIVES_UP),
        "is killed": gang.earlier_canceller(key, 3, GIVES_UP),
        "its job is broken": lambda: cancel_noted(lambda _: backend, key, 3, GIVES_UP, noted(attempt), LOG),
    }[how]()
    assert bool(states(backend, key, emulator.compartment_id) & ENDED) is not is_left


# Gangs at another home than that of the job


class Notes(dict[str, Any]):
    """Airflow's task state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def noted(*attempts: Attempt) -> Notes:
    return Notes({NOTE: {"attempts": [each.to_json() for each in attempts]}})


@pytest.mark.parametrize("readable", [True, False], ids=["job readable", "job broken"])
def test_each_noted_gang_is_ended_at_its_own_home(
    backend: OciDataScience, emulator: Access, tmp_path: Path, readable: bool
) -> None:
    here = Local.connect({"work_dir": str(tmp_path / "work")})
    key = a_key()
    at_oci = left_by(backend, key, 1, "whole")
    local = here.plan(a_job(nodes=1, seconds=60, backend={"kind": "local"}), replace(key, attempt=2))
    notes = noted(at_oci, Attempt.of(local, here.submit(local)))
    homes = {"local": here, "oci_data_science": backend}
    if readable:
        job = a_job(nodes=1, backend={"kind": "local"})
        gang = GangSubmitter(here, job, LOG, notes, threading.Event(), reach=homes.__getitem__)
        # A task that is killed asks nothing of Airflow: what it needs is connected before.
        called_off = gang.earlier_canceller(key, 2, GIVES_UP)
        del homes["oci_data_science"]
        said = called_off()
    else:
        said = cancel_noted(lambda kind: homes[kind or "local"], key, 2, GIVES_UP, notes, LOG)
    assert said == []
    assert states(backend, key, emulator.compartment_id) <= {"CANCELING", "CANCELED"}
    attempt = notes[NOTE]["attempts"][1]
    wait_until(here, RunRef.from_json(attempt["ref"]), lambda status: status.ended)


def test_a_noted_gang_whose_home_cannot_be_reached_is_asked_to_stop_and_named(
    backend: OciDataScience, fields: dict[str, Any], tmp_path: Path
) -> None:
    key = a_key()
    at_oci = left_by(backend, key, 1, "whole")
    # Its run directory is in a bucket that this home's connection can read too.
    here = Local.connect({**fields, "work_dir": str(tmp_path / "work")})
    job = a_job(nodes=1, backend={"kind": "local"})
    gang = GangSubmitter(here, job, LOG, noted(at_oci), threading.Event(), reach={}.__getitem__)
    (said,) = gang.cancel_earlier(key, 2, GIVES_UP)
    assert at_oci.key.name in said
    assert attempt_ref(at_oci).job_id in said
    assert "backend oci_data_science cannot be reached" in said
    assert has_stop_request(backend, at_oci)


def test_a_store_that_never_answers_delays_no_cancel_of_any_noted_gang(
    backend: OciDataScience, emulator: Access
) -> None:
    """The store answers only once the service has every cancel, or when the patience of this test is over."""
    key = a_key()
    attempts = [left_by(backend, replace(key, generation=number), 1, "whole") for number in range(3)]
    with Silent() as store, ThreadPoolExecutor(1) as pool:
        reached = OciDataScience(backend.access, backend.defaults)
        reached._cancel_dirs._open_store = lambda uri: open_store(
            uri, replace(backend.access, endpoint=store.url, urgent=True)
        )
        gang = GangSubmitter(reached, a_job(nodes=2), LOG, noted(*attempts), threading.Event())
        called_off = pool.submit(gang.earlier_canceller(key, 4, GIVES_UP))
        assert store.was_asked.wait(30), "no claim is read: the case is not met"
        deadline = time.monotonic() + 4
        while any(states(backend, each.key, emulator.compartment_id) - ENDED for each in attempts):
            assert time.monotonic() < deadline, "a cancel waits for the store"
            time.sleep(0.05)
        called_off.result(120)


def test_a_cleared_tasks_gangs_are_asked_to_stop_though_all_other_requests_to_the_store_wait(
    backend: OciDataScience, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers those requests only once the nodes have theirs, or when the patience of this test is over."""
    key = a_key()
    attempts = [left_by(backend, replace(key, generation=number), 1, "whole") for number in range(2)]
    reached = OciDataScience(backend.access, backend.defaults)
    read = reached.gangs.attempts
    with Silent() as store, ThreadPoolExecutor(1) as pool:

        def then_silent(*given: Any) -> list[Attempt]:
            found = read(*given)
            reached._run_dirs._open_store = lambda uri: open_store(
                uri, replace(backend.access, endpoint=store.url)
            )
            reached._run_dirs.clear()
            return found

        monkeypatch.setattr(reached.gangs, "attempts", then_silent)
        stop = threading.Event()
        gang = GangSubmitter(reached, a_job(nodes=2), LOG, None, stop)
        cleared = pool.submit(gang.adopt_or_submit, replace(key, generation=2), None, 2)
        deadline = time.monotonic() + 20
        try:
            while not all(has_stop_request(backend, each) for each in attempts):
                assert time.monotonic() < deadline, "a stop request waits with the others"
                time.sleep(0.05)
        finally:
            stop.set()
            store.close()
    with contextlib.suppress(Exception):
        cleared.result(120)


# A try whose job cannot be read


def context_of(key: RunKey, number: int, notes: Notes | None) -> Any:
    """Return what a task asks of Airflow before it has created anything."""
    ti = SimpleNamespace(
        dag_id=key.dag_id,
        run_id=key.run_id,
        task_id=key.task_id,
        map_index=key.map_index,
        max_tries=key.generation,
        try_number=number,
        start_date=None,
        xcom_push=lambda **_: None,
    )
    return {"ti": ti, **({} if notes is None else {"task_state_store": notes})}


def task(conn_id: str, job: str) -> DistributedTrainingOperator:
    """Return a task at its second try."""
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(task_id="train", job=job, conn_id=conn_id)


BROKEN = {
    "no YAML": "name: [",
    "a key that does not exist": "name: x\nprogram: {script: a.py}\nnodez: 2\nbackend: {kind: oci_data_science}\n",
    "no shape": "name: x\nprogram: {script: a.py}\nbackend: {kind: oci_data_science}\n",
    "no such file": None,
    "no such bucket": "oci://no-such-bucket@nowhere/job.yaml",
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("noted", [True, False])
def test_a_try_whose_job_cannot_be_read_any_more_ends_what_earlier_ones_have_left(
    backend: OciDataScience, emulator: Access, conn_id: str, tmp_path: Path, fault: str, noted: bool
) -> None:
    key, notes = replace(a_key(), generation=1), Notes()
    GangSubmitter(backend, a_job(nodes=2), LOG, notes, threading.Event()).adopt_or_submit(key, None, 1)
    assert states(backend, key, emulator.compartment_id) <= {"ACCEPTED", "IN_PROGRESS"}
    text, file = BROKEN[fault], tmp_path / "job.yaml"
    if text and not text.startswith("oci://"):
        file.write_text(text)
    retried = task(conn_id, text if text and text.startswith("oci://") else str(file))
    with pytest.raises(Exception) as caught:
        retried.execute(context_of(key, 2, notes if noted else None))
    assert "may still be running" not in str(caught.value)
    assert states(backend, key, emulator.compartment_id) <= {"CANCELING", "CANCELED"}


def test_a_try_after_which_others_come_leaves_what_there_is_where_a_store_does_not_answer(
    backend: OciDataScience, emulator: Access, conn_id: str
) -> None:
    key = replace(a_key(), generation=3)
    GangSubmitter(backend, a_job(nodes=2), LOG, None, threading.Event()).adopt_or_submit(key, None, 1)
    retried = task(conn_id, str(BROKEN["no such bucket"]))
    with pytest.raises(StorageError):
        retried.execute(context_of(key, 2, None))
    assert states(backend, key, emulator.compartment_id) <= {"ACCEPTED", "IN_PROGRESS"}
