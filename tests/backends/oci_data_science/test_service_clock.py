"""The time at the service, by its own answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.service_clock import ServiceClock
from airflow_provider_ocidist.model.run import RunRef
from tests.training_jobs import a_job, a_key, wait_until


def answer(**headers: str) -> Any:
    return SimpleNamespace(headers=headers)


def listening(clock: ServiceClock) -> Callable[[Any], None]:
    hooks: dict[str, list[Any]] = {"response": []}
    client = SimpleNamespace(base_client=SimpleNamespace(session=SimpleNamespace(hooks=hooks)))
    assert clock.heeding(client) is client
    (hook,) = hooks["response"]
    return hook


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_services_time_plus_what_has_passed_since(seed: int) -> None:
    print("seed", seed)
    random_ = random.Random(seed)
    steady, service = random_.uniform(0, 1e6), random_.uniform(1e9, 2e9)
    clock = ServiceClock(lambda: steady)
    hears = listening(clock)
    assert clock.now() is None
    for _ in range(20):
        passed = random_.uniform(0, 100)
        steady, service = steady + passed, service + passed
        if random_.random() < 0.5 or clock.now() is None:
            hears(answer(Date=formatdate(service, usegmt=True)))
        elif random_.random() < 0.5:
            hears(answer(**random_.choice([{}, {"Date": "soon"}])))
        assert clock.now() == pytest.approx(service, abs=1.0)


def test_a_look_carries_the_time_of_the_service(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1), a_key())))
    status = wait_until(backend, ref, lambda status: status.ended)
    assert status.at == pytest.approx(time.time(), abs=60)
    assert all(node.sign for node in status.nodes)
