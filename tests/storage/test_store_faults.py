"""Faults of a store as a row of the fault matrix has them, drawn by chance: never a success with wrong bytes."""

from __future__ import annotations

import datetime as dt
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oci.object_storage.models import CreatePreauthenticatedRequestDetails

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.storage.locations import parse
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import copy
from tests.http_client import http

PART = 64 << 10
FAULTS: tuple[dict[str, Any], ...] = (
    {"status": 503, "code": "ServiceUnavailable"},
    {"status": 500, "code": "InternalServerError"},
    {"status": 429, "code": "TooManyRequests", "retry_after_s": 1},
    {"drop": "before"},
    {"drop": "after"},
    {"drop": "body", "body_bytes": 10_000},
    {"latency_s": 1.5},
    {"bytes_per_s": 400_000},
)


@pytest.fixture
def fault(emulator: dict[str, str]) -> Iterator[Callable[..., None]]:
    def add(**rule: Any) -> None:
        http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()

    yield add
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_store_does_a_copy_is_right_or_an_error(
    seed: int, bucket: str, access: Any, fault: Callable[..., None], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    content = os.urandom(rng.randint(1, 12) * PART + rng.randint(0, 99))
    (tmp_path / "file").write_bytes(content)
    for _ in range(3):
        # The first answers, from which sizes and tags are read, are as bad as those after them.
        fault(path="/n/.*", times=rng.randint(1, 3), **rng.choice(FAULTS))
    try:
        copy(str(tmp_path / "file"), f"{bucket}/x", access=access, part_size=PART)
    except StorageError:
        assert not open_store(bucket, access).exists("x")
        return
    fault(path="/n/.*", times=rng.randint(1, 3), **rng.choice(FAULTS))
    try:
        copy(f"{bucket}/x", str(tmp_path / "back"), access=access, part_size=PART)
    except StorageError:
        assert not (tmp_path / "back").exists()
        return
    assert (tmp_path / "back").read_bytes() == content


def test_a_preauthenticated_address_that_expires_is_one_error_and_leaves_nothing(
    bucket: str, access: Any, tmp_path: Path
) -> None:
    place = parse(bucket)
    open_store(bucket, access).write("x", b"content")
    details = CreatePreauthenticatedRequestDetails(
        name="par",
        access_type="ObjectRead",
        object_name=f"{place.path}/x",
        time_expires=dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=2),
    )
    objects = clients.client(access, "object_storage")
    request = objects.create_preauthenticated_request(place.namespace, place.bucket, details).data
    copy(request.full_path, str(tmp_path / "in time"))
    assert (tmp_path / "in time").read_bytes() == b"content"
    while dt.datetime.now(dt.timezone.utc) <= details.time_expires:
        time.sleep(0.1)
    with pytest.raises((StorageError, FileNotFoundError)) as refused:
        copy(request.full_path, str(tmp_path / "too late"))
    assert not (tmp_path / "too late").exists()
    assert request.access_uri.split("/")[2] not in str(refused.value)
