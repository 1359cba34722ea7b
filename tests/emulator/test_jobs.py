"""Jobs, projects and artifacts: created, listed, changed, deleted; what the service refuses."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from pathlib import Path
from urllib.parse import quote

import oci
import pytest
from oci.data_science import models
from oci.exceptions import ServiceError

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.data_science.artifacts import artifact_name
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import HTTP, OPTIONS, Cloud


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
    part = cloud.jobs.get_job_artifact_content(job_id, range="bytes=1-3")
    assert (part.data.content, part.status) == (content[1:4], 206)
    assert part.headers["content-range"] == f"bytes 1-3/{len(content)}"
    assert cloud.jobs.get_job_artifact_content(job_id, range="bytes=-2").data.content == content[-2:]
    assert refusal(cloud.jobs.get_job_artifact_content, job_id, range=f"bytes={len(content)}-")[0] == 416


@pytest.mark.parametrize("name", ["é.py", "\N{SNOWMAN} \N{ROCKET}.py", "a'b%.py"])
def test_an_artifact_of_any_name_comes_back_with_it(cloud, name):
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    given = f"attachment; filename*=UTF-8''{quote(name)}"
    cloud.jobs.create_job_artifact(job_id, b"pass", content_disposition=given)
    answer = cloud.jobs.get_job_artifact_content(job_id)
    assert answer.data.content == b"pass"
    assert artifact_name(answer.headers["content-disposition"]) == name


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b=c.py", "a\0.py", "a\x7f.py", "\N{SNOWMAN}" * 85 + "!"])
def test_an_artifact_with_a_name_that_no_file_or_header_has_is_refused(cloud, name):
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    given = f"attachment; filename*=UTF-8''{quote(name)}"
    refused = refusal(cloud.jobs.create_job_artifact, job_id, b"pass", content_disposition=given)
    assert refused == (400, "InvalidParameter")
    assert refusal(cloud.jobs.head_job_artifact, job_id)[0] == 404


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


def test_projects_are_created_listed_and_changed(cloud):
    details = models.CreateProjectDetails(display_name="p", compartment_id=cloud.access.compartment_id)
    project = cloud.jobs.create_project(details)
    names = [each.display_name for each in cloud.jobs.list_projects(cloud.access.compartment_id).data]
    assert sorted(names) == ["ocidist", "p"]
    change = models.UpdateProjectDetails(description="new")
    assert refusal(cloud.jobs.update_project, project.data.id, change, if_match="old") == (412, "NoEtagMatch")
    changed = cloud.jobs.update_project(project.data.id, change, if_match=project.headers["etag"]).data
    assert (changed.description, changed.display_name) == ("new", "p")


def test_each_kind_moves_to_another_compartment(cloud):
    details = oci.identity.models.CreateCompartmentDetails(
        compartment_id=cloud.access.tenancy_id, name="other", description="d"
    )
    other = cloud.client(oci.identity.IdentityClient).create_compartment(details).data.id
    run = cloud.run("pass")
    for move, kind, get, item_id in (
        (cloud.jobs.change_job_run_compartment, "JobRun", cloud.jobs.get_job_run, run.id),
        (cloud.jobs.change_job_compartment, "Job", cloud.jobs.get_job, run.job_id),
        (cloud.jobs.change_project_compartment, "Project", cloud.jobs.get_project, cloud.access.project_id),
    ):
        change = getattr(models, f"Change{kind}CompartmentDetails")(compartment_id=other)
        assert refusal(move, item_id, change, if_match="old") == (412, "NoEtagMatch")
        assert move(item_id, change).status == 204
        assert get(item_id).data.compartment_id == other
        nowhere = getattr(models, f"Change{kind}CompartmentDetails")(
            compartment_id="ocid1.compartment.oc1..a"
        )
        assert refusal(move, item_id, nowhere)[0] == 404
    assert [each.id for each in cloud.jobs.list_job_runs(other).data] == [run.id]


@pytest.mark.parametrize(
    "path,query",
    [
        ("/jobs", {"lifecycleState": "SLEEPING"}),
        ("/jobs", {"sortBy": "colour"}),
        ("/jobs", {"sortOrder": "UP"}),
        ("/jobs", {"limit": 101}),
        ("/jobs", {"page": "x"}),
        ("/jobRuns", {"lifecycleState": "ACTIVE"}),
        ("/projects", {"lifecycleState": "FAILED"}),
        ("/workRequests", {"status": "DONE"}),
        ("/jobShapes", {"limit": 0}),
    ],
)
def test_a_list_refuses_what_it_does_not_know(cloud, path, query):
    query = {"compartmentId": cloud.access.compartment_id, **query}
    call = cloud.jobs.base_client.call_api
    assert refusal(call, resource_path=path, method="GET", query_params=query) == (400, "InvalidParameter")


def test_a_list_needs_a_compartment(cloud):
    for path in ("/jobs", "/jobRuns", "/projects", "/workRequests", "/jobShapes", "/fastLaunchJobConfigs"):
        found = refusal(cloud.jobs.base_client.call_api, resource_path=path, method="GET")
        assert found == (400, "MissingParameter")


def test_shapes_are_listed(cloud):
    pages = oci.pagination.list_call_get_all_results
    shapes = pages(cloud.jobs.list_job_shapes, cloud.access.compartment_id, limit=10).data
    assert len(shapes) == len({shape.name for shape in shapes}) > 10
    shape = next(shape for shape in shapes if shape.name == "VM.GPU.A10.1")
    assert (shape.core_count, shape.memory_in_gbs, shape.shape_series) == (15, 240, "NVIDIA_GPU")
    fast = cloud.jobs.list_fast_launch_job_configs(cloud.access.compartment_id).data
    assert {each.shape_name for each in fast} < {shape.name for shape in shapes}


def test_other_paths_and_methods_are_refused(cloud):
    assert HTTP.get(f"{cloud.access.url}/20190101/nothing").status_code == 404
    assert HTTP.delete(f"{cloud.access.url}/20190101/jobs").status_code == 405


def mounts(**more) -> list:
    fields = {"namespace": "ns", "bucket": "b", "destination_directory_name": "data", **more}
    return [models.ObjectStorageMountConfigurationDetails(**fields)]


@pytest.mark.parametrize(
    "given",
    [
        mounts(bucket=None),
        mounts(destination_directory_name=None),
        mounts(destination_directory_name="a/b"),
        mounts(destination_path="relative"),
        mounts() * 2,
        [mounts(destination_directory_name=str(number))[0] for number in range(6)],
        [models.StorageMountConfigurationDetails(storage_type="TAPE", destination_directory_name="a")],
    ],
    ids=["bucket", "no name", "slash", "relative", "twice", "too many", "type"],
)
def test_storage_mounts_that_make_no_sense_are_refused(cloud, given):
    details = cloud.job_details()
    details.job_storage_mount_configuration_details_list = given
    assert refusal(cloud.jobs.create_job, details)[0] == 400


def test_each_infrastructure_has_its_own_required_fields(cloud):
    cluster = models.ManagedComputeClusterJobInfrastructureConfigurationDetails(
        compute_target_id="ocid1.datasciencecomputetarget.oc1.iad.aaaa",
        resource_configuration=models.ManagedComputeClusterJobResourceConfiguration(
            resource_request_configuration=models.ResourceRequestConfiguration(ocpus=1, memory_in_gbs=8)
        ),
    )
    egress = models.ManagedEgressStandaloneJobInfrastructureConfigurationDetails(
        shape_name="VM.Standard.E4.Flex", block_storage_size_in_gbs=50
    )
    details = cloud.job_details()
    for infrastructure in (cluster, egress):
        details.job_infrastructure_configuration_details = infrastructure
        shown = cloud.jobs.create_job(details).data.job_infrastructure_configuration_details
        assert shown == infrastructure
    cluster.compute_target_id = None
    egress.shape_name = None
    wrong = [
        (cluster, "MissingParameter"),
        (egress, "MissingParameter"),
        (models.EmptyJobInfrastructureConfigurationDetails(), "InvalidParameter"),
        (
            models.MultiNodeJobInfrastructureConfigurationDetails(
                shape_name="VM.GPU.A10.1", block_storage_size_in_gbs=50
            ),
            "InvalidParameter",
        ),
    ]
    for infrastructure, code in wrong:
        details.job_infrastructure_configuration_details = infrastructure
        assert refusal(cloud.jobs.create_job, details) == (400, code)


def test_a_changed_job_is_checked_as_a_new_one_is(cloud):
    job_id = cloud.jobs.create_job(cloud.job_details()).data.id
    infrastructure = cloud.job_details().job_infrastructure_configuration_details
    infrastructure.shape_name = "VM.GPU.A10.1"
    change = models.UpdateJobDetails(job_infrastructure_configuration_details=infrastructure)
    changed = cloud.jobs.update_job(job_id, change).data
    assert changed.job_infrastructure_configuration_details.shape_name == "VM.GPU.A10.1"
    infrastructure.block_storage_size_in_gbs = 1
    assert refusal(cloud.jobs.update_job, job_id, change) == (400, "InvalidParameter")


def test_a_deleted_jobs_retry_token_is_invalid(cloud):
    job_id = cloud.jobs.create_job(cloud.job_details(), opc_retry_token="t").data.id
    cloud.jobs.delete_job(job_id)
    again = refusal(cloud.jobs.create_job, cloud.job_details(), opc_retry_token="t")
    assert again == (409, "InvalidatedRetryToken")


def test_a_retry_token_is_forgotten_after_a_day(folder):
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        made = {
            token: cloud.jobs.create_job(cloud.job_details(), opc_retry_token=token).data.id
            for token in ("young", "old")
        }
    age_retry_tokens(folder / "state.sqlite3", {"young": 23, "old": 25})
    with Emulator(state=folder, options=OPTIONS) as emulator:
        cloud = Cloud.of(emulator.access)
        for token, same in (("young", True), ("old", False)):
            again = cloud.jobs.create_job(cloud.job_details(), opc_retry_token=token).data.id
            assert (again == made[token]) is same
    with contextlib.closing(sqlite3.connect(folder / "state.sqlite3")) as store:
        assert store.execute("SELECT count(*) FROM records WHERE kind = 'retry_token'").fetchone() == (2,)


def age_retry_tokens(path: Path, hours: dict[str, int]) -> None:
    """Make an emulator that is not running believe that so many hours have gone by since each was used."""
    with contextlib.closing(sqlite3.connect(path)) as store, store:
        for key, body in store.execute("SELECT id, body FROM records WHERE kind = 'retry_token'").fetchall():
            answered = json.loads(body)
            aged = {**answered, "time": answered["time"] - hours[key.split()[-1]] * 3600}
            store.execute(
                "UPDATE records SET body = ? WHERE kind = 'retry_token' AND id = ?", (json.dumps(aged), key)
            )


@pytest.mark.parametrize("place", ["job", "run"])
def test_a_shape_that_the_service_does_not_have_is_refused_with_those_near_it(
    cloud: Cloud, place: str
) -> None:
    details = cloud.job_details()
    job_id = cloud.jobs.create_job(details).data.id
    infrastructure = details.job_infrastructure_configuration_details
    infrastructure.shape_name = "VM.Standard.E4.Felx"
    create = {
        "job": lambda: cloud.jobs.create_job(details),
        "run": lambda: cloud.start(job_id, job_infrastructure_configuration_override_details=infrastructure),
    }
    with pytest.raises(ServiceError, match=r"VM\.Standard\.E4\.Flex") as caught:
        create[place]()
    assert (caught.value.status, caught.value.code) == (400, "InvalidParameter")


def test_a_shape_that_is_newer_than_the_emulator_can_be_made_known_to_it() -> None:
    with Emulator(options=Options(shapes=("BM.GPU.NEW.8",))) as emulator:
        cloud = Cloud.of(emulator.access)
        details = cloud.job_details()
        details.job_infrastructure_configuration_details.shape_name = "BM.GPU.NEW.8"
        assert cloud.jobs.create_job(details).data.id
