"""Jobs, projects and artifacts: created, listed, changed, deleted; what the service refuses."""

from __future__ import annotations

import io

import oci
import pytest
from oci.data_science import models
from oci.exceptions import ServiceError

from tests.emulator.conftest import HTTP


def refusal(call, *args, **kwargs) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        call(*args, **kwargs)
    return caught.value.status, caught.value.code


def test_a_job_reads_back_as_it_was_created(cloud):
    details = cloud.job_details(environment_variables={"A": "1"}, command_line_arguments="--x 1")
    details.freeform_tags = {"team": "ml"}
    made = cloud.jobs.create_job(details)
    job = cloud.jobs.get_job(made.data.id)
    assert job.data == made.data
    assert job.data.lifecycle_state == "ACTIVE"
    assert job.data.job_configuration_details == details.job_configuration_details
    assert job.data.job_infrastructure_configuration_details.shape_name == "VM.Standard.E4.Flex"
    assert job.data.freeform_tags == {"team": "ml"}
    assert job.headers["etag"] == made.headers["etag"]
    assert job.headers["opc-request-id"] == job.request_id


def test_the_same_retry_token_creates_once(cloud):
    first = cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t1").data
    again = cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t1").data
    other = cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t2").data
    assert first.id == again.id != other.id
    assert len(cloud.jobs.list_jobs(cloud.access.compartment_id).data) == 2


def test_a_retry_token_with_another_payload_is_refused(cloud):
    cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t1")
    changed = cloud.job_details(command_line_arguments="other")
    assert refusal(cloud.jobs.create_job, changed, opc_retry_token="t1") == (409, "InvalidatedRetryToken")


@pytest.mark.parametrize("name", ["project_id", "compartment_id", "job_infrastructure_configuration_details"])
def test_required_fields_are_required(cloud, name):
    details = cloud.job_details()
    setattr(details, name, None)
    assert refusal(cloud.jobs.create_job, details) == (400, "MissingParameter")


@pytest.mark.parametrize("name", ["project_id", "compartment_id"])
def test_what_a_job_points_at_must_exist(cloud, name):
    details = cloud.job_details()
    setattr(details, name, "ocid1.thing.oc1.iad.aaaa")
    with pytest.raises(ServiceError) as caught:
        cloud.jobs.create_job(details)
    assert (caught.value.status, caught.value.code) == (404, "NotAuthorizedOrNotFound")
    assert caught.value.message == "Authorization failed or requested resource not found."


def test_subnet_and_log_must_exist(cloud):
    details = cloud.job_details()
    details.job_infrastructure_configuration_details.subnet_id = "ocid1.subnet.oc1.iad.aaaa"
    assert refusal(cloud.jobs.create_job, details)[0] == 404
    details = cloud.job_details()
    details.job_log_configuration_details.log_id = "ocid1.log.oc1.iad.aaaa"
    assert refusal(cloud.jobs.create_job, details)[0] == 404


@pytest.mark.parametrize(
    "configuration",
    [
        {"environment_variables": {"A": "x" * 20_000}},
        {"command_line_arguments": "x" * 4_001},
        {"maximum_runtime_in_minutes": 0},
        {"environment_variables": {"A B": "x"}},
    ],
    ids=["environment", "arguments", "runtime", "variable name"],
)
def test_limits_are_kept(cloud, configuration):
    assert refusal(cloud.jobs.create_job, cloud.job_details(**configuration)) == (400, "InvalidParameter")


def test_storage_has_a_lower_limit(cloud):
    details = cloud.job_details()
    details.job_infrastructure_configuration_details.block_storage_size_in_gbs = 49
    assert refusal(cloud.jobs.create_job, details) == (400, "InvalidParameter")


def test_native_multi_node_jobs_are_refused_for_now(cloud):
    details = cloud.job_details()
    details.job_node_configuration_details = models.MultiNodeJobNodeConfigurationDetails()
    assert refusal(cloud.jobs.create_job, details) == (400, "InvalidParameter")


def test_jobs_are_listed_in_pages_and_filtered(cloud):
    for number in range(5):
        details = cloud.job_details()
        details.display_name = f"job-{number}"
        cloud.jobs.create_job(details)
    pages = oci.pagination.list_call_get_all_results
    found = pages(
        cloud.jobs.list_jobs, cloud.access.compartment_id, limit=2, sort_by="displayName", sort_order="DESC"
    )
    assert [job.display_name for job in found.data] == [f"job-{number}" for number in (4, 3, 2, 1, 0)]
    one = cloud.jobs.list_jobs(cloud.access.compartment_id, display_name="job-3").data
    assert [job.display_name for job in one] == ["job-3"]
    assert cloud.jobs.list_jobs(cloud.access.tenancy_id).data == []


