"""Checks of the subnet: whether the nodes have room in it, and reach one another."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.backends.oci_data_science.preflight.judgements import (
    room_finding,
    traffic_finding,
)
from airflow_provider_ocidist.backends.oci_data_science.preflight.target import PreflightTarget
from airflow_provider_ocidist.oci_client.errors import oci_errors


def subnet(target: PreflightTarget) -> Iterator[Finding]:
    if target.options.subnet_id is None:
        yield Finding.passed("subnet", "none is asked for: the service makes the network")
        return
    client = target.client("network")
    with oci_errors("reading the subnet"):
        found = client.get_subnet(target.options.subnet_id).data
    if found.lifecycle_state != "AVAILABLE":
        message = f"{found.display_name} is {found.lifecycle_state}"
        yield Finding.failed("subnet", message, "name one that is AVAILABLE")
        return
    yield room_finding(found, target.job.nodes)
    if target.job.nodes > 1:
        with oci_errors("reading the subnet's security lists"):
            lists = [client.get_security_list(list_id).data for list_id in found.security_list_ids or ()]
        yield traffic_finding(found.cidr_block, lists)
