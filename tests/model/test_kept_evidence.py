"""A sensor whose every look has a process of its own: one bad answer ends nothing, and old evidence is believed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.errors import GaveUp
from airflow_provider_ocidist.model import evidence
from airflow_provider_ocidist.sensors import CheckpointSensor, DistributedTrainingSensor
from airflow_provider_ocidist.triggers import connections
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.airflow_exceptions import AirflowRescheduleException
from tests.http_client import http

POKE = 180
"""Seconds; nobody waits for them."""
LOOKS = 12


class Notes(dict[str, Any]):
    """Airflow's task state store."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, 1, 2) as gangs:
        yield gangs


@pytest.fixture(autouse=True)
def _connection(emulator: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["run", "checkpoint"])
def look(
    request: pytest.FixtureRequest, idle: IdleGangs, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., bool]:
    """Looks once, as a process of its own, and returns whether the sensor goes on to wait."""
    ref = idle.records[0].ref
    place = f"oci://{idle.emulator.bucket}@{idle.emulator.namespace}/never"

    def one(notes: Notes | None, number: int = 1) -> bool:
        # What a new process does not have.
        monkeypatch.setattr(connections, "_connections", {})
        given: dict[str, Any] = {"task_id": "wait", "mode": "reschedule", "poke_interval": POKE}
        made = (
            DistributedTrainingSensor(run=ref.to_json(), **given)
            if request.param == "run"
            else CheckpointSensor(uri=place, **given)
        )
        ti = SimpleNamespace(
            start_date=datetime.now(UTC), get_first_reschedule_date=lambda _: None, try_number=number
        )
        context: Any = {"ti": ti, **({} if notes is None else {"task_state_store": notes})}
        try:
            made.execute(context)
        except AirflowRescheduleException:
            return True
        except (GaveUp, AirflowFailException):
            return False
        raise AssertionError("it has ended as if what is waited for had come")

    return one


def refuse(faults: Callable[..., None], status: int) -> None:
    faults(path="(/20190101/jobRuns|/n/.*/o).*", method="GET", status=status, code="Refused")


@pytest.mark.parametrize("status", [401, 403, 404])
def test_the_same_refusal_for_a_quarter_of_an_hour_ends_the_wait(
    look: Callable[..., bool], faults: Callable[..., None], status: int
) -> None:
    notes = Notes()
    refuse(faults, status)
    waited = 0
    while look(notes):
        waited += 1
        assert waited < LOOKS
    # The first refusal is at 0 s, and each look at least the interval after the one before.
    assert waited == evidence.REFUSED_FOR / POKE
    # Another try of the task begins anew.
    assert look(notes, number=2)


@pytest.mark.parametrize("seed", range(2))
def test_bad_answers_between_good_ones_end_no_wait(
    look: Callable[..., bool], faults: Callable[..., None], emulator: Access, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    notes = Notes()
    for _ in range(3):
        for _ in range(dice.randint(1, 4)):
            refuse(faults, dice.choice([401, 403, 404]))
            assert look(notes)
            http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
        assert look(notes)


@pytest.mark.parametrize(
    "left", [None, {}, {"ocidist_evidence": 7}, {"ocidist_evidence": {"subject": "other", "kept": {}}}]
)
def test_without_a_store_that_helps_a_refusal_ends_nothing(
    look: Callable[..., bool], faults: Callable[..., None], left: dict[str, Any] | None
) -> None:
    refuse(faults, 401)
    notes = None if left is None else Notes(left)
    assert look(notes)
    assert look(notes)
