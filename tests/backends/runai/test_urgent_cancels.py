"""A cancel at Run:ai is sent at once, whatever the store and all other requests wait for."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.errors import BackendError, CancelFailed
from airflow_provider_ocidist.gangs.kills import make_ready
from airflow_provider_ocidist.model.run import RunRef
from scripts.emulator_process import Access
from tests.backends.runai.test_backend import a_job
from tests.backends.silent import Silent
from tests.emulator.runai.conftest import Plane
from tests.training_jobs import a_key

LOG = logging.getLogger(__name__)


def is_gone(plane: Plane, ref: RunRef, seconds: float = 4) -> bool:
    """Wait until the control plane has the deletion; well before what a killed task has is over."""
    left = plane.until(
        lambda: [each["id"] for each in plane.get("/api/v1/workloads")["workloads"]],
        lambda found: ref.job_id not in found,
        seconds,
    )
    return ref.job_id not in left


def test_a_store_that_never_answers_delays_no_cancel(
    backend: Runai, plane: Plane, fields: dict[str, Any], emulator: Access
) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    place = f"oci://{emulator.bucket}@{emulator.namespace}/work/{ref.key.name}"
    far = replace(ref, run_dir=place)
    with ThreadPoolExecutor(1) as pool, Silent() as store:
        of_store = emulator.connection_fields() | {"endpoint": store.url}
        killed = Runai.connect({**of_store, **fields})
        make_ready(killed, far, LOG)
        cancelled = pool.submit(killed.cancel, far)
        assert store.was_asked.wait(30), "no stop request is on its way: the case is not met"
        assert is_gone(plane, ref)
        # The store's own requests give up soon, too: the thread that cancels is free for a second one.
        cancelled.result(60)


def test_requests_that_have_to_wait_delay_no_cancel(backend: Runai, plane: Plane) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    make_ready(backend, ref, LOG)
    plane.fault(method="DELETE", path=".*", status=429, retry_after_s=8, times=1)
    with ThreadPoolExecutor(1) as pool:
        cancelled = pool.submit(backend.cancel, ref)
        assert is_gone(plane, ref)
        cancelled.result(60)


def test_a_thread_that_waits_for_a_token_delays_no_cancel(backend: Runai, plane: Plane) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    make_ready(backend, ref, LOG)
    # As another thread has it, amid a token request that is not answered.
    with ThreadPoolExecutor(1) as pool, backend._client._lock:
        cancelled = pool.submit(backend.cancel, ref)
        assert is_gone(plane, ref)
        cancelled.result(60)


def test_a_control_plane_that_never_answers_delays_no_stop_request(
    backend: Runai, plane: Plane, fields: dict[str, Any]
) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    with Silent() as control:
        killed = Runai.connect({**fields, "url": control.url})
        failed: list[BaseException] = []

        def cancel() -> None:
            try:
                killed.cancel(ref)
            except BackendError as error:
                failed.append(error)

        thread = threading.Thread(target=cancel)
        thread.start()
        plane.until(lambda: Path(ref.run_dir, "stop.json").exists(), bool, 4)
        thread.join(20)
        assert not thread.is_alive(), "a request of a cancel waits for half a minute"
    (error,) = failed
    assert isinstance(error, CancelFailed)
    assert error.stop_requested
