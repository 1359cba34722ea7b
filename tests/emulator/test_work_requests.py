"""Deletions that take a while: the work requests that record them, their end, their cancellation."""

from __future__ import annotations

import time

import oci
import pytest
from oci.data_science import models
from oci.exceptions import ServiceError

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import OPTIONS, Cloud
from tests.emulator.test_jobs import refusal

SLOW = Options(deletion_s=600)


def project(cloud: Cloud) -> str:
    details = models.CreateProjectDetails(display_name="p", compartment_id=cloud.access.compartment_id)
    return str(cloud.jobs.create_project(details).data.id)


def finished(cloud: Cloud, request_id: str):
    deadline = time.monotonic() + 10
    while (request := cloud.jobs.get_work_request(request_id).data).time_finished is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return request


def test_a_job_goes_with_its_runs_or_not_at_all(cloud):
    run = cloud.run("pass")
    assert refusal(cloud.jobs.delete_job, run.job_id) == (409, "IncorrectState")
    answer = cloud.jobs.delete_job(run.job_id, delete_related_job_runs=True)
    assert cloud.jobs.get_job(run.job_id).data.lifecycle_state == "DELETING"
    # 404 when it is gone by now.
    assert refusal(cloud.start, run.job_id)[0] in (404, 409)
    request = finished(cloud, answer.headers["opc-work-request-id"])
    assert (request.operation_type, request.status, request.percent_complete) == (
        "JOB_DELETE",
        "SUCCEEDED",
        100,
    )
    resource = request.resources[0]
    assert (resource.entity_type, resource.identifier, resource.action_type) == ("job", run.job_id, "DELETED")
    assert cloud.jobs.get_job_run(run.id).data.lifecycle_state == "DELETED"
    assert cloud.jobs.get_job(run.job_id).data.lifecycle_state == "DELETED"


def test_a_job_without_runs_goes_at_once(cloud):
    answer = cloud.jobs.delete_job(cloud.job("pass"))
    assert answer.status == 204
    assert cloud.jobs.get_work_request(answer.headers["opc-work-request-id"]).data.status == "SUCCEEDED"


def test_a_job_with_live_runs_stays(cloud):
    run_id = cloud.start(cloud.job("import time; time.sleep(600)"))
    job_id = cloud.jobs.get_job_run(run_id).data.job_id
    deletion = refusal(cloud.jobs.delete_job, job_id, delete_related_job_runs=True)
    assert deletion == (409, "IncorrectState")
    assert cloud.jobs.get_job(job_id).data.lifecycle_state == "ACTIVE"


def test_the_sdk_waits_for_a_deletion(cloud):
    operations = oci.data_science.DataScienceClientCompositeOperations(cloud.jobs)
    waited = operations.delete_project_and_wait_for_state(
        project(cloud), wait_for_states=["SUCCEEDED"], waiter_kwargs={"max_interval_seconds": 0.05}
    )
    assert waited.data.operation_type == "PROJECT_DELETE"


def test_a_project_with_jobs_stays(cloud):
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    project_id = cloud.access.project_id
    assert refusal(cloud.jobs.delete_project, project_id) == (409, "IncorrectState")
    cloud.jobs.delete_job(job_id)
    request_id = cloud.jobs.delete_project(project_id).headers["opc-work-request-id"]
    assert finished(cloud, request_id).status == "SUCCEEDED"
    assert refusal(cloud.jobs.create_job, cloud.job_details())[0] == 404


def test_work_requests_are_listed_filtered_and_show_their_steps(cloud):
    projects = [project(cloud) for _ in range(3)]
    ids = [cloud.jobs.delete_project(each).headers["opc-work-request-id"] for each in projects]
    for request_id in ids:
        finished(cloud, request_id)
    run = cloud.run("pass")
    job = cloud.jobs.delete_job(run.job_id, delete_related_job_runs=True).headers["opc-work-request-id"]
    finished(cloud, job)
    place = cloud.access.compartment_id
    pages = oci.pagination.list_call_get_all_results
    found = pages(cloud.jobs.list_work_requests, place, operation_type="PROJECT_DELETE", limit=2).data
    assert [each.id for each in found] == ids[::-1]
    for filters, expected in (
        ({"resource_id": projects[1]}, [ids[1]]),
        ({"id": job}, [job]),
        ({"status": "FAILED"}, []),
        ({"sort_by": "operationType", "limit": 1}, [job]),
    ):
        assert [each.id for each in cloud.jobs.list_work_requests(place, **filters).data] == expected
    logs = pages(cloud.jobs.list_work_request_logs, job, limit=1).data
    assert [each.message for each in logs] == [
        "Work request accepted.",
        "Work request started.",
        "Work request succeeded.",
    ]
    assert cloud.jobs.list_work_request_errors(job).data == []


def test_what_has_not_started_can_be_canceled():
    with Emulator(options=SLOW) as emulator:
        cloud = Cloud.of(emulator.access)
        project_id = project(cloud)
        request_id = cloud.jobs.delete_project(project_id).headers["opc-work-request-id"]
        assert cloud.jobs.get_project(project_id).data.lifecycle_state == "DELETING"
        assert refusal(cloud.jobs.delete_project, project_id) == (409, "IncorrectState")
        assert refusal(cloud.jobs.cancel_work_request, request_id, if_match="old") == (412, "NoEtagMatch")
        assert cloud.jobs.cancel_work_request(request_id).status == 204
        assert cloud.jobs.get_work_request(request_id).data.status == "CANCELED"
        assert cloud.jobs.get_project(project_id).data.lifecycle_state == "ACTIVE"
        assert refusal(cloud.jobs.cancel_work_request, request_id) == (409, "IncorrectState")


def test_an_accepted_deletion_survives_a_restart(folder):
    with Emulator(state=folder, options=SLOW) as emulator:
        cloud = Cloud.of(emulator.access)
        project_id = project(cloud)
        request_id = cloud.jobs.delete_project(project_id).headers["opc-work-request-id"]
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        assert cloud.jobs.get_work_request(request_id).data.status == "SUCCEEDED"
        assert cloud.jobs.get_project(project_id).data.lifecycle_state == "DELETED"


def test_a_deletion_that_the_disk_refuses_has_failed_and_leaves_the_job(cloud, emulator):
    job_id = cloud.job("print()")
    path = emulator.folder / "artifacts" / job_id.rpartition(".")[2]
    path.unlink()
    path.mkdir()
    request_id = cloud.jobs.delete_job(job_id).headers["opc-work-request-id"]
    path.rmdir()
    assert cloud.jobs.get_work_request(request_id).data.status == "FAILED"
    assert len(cloud.jobs.list_work_request_errors(request_id).data) == 1
    assert cloud.jobs.get_job(job_id).data.lifecycle_state == "ACTIVE"


def test_an_unknown_work_request_is_not_found(cloud):
    unknown = "ocid1.datascienceworkrequest.oc1.iad.aaaa"
    for call in (
        cloud.jobs.get_work_request,
        cloud.jobs.list_work_request_logs,
        cloud.jobs.list_work_request_errors,
        cloud.jobs.cancel_work_request,
    ):
        with pytest.raises(ServiceError) as caught:
            call(unknown)
        assert (caught.value.status, caught.value.code) == (404, "NotAuthorizedOrNotFound")
