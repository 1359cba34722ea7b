"""Resource Search, notebook sessions and private addresses: what programs ask to find their way."""

from __future__ import annotations

import random
from typing import Any

import oci
import pytest
from oci.exceptions import ServiceError
from oci.resource_search.models import FreeTextSearchDetails, StructuredSearchDetails

from airflow_provider_ocidist.emulator import command
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.resource_search import MAX_CHARS
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud


def found(cloud: Cloud, text: str, **more: Any) -> list[Any]:
    client = cloud.client(oci.resource_search.ResourceSearchClient)
    return list(client.search_resources(FreeTextSearchDetails(text=text), **more).data.items)


def queried(cloud: Cloud, query: str) -> list[Any]:
    client = cloud.client(oci.resource_search.ResourceSearchClient)
    return list(client.search_resources(StructuredSearchDetails(query=query)).data.items)


def mount_of(cloud: Cloud, address: str, path: str) -> tuple[str, str]:
    """Return mount target and export as Oracle ADS looks for them."""
    newest = max(found(cloud, address), key=lambda item: item.time_created)
    (target,) = (
        each.identifier for each in found(cloud, newest.identifier) if each.resource_type == "MountTarget"
    )
    (export,) = (each.identifier for each in found(cloud, path) if each.resource_type == "Export")
    return target, export


def test_everything_of_every_service_is_found_by_its_ocid_with_its_compartment(cloud: Cloud) -> None:
    access = cloud.access
    job_id = cloud.job("pass")
    run_id = cloud.run("pass").id
    cloud.wait(run_id)
    bucket = cloud.objects.get_bucket(*cloud.place).data.id
    expected = {
        access.project_id: "DataScienceProject",
        job_id: "DataScienceJob",
        run_id: "DataScienceJobRun",
        access.log_group_id: "LogGroup",
        access.log_id: "Log",
        access.subnet_id: "Subnet",
        bucket: "Bucket",
    }
    for ocid, kind in expected.items():
        (item,) = found(cloud, ocid)
        assert (item.identifier, item.resource_type) == (ocid, kind)
        assert item.compartment_id == access.compartment_id
        assert item.display_name
        assert item.time_created
        assert item.lifecycle_state
    (compartment,) = found(cloud, access.compartment_id)
    assert (compartment.resource_type, compartment.compartment_id) == ("Compartment", access.tenancy_id)


def test_a_text_is_found_in_a_name_word_by_word_whatever_its_case(cloud: Cloud) -> None:
    details = oci.data_science.models.CreateProjectDetails(
        compartment_id=cloud.access.compartment_id,
        display_name="Speech Models",
        freeform_tags={"team": "blue"},
    )
    project = cloud.jobs.create_project(details).data.id
    for text in ("speech", "MODELS", "speech models", " blue "):
        assert [item.identifier for item in found(cloud, text)] == [project], text
    for text in ("spee", "speech model", "models speech"):
        assert found(cloud, text) == []


def test_the_file_system_of_the_documents_is_found_as_ads_looks_for_it(cloud: Cloud) -> None:
    target, export = mount_of(cloud, "10.0.0.1", "/export")
    assert (target.split(".")[1], export.split(".")[1]) == ("mounttarget", "export")
    assert found(cloud, "10.0.0.2") == found(cloud, "/exports") == []


def test_other_file_systems_are_those_that_the_emulator_was_started_with(tmp_path: Any) -> None:
    dice = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    systems = {
        f"10.0.{dice.randrange(1, 255)}.{dice.randrange(1, 255)}:/{dice.getrandbits(40):x}" for _ in range(3)
    }
    state = tmp_path / "state"
    seen = []
    for _ in range(2):
        with Emulator(state=state, options=Options(file_systems=tuple(sorted(systems)))) as emulator:
            cloud = Cloud.of(emulator.access)
            seen.append([mount_of(cloud, *each.split(":")) for each in sorted(systems)])
    assert seen[0] == seen[1], "a restart keeps their OCIDs"
    assert len({export for _, export in seen[0]}) == len(systems)


