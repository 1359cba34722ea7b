"""Every look at OCI carries the time at the service."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import RunRef
from tests.training_jobs import a_job, a_key, wait_until


def test_a_look_carries_the_time_of_the_service(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1), a_key())))
    status = wait_until(backend, ref, lambda status: status.ended)
    assert status.at == pytest.approx(time.time(), abs=60)
    assert all(node.sign for node in status.nodes)


def test_it_is_the_services_whatever_this_machines_clock_says(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=30), a_key())))
    # The emulator is a process of its own; OCI refuses what is signed more than five minutes off.
    real: Callable[[], Any] = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 250)
    (status,) = backend.status([ref])
    assert status.at == pytest.approx(real(), abs=60)
    assert backend.now() == pytest.approx(real(), abs=60)
