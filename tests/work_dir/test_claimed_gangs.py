"""The word of a later try, as the backend keeps it in the run directory: what cannot be read is no word."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.model.work_dir import CLAIM_FILE
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from scripts.emulator_process import Access
from tests.http_client import http
from tests.training_jobs import a_key

SEED = random.randrange(10_000)


@pytest.fixture
def ref(backend: OciDataScience, fields: dict[str, Any]) -> RunRef:
    """A gang of which nothing but its run directory matters."""
    run_dir = f"{fields['work_dir']}/runs/{uuid.uuid4().hex}"
    return RunRef(
        backend="oci_data_science",
        key=a_key(),
        nodes=1,
        job_id="job",
        run_ids=("run",),
        run_dir=run_dir,
        submitted_at=1.0,
    )


@pytest.fixture
def store_is_down(emulator: Access) -> Iterator[None]:
    rule = {"path": f"/n/{emulator.namespace}/.*", "status": 403, "code": "NotAllowed"}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    yield
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


def test_the_last_try_that_left_word_is_known(backend: OciDataScience, ref: RunRef) -> None:
    assert backend.directories.claimed_by(ref) == 0
    for number in (2, 3):
        backend.directories.claim(ref, number)
        assert backend.directories.claimed_by(ref) == number


@pytest.mark.parametrize("content", [b"", b"x", b"\xff\xfe", b"1.5", b"null"])
def test_a_word_that_cannot_be_read_is_none(backend: OciDataScience, ref: RunRef, content: bytes) -> None:
    backend._store(ref.run_dir).write(CLAIM_FILE, content)
    assert backend.directories.claimed_by(ref) == 0


def test_a_store_that_is_down_gives_no_word_and_takes_none_without_an_error(
    backend: OciDataScience, ref: RunRef, store_is_down: None, caplog: pytest.LogCaptureFixture
) -> None:
    assert backend.directories.claimed_by(ref) == 0
    backend.directories.claim(ref, 2)
    assert "could not record ownership in the work directory" in caplog.text


@pytest.fixture(params=["bucket", "folder"])
def anywhere(request: pytest.FixtureRequest, ref: RunRef, tmp_path: Path) -> RunRef:
    """A gang whose run directory is in a bucket, or in a folder."""
    return ref if request.param == "bucket" else replace(ref, run_dir=str(tmp_path))


@pytest.mark.parametrize("case", range(8))
def test_no_earlier_try_takes_back_what_a_later_one_has_claimed(
    backend: OciDataScience, anywhere: RunRef, case: int
) -> None:
    print("seed", SEED + case)
    dice = random.Random(SEED + case)
    highest = 0
    for _ in range(10):
        number = dice.randint(1, 6)
        highest = max(highest, number)
        assert backend.directories.claim(anywhere, number) == highest
        assert backend.directories.claimed_by(anywhere) == highest


@pytest.mark.parametrize("case", range(6))
def test_of_tries_that_claim_at_once_the_latest_has_it_and_every_other_one_may_know(
    backend: OciDataScience, anywhere: RunRef, case: int
) -> None:
    print("seed", SEED + case)
    numbers = random.Random(SEED + case).sample(range(1, 20), 6)
    begin = threading.Barrier(len(numbers))

    def claim(number: int) -> int:
        begin.wait(60)
        return backend.directories.claim(anywhere, number)

    holders = in_parallel(claim, numbers)
    assert all(holder >= number for holder, number in zip(holders, numbers, strict=True))
    assert holders[numbers.index(max(numbers))] == max(numbers)
    assert backend.directories.claimed_by(anywhere) == max(numbers)
