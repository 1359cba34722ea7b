"""The time at a service, by its own answers."""

from __future__ import annotations

import random
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.service_clock import ServiceClock


def answer(**headers: str) -> Any:
    return SimpleNamespace(headers=headers)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_services_time_plus_what_has_passed_since(seed: int) -> None:
    print("seed", seed)
    random_ = random.Random(seed)
    steady, service = random_.uniform(0, 1e6), random_.uniform(1e9, 2e9)
    clock = ServiceClock(lambda: steady)
    assert clock.now() is None
    for _ in range(20):
        passed = random_.uniform(0, 100)
        steady, service = steady + passed, service + passed
        if random_.random() < 0.5 or clock.now() is None:
            clock.take(answer(Date=formatdate(service, usegmt=True)))
        elif random_.random() < 0.5:
            clock.take(answer(**random_.choice([{}, {"Date": "soon"}])))
        assert clock.now() == pytest.approx(service, abs=1.0)
