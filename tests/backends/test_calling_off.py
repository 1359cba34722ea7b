"""The last try that gives up ends what earlier ones have left, by whichever side it reaches, and names the rest."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.submission import NOTE, GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt, End
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef, Tries
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from scripts.emulator_process import Access
from tests.training_jobs import a_job, a_key

SEED = random.randrange(10_000)
GIVES_UP = BackendError("the service asks for patience", status_code=429, retryable=True)
SERVICE = {"path": "/20190101/.*", "status": 429, "code": "TooManyRequests"}
STORE = {"path": "/n/.*", "status": 503, "code": "ServiceUnavailable"}


@pytest.fixture
def faults(emulator: Access) -> Iterator[Callable[..., None]]:
    def add(**rule: Any) -> None:
        httpx.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()

    yield add
    httpx.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


@pytest.fixture(autouse=True)
def _never_starts(emulator: Access) -> Iterator[None]:
    httpx.post(f"{emulator.url}/_emulator/nodes", json={"never_starts": True}).raise_for_status()
    yield
    httpx.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()


@pytest.fixture
def impatient(fields: dict[str, Any]) -> OciDataScience:
    return OciDataScience.connect({**fields, "max_attempts": 1})


def left_by(backend: OciDataScience, key: RunKey, number: int, how: str) -> Attempt:
    """Leave what an earlier try has left; return what Airflow has noted of it."""
    plan = replace(backend.plan(a_job(nodes=2), key), tries=Tries(number=number, max_tries=key.generation))
    if how == "begun":
        attempt = Attempt.of(plan)
    else:
        ref = backend.submit(plan, None, [])
        attempt = Attempt.of(plan, ref if how != "half" else half_of(plan, ref))
    backend.gangs.record(attempt)
    if how == "ended":
        backend.cancel(attempt.ref or attempt_ref(attempt))
        backend.close(attempt.ref or attempt_ref(attempt), End(succeeded=False))
    return attempt


def attempt_ref(attempt: Attempt) -> RunRef:
    assert attempt.ref is not None
    return attempt.ref


def half_of(plan: Plan, ref: RunRef) -> RunRef:
    """Return a gang as one knows it of whose second run the creation was never answered."""
    del plan
    return replace(ref, run_ids=(ref.run_ids[0], ""))


def is_told_to_stop(backend: OciDataScience, attempt: Attempt) -> bool:
    return backend._store(attempt.place.run_dir).exists(STOP_FILE)


def states(backend: OciDataScience, key: RunKey, compartment_id: str) -> set[str]:
    """Return the states of all runs of an attempt."""
    return {
        run.lifecycle_state
        for run in pages(backend._client.list_job_runs, compartment_id)
        if (run.freeform_tags or {}).get("ocidist-task") == key.task_digest
        and run.display_name.startswith(key.name)
    }


@pytest.mark.parametrize("case", range(8))
def test_what_gives_up_for_good_leaves_nothing_that_is_neither_told_to_end_nor_named(
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
    notes = {NOTE: {"attempts": [each.to_json() for each in left.values()]}} if dice.random() < 0.5 else None
    gang = GangSubmitter(impatient, a_job(nodes=2), logging.getLogger("test"), notes, threading.Event())  # type: ignore[arg-type]
    for rule in down:
        faults(**rule)
    said = "\n".join(gang.call_off(task, number, GIVES_UP))
    httpx.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    for how, attempt in left.items():
        found = states(impatient, attempt.key, emulator.compartment_id)
        told = is_told_to_stop(impatient, attempt)
        if how == "of a later try":
            assert not told, "what a later try waits for was told to stop"
            # Where its claim cannot be read, it is ended: nothing lives on for want of an answer.
            assert STORE in down or found <= {"ACCEPTED", "IN_PROGRESS"}
        elif how != "ended" and not told and not (found and found <= {"CANCELING", "CANCELED"}):
            named = attempt.key.name in said
            # What nobody has noted and no side shows cannot be named: then it is said that there may be more.
            assert named or (notes is None and "not known" in said), (how, said)
            assert len(down) == 2 or notes is None or how == "begun", (how, said)
