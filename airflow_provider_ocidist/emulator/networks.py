"""Core, as far as clients look at networks: the one VCN and its one subnet."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import not_found
from airflow_provider_ocidist.emulator.identity import BASE, Identity, availability_domain
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page

CIDR = "127.0.0.0/16"
"""Where the nodes' addresses lie, so that code which looks for its address inside the subnet finds one."""
FILTERS = ("displayName", "lifecycleState", "vcnId")


class Networks:
    """Answers /vcns and /subnets."""

    def __init__(self, context: Context, identity: Identity) -> None:
        self._ids = context.ids
        self._identity = identity
        self._time_created = now()

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BASE}/vcns", self.list_vcns),
            Route("GET", f"{BASE}/vcns/{{id}}", self.get_vcn),
            Route("GET", f"{BASE}/subnets", self.list_subnets),
            Route("GET", f"{BASE}/subnets/{{id}}", self.get_subnet),
        ]

    async def list_vcns(self, call: Call) -> Response:
        return self._list(call, self._vcn())

    async def get_vcn(self, call: Call) -> Response:
        return _get(call, self._vcn())

    async def list_subnets(self, call: Call) -> Response:
        return self._list(call, self._subnet())

    async def get_subnet(self, call: Call) -> Response:
        return _get(call, self._subnet())

    def _list(self, call: Call, body: dict[str, Any]) -> Response:
        compartment_id = call.required_query("compartmentId")
        self._identity.check_compartment(compartment_id)
        wanted = {"compartmentId": compartment_id}
        wanted |= {name: call.query[name] for name in FILTERS if name in call.query}
        found = [body] if all(body.get(name) == value for name, value in wanted.items()) else []
        chosen, headers = page(call, found, lambda each: (each["timeCreated"], each["id"]), default="DESC")
        return answer(chosen, headers=headers)

    def _common(self) -> dict[str, Any]:
        return {
            "compartmentId": self._ids.compartment_id,
            "displayName": "ocidist",
            "lifecycleState": "AVAILABLE",
            "timeCreated": self._time_created,
            "cidrBlock": CIDR,
            "freeformTags": {},
            "definedTags": {},
        }

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


def _get(call: Call, body: dict[str, Any]) -> Response:
    if call.params["id"] != body["id"]:
        raise not_found()
    return answer(body)
