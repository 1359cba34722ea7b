"""The smaller services: identity, vault, logging."""

from __future__ import annotations

import base64
import time

import oci
import pytest
from oci.exceptions import ServiceError


def test_the_tenancy_and_what_is_in_it_can_be_read(cloud):
    access = cloud.access
    identity = cloud.client(oci.identity.IdentityClient)
    assert identity.get_tenancy(access.tenancy_id).data.id == access.tenancy_id
    regions = identity.list_region_subscriptions(access.tenancy_id).data
    assert [region.region_name for region in regions] == [access.region]
    assert identity.get_compartment(access.compartment_id).data.lifecycle_state == "ACTIVE"
    assert [each.id for each in identity.list_compartments(access.tenancy_id).data] == [access.compartment_id]
    subnet = cloud.client(oci.core.VirtualNetworkClient).get_subnet(access.subnet_id).data
    assert (subnet.id, subnet.cidr_block) == (access.subnet_id, "127.0.0.0/16")


def test_a_new_compartment_can_hold_jobs(cloud):
    details = oci.identity.models.CreateCompartmentDetails(
        compartment_id=cloud.access.tenancy_id, name="c", description="d"
    )
    compartment = cloud.client(oci.identity.IdentityClient).create_compartment(details).data
    job = cloud.job_details()
    job.compartment_id = compartment.id
    made = cloud.jobs.create_job(job).data
    assert [each.id for each in cloud.jobs.list_jobs(compartment.id).data] == [made.id]


def test_a_secret_can_be_read(cloud):
    client = cloud.client(oci.secrets.SecretsClient)
    bundle = client.get_secret_bundle(cloud.access.secret_id).data
    assert base64.b64decode(bundle.secret_bundle_content.content).decode() == cloud.access.secret_value
    with pytest.raises(ServiceError) as caught:
        client.get_secret_bundle("ocid1.vaultsecret.oc1.iad.aaaa")
    assert caught.value.status == 404


def test_logs_are_made_by_work_requests(cloud):
    client = cloud.client(oci.logging.LoggingManagementClient)
    group = cloud.access.log_group_id
    details = oci.logging.models.CreateLogDetails(display_name="mine", log_type="CUSTOM")
    accepted = client.create_log(group, details)
    assert client.get_work_request(accepted.headers["opc-work-request-id"]).data.status == "SUCCEEDED"
    assert [log.id for log in client.list_logs(group).data if log.display_name == "ocidist"] == [
        cloud.access.log_id
    ]
    mine = client.list_logs(group, display_name="mine").data
    assert client.get_log(group, mine[0].id).data.display_name == "mine"
    with pytest.raises(ServiceError) as caught:
        client.get_log(group, "ocid1.log.oc1.iad.aaaa")
    assert caught.value.status == 404


@pytest.fixture
def run_id(cloud) -> str:
    program = "import sys; print('out 1'); print('err 1', file=sys.stderr); print('out 2')"
    return cloud.run(program).id


@pytest.mark.parametrize(
    "where,found",
    [
        ("", 3),
        ("| where source = '{run}'", 3),
        ("| where source = '*{run}' and type = '*stderr'", 1),
        ('| WHERE type = "com.oraclecloud.datascience.jobrun.stdout"', 2),
        ("| where logContent.source = '*other'", 0),
        ("| where data.message = '*1' and (type = '*stdout' or type = '*stderr')", 2),
        ("| where data.message != 'out*'", 1),
        ("| where datetime > 0 and datetime < {now}", 3),
        ("| where datetime >= {now}", 0),
        ("| sort by datetime asc", 3),
    ],
)
def test_searches_find_what_they_name(cloud, run_id, where, found):
    where = where.replace("{run}", run_id).replace("{now}", str(int(time.time() * 1000) + 5000))
    assert len(cloud.search(f'search "{cloud.log_scope}" {where}')) == found


@pytest.mark.parametrize("parts,found", [(1, 3), (2, 3), (3, 3)])
def test_a_search_may_be_wider_than_a_log(cloud, run_id, parts, found):
    scope = "/".join(cloud.log_scope.split("/")[:parts])
    assert len(cloud.search(f'search "{scope}"')) == found
    assert cloud.search('search "ocid1.compartment.oc1..other"') == []


def test_the_newest_entry_comes_first_unless_asked(cloud, run_id):
    newest_first = cloud.search(f'search "{cloud.log_scope}"')
    in_order = cloud.search(f'search "{cloud.log_scope}" | sort by datetime asc')
    assert [each["id"] for each in newest_first] == [each["id"] for each in reversed(in_order)]


@pytest.mark.parametrize(
    "query", ["", "find x", 'search "a/b/c/d"', 'search "c" | top 5', "search 'c' | where x = 1"]
)
def test_a_search_that_makes_no_sense_is_refused(cloud, query):
    with pytest.raises(ServiceError) as caught:
        cloud.search(query)
    assert caught.value.status == 400
