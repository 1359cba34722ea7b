"""Tenancy, regions, compartments and networks, as clients ask for them."""

from __future__ import annotations

import oci
import pytest
from oci.exceptions import ServiceError
from oci.identity.models import CreateCompartmentDetails, UpdateCompartmentDetails

from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud


@pytest.fixture
def identity(cloud):
    return cloud.client(oci.identity.IdentityClient)


@pytest.fixture
def network(cloud):
    return cloud.client(oci.core.VirtualNetworkClient)


def status_of(call, *arguments, **more) -> tuple[int, str]:
    with pytest.raises(ServiceError) as caught:
        call(*arguments, **more)
    return caught.value.status, caught.value.code


def make(identity, parent: str, name: str) -> str:
    details = CreateCompartmentDetails(compartment_id=parent, name=name, description="d")
    return identity.create_compartment(details).data.id


def test_the_tenancy_is_in_one_of_many_regions(cloud, identity):
    access = cloud.access
    assert identity.get_tenancy(access.tenancy_id).data.home_region_key == "IAD"
    subscribed = identity.list_region_subscriptions(access.tenancy_id).data
    assert [(each.region_name, each.is_home_region) for each in subscribed] == [(access.region, True)]
    regions = {region.key: region.name for region in identity.list_regions().data}
    assert regions["IAD"] == access.region
    assert "PHX" in regions
    assert status_of(identity.get_tenancy, "ocid1.tenancy.oc1..other")[0] == 404


def test_domains_are_listed(cloud, identity):
    place = cloud.access.compartment_id
    domain = identity.list_availability_domains(place).data[0].name
    assert domain == "Uocm:US-ASHBURN-1-AD-1"
    faults = identity.list_fault_domains(place, domain).data
    assert [each.name for each in faults] == ["FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3"]
    assert status_of(identity.list_fault_domains, place, "other")[0] == 404


def test_compartments_are_a_tree(cloud, identity):
    tenancy_id, first = cloud.access.tenancy_id, cloud.access.compartment_id
    inner = make(identity, first, "inner")
    innermost = make(identity, inner, "innermost")

    def listed(parent, **more):
        return [each.id for each in identity.list_compartments(parent, **more).data]

    assert listed(tenancy_id) == [first]
    assert listed(first) == [inner]
    assert listed(tenancy_id, compartment_id_in_subtree=True, access_level="ACCESSIBLE") == [
        inner, innermost, first,
    ]  # fmt: skip
    assert listed(tenancy_id, compartment_id_in_subtree=True, name="innermost") == [innermost]
    assert listed(tenancy_id, lifecycle_state="DELETED") == []
    newest = listed(tenancy_id, compartment_id_in_subtree=True, sort_by="TIMECREATED")
    assert set(newest) == {first, inner, innermost}
    assert status_of(identity.list_compartments, first, compartment_id_in_subtree=True)[0] == 400
    pages = oci.pagination.list_call_get_all_results(
        identity.list_compartments, tenancy_id, compartment_id_in_subtree=True, limit=1
    )
    assert len(pages.data) == 3


def test_compartments_change_and_are_unique(cloud, identity):
    first = cloud.access.compartment_id
    inner = make(identity, first, "inner")
    details = CreateCompartmentDetails(compartment_id=first, name="INNER", description="d")
    assert status_of(identity.create_compartment, details) == (409, "CompartmentAlreadyExists")
    details.name = "no spaces"
    assert status_of(identity.create_compartment, details)[0] == 400
    etag = identity.get_compartment(inner).headers["etag"]
    change = UpdateCompartmentDetails(name="renamed")
    assert status_of(identity.update_compartment, inner, change, if_match="other")[0] == 412
    changed = identity.update_compartment(inner, change, if_match=etag).data
    assert (changed.name, changed.description) == ("renamed", "d")


def test_the_tenancy_is_the_root_compartment(cloud, identity):
    root = identity.get_compartment(cloud.access.tenancy_id).data
    assert (root.id, root.compartment_id) == (cloud.access.tenancy_id, None)


def test_compartments_survive_a_restart(folder):
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        made = make(cloud.client(oci.identity.IdentityClient), emulator.access.compartment_id, "inner")
    with Emulator(state=folder) as emulator:
        cloud = Cloud.of(emulator.access)
        identity = cloud.client(oci.identity.IdentityClient)
        assert identity.get_compartment(made).data.name == "inner"
        cloud.control("POST", "/reset")
        assert status_of(identity.get_compartment, made)[0] == 404
        assert identity.get_compartment(emulator.access.compartment_id).data.name == "ocidist"


def test_there_is_one_network(cloud, network):
    access = cloud.access
    vcn = network.list_vcns(access.compartment_id).data[0]
    subnets = network.list_subnets(access.compartment_id, vcn_id=vcn.id).data
    assert [each.id for each in subnets] == [access.subnet_id]
    assert network.get_vcn(vcn.id).data.cidr_blocks == ["127.0.0.0/16"]
    assert network.get_subnet(access.subnet_id).data.vcn_id == vcn.id
    assert network.list_subnets(access.compartment_id, display_name="other").data == []
    assert network.list_vcns(access.tenancy_id).data == []
    assert status_of(network.get_subnet, "ocid1.subnet.oc1.iad.other")[0] == 404
    assert status_of(network.list_vcns, "ocid1.compartment.oc1..other")[0] == 404