@pytest.mark.parametrize("text", ["10.0.0:/x", "host:/x", "10.0.0.1", "10.0.0.1:x", ":/x", "10.0.0.300:/x"])
def test_a_file_system_that_is_none_is_refused_at_the_start(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(["--file-system", text])
    assert caught.value.code == 2
    assert "--file-system" in capsys.readouterr().err


def test_queries_choose_by_kind_and_fields(cloud: Cloud) -> None:
    access = cloud.access
    job_id = cloud.job("pass")
    everything = {item.identifier for item in queried(cloud, "query all resources")}
    assert {job_id, access.project_id, access.log_id, access.subnet_id} <= everything
    for query, expected in [
        ("query datasciencejob resources", {job_id}),
        ("QUERY DataScienceJob, log RESOURCES", {job_id, access.log_id}),
        (f"query all resources where identifier = '{job_id}'", {job_id}),
        ("query datasciencejob resources where displayName =~ 'JO' && lifecycleState = 'ACTIVE'", {job_id}),
        ("query datasciencejob resources where displayName != 'job'", set()),
        ("query datascienceproject resources where compartmentId = 'x'", set()),
        ("query unheardof resources", set()),
    ]:
        assert {item.identifier for item in queried(cloud, query)} == expected, query


@pytest.mark.parametrize(
    "query",
    [
        "find x",
        "query resources where",
        "query all resources where displayName",
        "query all resources where a = 'b'",
        "query all resources where displayName = 'a' || displayName = 'b'",
        "query all resources where displayName = 'a' displayName = 'b'",
        "query all resources where displayName = 'a",
        "query all resources; drop",
        "query all resources " + "where displayName = 'a' && " * 1000,
        " " * (MAX_CHARS - 10) + "query (",
        "query all resources " + "x" * MAX_CHARS,
    ],
)
def test_a_query_that_is_not_understood_is_refused(cloud: Cloud, query: str) -> None:
    with pytest.raises(ServiceError) as caught:
        queried(cloud, query)
    assert (caught.value.status, caught.value.code) == (400, "InvalidParameter")


def test_a_search_comes_in_pages(cloud: Cloud) -> None:
    client = cloud.client(oci.resource_search.ResourceSearchClient)
    details = StructuredSearchDetails(query="query all resources")
    everything = [item.identifier for item in client.search_resources(details).data.items]
    paged, page = [], None
    while True:
        answer = client.search_resources(details, limit=2, **({"page": page} if page else {}))
        paged += [item.identifier for item in answer.data.items]
        if not (page := answer.next_page):
            break
    assert paged == everything
    assert len(everything) > 5


def test_a_notebook_session_says_on_what_machine_it_is(cloud: Cloud) -> None:
    (listed,) = cloud.jobs.list_notebook_sessions(cloud.access.compartment_id).data
    session = cloud.jobs.get_notebook_session(listed.id).data
    assert (session.project_id, session.compartment_id) == (
        cloud.access.project_id,
        cloud.access.compartment_id,
    )
    machine = session.notebook_session_config_details
    assert (machine.subnet_id, machine.block_storage_size_in_gbs) == (cloud.access.subnet_id, 100)
    assert machine.notebook_session_shape_config_details.ocpus == 1
    shapes = cloud.jobs.list_job_shapes(cloud.access.compartment_id).data
    assert machine.shape in {shape.name for shape in shapes}
    assert cloud.jobs.list_notebook_sessions(cloud.access.compartment_id, display_name="other").data == []
    with pytest.raises(ServiceError) as caught:
        cloud.jobs.get_notebook_session("ocid1.datasciencenotebooksession.oc1.iad.aaaa")
    assert caught.value.status == 404


def test_the_address_of_a_mount_target_is_a_private_address_of_the_subnet(cloud: Cloud) -> None:
    network = cloud.client(oci.core.VirtualNetworkClient)
    (address,) = network.list_private_ips(subnet_id=cloud.access.subnet_id, ip_address="10.0.0.1").data
    assert network.get_private_ip(address.id).data == address
    assert [item.identifier for item in found(cloud, "10.0.0.1") if item.resource_type == "PrivateIp"] == [
        address.id
    ]
    assert [each.id for each in network.list_private_ips(vnic_id=address.vnic_id).data] == [address.id]
    assert network.list_private_ips(subnet_id=cloud.access.subnet_id, ip_address="10.0.0.9").data == []
    for refused in (
        lambda: network.list_private_ips(ip_address="10.0.0.1"),
        lambda: network.get_private_ip("ocid1.x"),
    ):
        with pytest.raises(ServiceError) as caught:
            refused()
        assert caught.value.status in (400, 404)
