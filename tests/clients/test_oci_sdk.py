"""The parts of the `oci` SDK that people build on: managers, paging, waiters, breakers, the asynchronous client."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import oci
import pytest
from circuitbreaker import CircuitBreakerError
from oci.async_base_client import AsyncBaseClient
from oci.data_science import models
from oci.object_storage.transfer.constants import MEBIBYTE

from scripts.emulator_process import Access


@pytest.fixture
def place(emulator: Access) -> tuple[str, str]:
    return emulator.namespace, emulator.bucket


@pytest.fixture
def control(emulator: Access) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{emulator.url}/_emulator") as client:
        yield client
        client.delete("/faults")


def details(access: Access, name: str) -> models.CreateJobDetails:
    return models.CreateJobDetails(
        project_id=access.project_id,
        compartment_id=access.compartment_id,
        display_name=name,
        job_configuration_details=models.DefaultJobConfigurationDetails(),
        job_infrastructure_configuration_details=models.StandaloneJobInfrastructureConfigurationDetails(
            shape_name="VM.Standard2.1", subnet_id=access.subnet_id, block_storage_size_in_gbs=50
        ),
    )


def put_parts(calls: list[dict[str, Any]]) -> int:
    return sum(call["method"] == "PUT" and "/u/" in call["path"] and call["status"] == 200 for call in calls)


def content_of(objects: Any, place: tuple[str, str], name: str) -> bytes:
    return b"".join(objects.get_object(*place, name).data.raw.stream(MEBIBYTE))


def test_upload_manager_sends_a_file_in_parts(objects, place, tmp_path):
    content = os.urandom(11 * MEBIBYTE)
    (tmp_path / "file").write_bytes(content)
    sent: list[int] = []
    answer = oci.object_storage.UploadManager(objects).upload_file(
        *place,
        "managed",
        str(tmp_path / "file"),
        part_size=4 * MEBIBYTE,
        progress_callback=sent.append,
        metadata={"made-by": "a manager"},
        content_type="application/x-test",
    )
    assert answer.headers["opc-multipart-md5"].endswith("-3")
    assert sum(sent) == len(content)
    head = objects.head_object(*place, "managed").headers
    assert (head["opc-meta-made-by"], head["content-type"]) == ("a manager", "application/x-test")
    assert content_of(objects, place, "managed") == content


def test_upload_manager_sends_a_stream_of_unknown_length(objects, place):
    content = os.urandom(5 * MEBIBYTE)
    reader, writer = os.pipe()

    def feed():
        with os.fdopen(writer, "wb") as file:
            file.write(content)

    with os.fdopen(reader, "rb") as stream, ThreadPoolExecutor() as threads:
        threads.submit(feed)
        manager = oci.object_storage.UploadManager(objects, allow_parallel_uploads=True)
        manager.upload_stream(*place, "streamed", stream, part_size=2 * MEBIBYTE)
    assert content_of(objects, place, "streamed") == content


def test_a_broken_upload_is_resumed_with_the_missing_parts_only(objects, place, control, tmp_path):
    content = os.urandom(8 * MEBIBYTE)
    (tmp_path / "file").write_bytes(content)
    failure = {"method": "PUT", "path": ".*/u/.*", "status": 400}

    def after_a_part(_: int) -> None:
        control.post("/faults", json=failure)

    manager = oci.object_storage.UploadManager(objects, allow_parallel_uploads=False)
    with pytest.raises(oci.exceptions.ServiceError):
        manager.upload_file(
            *(*place, "resumed", str(tmp_path / "file")),
            part_size=2 * MEBIBYTE,
            progress_callback=after_a_part,
        )
    control.delete("/faults")
    [left] = [one for one in objects.list_multipart_uploads(*place).data if one.object == "resumed"]
    assert len(objects.list_multipart_upload_parts(*place, "resumed", left.upload_id).data) == 1
    control.delete("/calls")
    manager.resume_upload_file(
        *place, "resumed", str(tmp_path / "file"), left.upload_id, part_size=2 * MEBIBYTE
    )
    assert put_parts(control.get("/calls").json()) == 3
    assert content_of(objects, place, "resumed") == content


def test_pages_are_followed(jobs, emulator):
    name = f"page-{uuid.uuid4().hex[:8]}"
    made = {jobs.create_job(details(emulator, name)).data.id for _ in range(5)}
    what = {"compartment_id": emulator.compartment_id, "display_name": name, "limit": 2}
    everything = oci.pagination.list_call_get_all_results(jobs.list_jobs, **what).data
    assert {job.id for job in everything} == made
    some = oci.pagination.list_call_get_up_to_limit(jobs.list_jobs, 3, 2, **{**what, "limit": None}).data
    assert len(some) == 3
    lazily = oci.pagination.list_call_get_all_results_generator(jobs.list_jobs, "record", **what)
    assert {job.id for job in lazily} == made


def test_waiters_see_the_states_that_they_wait_for(jobs, objects, emulator, place):
    quick = {"max_interval_seconds": 1, "max_wait_seconds": 30}
    both = oci.data_science.DataScienceClientCompositeOperations(jobs)
    job = both.create_job_and_wait_for_state(
        details(emulator, "awaited"), ["ACTIVE"], waiter_kwargs=quick
    ).data
    program = b"import time; time.sleep(60)"
    jobs.create_job_artifact(job.id, program, content_disposition="attachment; filename=program.py")
    asked = models.CreateJobRunDetails(
        project_id=emulator.project_id, compartment_id=emulator.compartment_id, job_id=job.id
    )
    run = both.create_job_run_and_wait_for_state(asked, ["IN_PROGRESS"], waiter_kwargs=quick).data
    jobs.cancel_job_run(run.id)
    oci.wait_until(jobs, jobs.get_job_run(run.id), "lifecycle_state", "CANCELED", **quick)
    deleted = both.delete_job_and_wait_for_state(
        job.id, ["SUCCEEDED"], operation_kwargs={"delete_related_job_runs": True}, waiter_kwargs=quick
    ).data
    assert deleted.operation_type == "JOB_DELETE"

    objects.put_object(*place, "original", b"content")
    copy = oci.object_storage.models.CopyObjectDetails(
        source_object_name="original",
        destination_region=emulator.region,
        destination_namespace=emulator.namespace,
        destination_bucket=emulator.bucket,
        destination_object_name="copied-by-the-sdk",
    )
    both = oci.object_storage.ObjectStorageClientCompositeOperations(objects)
    both.copy_object_and_wait_for_state(*place, copy, ["COMPLETED"], waiter_kwargs=quick)
    assert content_of(objects, place, "copied-by-the-sdk") == b"content"


def test_a_circuit_breaker_opens_and_closes_again(emulator, config, control):
    breaker = oci.circuit_breaker.CircuitBreakerStrategy(
        name=uuid.uuid4().hex, failure_threshold=3, recovery_timeout=1
    )
    objects = oci.object_storage.ObjectStorageClient(
        config,
        service_endpoint=emulator.url,
        circuit_breaker_strategy=breaker,
        retry_strategy=oci.retry.NoneRetryStrategy(),
    )
    control.delete("/calls")
    control.post("/faults", json={"path": "/n", "status": 503, "code": "ServiceUnavailable", "times": 3})
    for _ in range(3):
        with pytest.raises(oci.exceptions.ServiceError):
            objects.get_namespace()
    with pytest.raises(CircuitBreakerError):
        objects.get_namespace()
    assert sum(call["path"] == "/n" for call in control.get("/calls").json()) == 3
    time.sleep(1)
    assert objects.get_namespace().data == emulator.namespace


async def test_the_asynchronous_client_has_many_calls_in_flight(emulator, config):
    name = f"async-{uuid.uuid4().hex[:8]}"
    client = AsyncBaseClient(
        "data_science",
        config,
        oci.signer.Signer.from_config(config),
        models.data_science_type_mapping,
        service_endpoint=emulator.url,
        base_path="/20190101",
    )

    async def create() -> Any:
        headers = {"content-type": "application/json", "opc-retry-token": uuid.uuid4().hex}
        body = details(emulator, name)
        return await client.call_api("/jobs", "POST", header_params=headers, body=body, response_type="Job")

    async with client:
        made = await asyncio.gather(*(create() for _ in range(20)))
        assert {answer.data.lifecycle_state for answer in made} <= {"CREATING", "ACTIVE"}
        query = {"compartmentId": emulator.compartment_id, "displayName": name, "limit": 50}
        listed = await client.call_api("/jobs", "GET", query_params=query, response_type="list[JobSummary]")
        with pytest.raises(oci.exceptions.ServiceError) as missing:
            await client.call_api("/jobs/ocid1.datasciencejob.oc1.iad.none", "GET", response_type="Job")
    assert {job.id for job in listed.data} == {answer.data.id for answer in made}
    assert (missing.value.status, missing.value.code) == (404, "NotAuthorizedOrNotFound")
