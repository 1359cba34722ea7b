"""While a gang lives, bad answers of the service end no waiting, whatever their order and number."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.actions import Wait
from airflow_provider_ocidist.gangs.shared_look import look_together
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.evidence import ANSWERED
from airflow_provider_ocidist.model.run import NodeState, RunRef
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs

GANGS = 3
LIST, RUN = "/20190101/jobRuns", "/20190101/jobRuns/.*"
ANSWERS = {
    401: "NotAuthenticated",
    403: "NotAllowed",
    404: "NotAuthorizedOrNotFound",
    409: "IncorrectState",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, GANGS, 2) as gangs:
        yield gangs


def watches_of(idle: IdleGangs, count: int) -> list[Watch]:
    """Return watches by a client that asks once for each request, so that every bad answer is met."""
    backend = OciDataScience.connect(
        {**idle.emulator.connection_fields(), "max_attempts": 1, "work_dir": idle.emulator.work_dir}
    )
    made = [Watch(backend, record, logging.getLogger("test")) for record in idle.records[:count]]
    for watch in made:
        watch.reconnect = lambda: None
    return made


@pytest.mark.parametrize("count", [1, GANGS], ids=["one gang", "many"])
@pytest.mark.parametrize("seed", range(8))
def test_bad_answers_in_any_order_end_no_waiting(idle: IdleGangs, faults: Any, count: int, seed: int) -> None:
    dice = random.Random(seed)
    watches = watches_of(idle, count)
    script = [
        (dice.choice([LIST, RUN]), dice.choice(sorted(ANSWERS)), dice.randint(1, 3))
        for _ in range(dice.randint(1, 6))
    ]
    for path, status, times in script:
        faults(path=path, method="GET", status=status, code=ANSWERS[status], times=times)
    for look in range(25):
        outcomes = look_together(watches[0].backend, watches, 1e9).outcomes
        assert outcomes == (Wait(),) * count, f"seed {seed}, look {look}: {script}"
        assert all(watch.record.ending is None for watch in watches)
    assert {watch.record.unanswered for watch in watches} == {ANSWERED}, f"seed {seed}: {script}"
    for watch in watches:
        assert watch.status is not None
        assert {node.state for node in watch.status.nodes} == {NodeState.RUNNING}


@pytest.mark.parametrize("times", [1, 3])
def test_a_run_that_is_not_found_for_a_moment_ends_no_gang(emulator: Access, faults: Any, times: int) -> None:
    """One of two nodes, which the list does not have yet, is answered 404."""
    faults(path=LIST, method="GET", stale_s=600)
    with idle_gangs(emulator, 1, 2) as fresh:
        (watch,) = watches_of(fresh, 1)
        ref: RunRef = watch.record.ref
        faults(path=f"/20190101/jobRuns/{ref.run_ids[1]}", method="GET", status=404, times=times)
        for look in range(times + 2):
            assert watch.look(1e9) == Wait(), f"look {look}"
        assert watch.status is not None
        assert {node.state for node in watch.status.nodes} == {NodeState.RUNNING}