def test_an_unknown_compartment_is_not_found(cloud):
    for call in (cloud.jobs.list_jobs, cloud.jobs.list_job_runs, cloud.jobs.list_projects):
        assert refusal(call, "ocid1.compartment.oc1..aaaa") == (404, "NotAuthorizedOrNotFound")


def test_a_job_is_changed_only_by_who_knows_it(cloud):
    job = cloud.jobs.create_job(cloud.job_details())
    change = models.UpdateJobDetails(display_name="new", freeform_tags={"a": "b"})
    assert refusal(cloud.jobs.update_job, job.data.id, change, if_match="old") == (412, "NoEtagMatch")
    changed = cloud.jobs.update_job(job.data.id, change, if_match=job.headers["etag"])
    assert (changed.data.display_name, changed.data.freeform_tags) == ("new", {"a": "b"})
    assert changed.headers["etag"] != job.headers["etag"]


def test_a_deleted_job_can_be_read_but_not_run(cloud):
    job_id = cloud.job("pass")
    assert cloud.jobs.delete_job(job_id).status == 204
    assert cloud.jobs.get_job(job_id).data.lifecycle_state == "DELETED"
    assert refusal(cloud.start, job_id) == (404, "NotAuthorizedOrNotFound")
    assert refusal(cloud.jobs.get_job_artifact_content, job_id)[0] == 404


def test_a_job_with_runs_is_deleted_with_them_or_not_at_all(cloud):
    run = cloud.run("pass")
    assert refusal(cloud.jobs.delete_job, run.job_id) == (409, "IncorrectState")
    cloud.jobs.delete_job(run.job_id, delete_related_job_runs=True)
    assert cloud.jobs.get_job_run(run.id).data.lifecycle_state == "DELETED"


def test_unknown_ids_are_not_found(cloud):
    unknown = "ocid1.datasciencejob.oc1.iad.aaaa"
    for call in (
        cloud.jobs.get_job,
        cloud.jobs.get_job_run,
        cloud.jobs.get_project,
        cloud.jobs.cancel_job_run,
    ):
        assert refusal(call, unknown) == (404, "NotAuthorizedOrNotFound")


def test_an_artifact_comes_back_as_it_went(cloud):
    content = bytes(range(256)) * 20_000
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    assert refusal(cloud.jobs.head_job_artifact, job_id)[0] == 404
    cloud.jobs.create_job_artifact(
        job_id, io.BytesIO(content), content_disposition="attachment; filename=a.zip"
    )
    head = cloud.jobs.head_job_artifact(job_id)
    assert head.headers["content-length"] == str(len(content))
    assert head.headers["content-disposition"] == "attachment; filename=a.zip"
    assert cloud.jobs.get_job_artifact_content(job_id).data.content == content
    assert cloud.jobs.get_job_artifact_content(job_id, range="bytes=1-3").data.content == content[1:4]


def test_an_artifact_cannot_be_changed(cloud):
    job_id = cloud.job("pass")
    again = refusal(
        cloud.jobs.create_job_artifact, job_id, b"x", content_disposition="attachment; filename=b.py"
    )
    assert again == (409, "Conflict")


def test_an_artifact_that_is_sent_again_with_its_token_is_taken_once(cloud):
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    for _ in range(2):
        cloud.jobs.create_job_artifact(
            job_id, b"pass", content_disposition="attachment; filename=a.py", opc_retry_token="t"
        )
    assert cloud.jobs.get_job_artifact_content(job_id).data.content == b"pass"


def test_projects_are_created_and_deleted(cloud):
    details = models.CreateProjectDetails(display_name="p", compartment_id=cloud.access.compartment_id)
    project = cloud.jobs.create_project(details).data
    names = [each.display_name for each in cloud.jobs.list_projects(cloud.access.compartment_id).data]
    assert sorted(names) == ["ocidist", "p"]
    cloud.jobs.delete_project(project.id)
    job = cloud.job_details()
    job.project_id = project.id
    assert refusal(cloud.jobs.create_job, job)[0] == 404


def test_shapes_are_listed(cloud):
    names = [shape.name for shape in cloud.jobs.list_job_shapes(cloud.access.compartment_id).data]
    assert "VM.GPU.A10.1" in names


def test_other_paths_and_methods_are_refused(cloud):
    assert HTTP.get(f"{cloud.access.url}/20190101/nothing").status_code == 404
    assert HTTP.delete(f"{cloud.access.url}/20190101/jobs").status_code == 405
