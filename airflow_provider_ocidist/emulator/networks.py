"""Core, as far as clients look at networks: the one VCN, its one subnet, the addresses of mount targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.built_in import fields_of_all, shown
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import missing, not_found
from airflow_provider_ocidist.emulator.file_systems import FileSystems
from airflow_provider_ocidist.emulator.identity import BASE, Identity, availability_domain
from airflow_provider_ocidist.emulator.installation import derived_ocid
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, matching, now, page

CIDR = "127.0.0.0/16"
"""Range of the nodes' addresses, so that a node finds its address inside the subnet."""
FILTERS = ("compartmentId", "displayName", "lifecycleState", "vcnId")
PRIVATE_IP_FILTERS = ("ipAddress", "subnetId", "vnicId")


class Networks:
    """Answers /vcns, /subnets and /privateIps."""

    def __init__(self, context: Context, identity: Identity, file_systems: FileSystems) -> None:
        self._ids = context.ids
        self._identity = identity
        self._file_systems = file_systems
        self._time_created = now()

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BASE}/vcns", self.list_vcns),
            Route("GET", f"{BASE}/vcns/{{id}}", self.get_vcn),
            Route("GET", f"{BASE}/subnets", self.list_subnets),
            Route("GET", f"{BASE}/subnets/{{id}}", self.get_subnet),
            Route("GET", f"{BASE}/privateIps", self.list_private_ips),
            Route("GET", f"{BASE}/privateIps/{{id}}", self.get_private_ip),
        ]

    async def list_vcns(self, call: Call) -> Response:
        return self._list(call, self._vcn())

    async def get_vcn(self, call: Call) -> Response:
        return shown(call, self._vcn())

    async def list_subnets(self, call: Call) -> Response:
        return self._list(call, self._subnet())

    async def get_subnet(self, call: Call) -> Response:
        return shown(call, self._subnet())

    async def list_private_ips(self, call: Call) -> Response:
        """Return the addresses of mount targets: nodes use this machine's, which are no resources."""
        if "subnetId" not in call.query and "vnicId" not in call.query:
            raise missing("subnetId or vnicId")
        return _page(call, matching(call, self._private_ips(), PRIVATE_IP_FILTERS))

    async def get_private_ip(self, call: Call) -> Response:
        for body in self._private_ips():
            if body["id"] == call.params["id"]:
                return answer(body)
        raise not_found()

    def resources(self) -> Iterator[FoundResource]:
        for kind, body in (("Vcn", self._vcn()), ("Subnet", self._subnet())):
            yield FoundResource(
                kind=kind,
                id=body["id"],
                compartment_id=body["compartmentId"],
                name=body["displayName"],
                time_created=body["timeCreated"],
                state="AVAILABLE",
            )

    def _private_ips(self) -> Iterator[dict[str, Any]]:
        for ocid, address in self._file_systems.addresses().items():
            yield {
                "id": ocid,
                "ipAddress": address,
                "displayName": address,
                "compartmentId": self._ids.compartment_id,
                "subnetId": self._ids.subnet_id,
                "vnicId": derived_ocid("vnic", ocid),
                "isPrimary": True,
                "availabilityDomain": availability_domain(self._ids.region),
                "timeCreated": self._time_created,
                "freeformTags": {},
                "definedTags": {},
            }

    def _list(self, call: Call, body: dict[str, Any]) -> Response:
        self._identity.compartment_in(call)
        return _page(call, matching(call, [body], FILTERS))

    def _common(self) -> dict[str, Any]:
        common = fields_of_all(self._ids.compartment_id, "AVAILABLE", self._time_created)
        return {**common, "cidrBlock": CIDR}

    def _vcn(self) -> dict[str, Any]:
        return {**self._common(), "id": self._ids.vcn_id, "cidrBlocks": [CIDR], "dnsLabel": "ocidist"}

    def _subnet(self) -> dict[str, Any]:
        return {
            **self._common(),
            "id": self._ids.subnet_id,
            "vcnId": self._ids.vcn_id,
            "availabilityDomain": availability_domain(self._ids.region),
            "prohibitPublicIpOnVnic": True,
            "routeTableId": f"ocid1.routetable.oc1.iad.{self._ids.vcn_id[-20:]}",
            "virtualRouterIp": "127.0.0.1",
            "virtualRouterMac": "00:00:17:00:00:01",
        }


def _page(call: Call, bodies: list[dict[str, Any]]) -> Response:
    chosen, headers = page(call, bodies, lambda each: (each["timeCreated"], each["id"]), default="DESC")
    return answer(chosen, headers=headers)
