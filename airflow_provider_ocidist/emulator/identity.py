"""Identity and networks: the tenancy, its compartments and its one subnet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import missing, not_found
from airflow_provider_ocidist.emulator.installation import REGION_KEY, new_ocid
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page

BASE = "/20160918"
SUBNET_CIDR = "127.0.0.0/16"
"""Where the nodes' addresses lie, so that code which looks for its address inside the subnet finds one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compartment:
    """A compartment that was created after the start."""

    id: str
    compartment_id: str
    name: str
    description: str = ""
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    time_created: str = field(default_factory=now)


class Identity:
    """Answers who and where; other services ask it whether a compartment or subnet exists."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        self._created: Table[Compartment] = Table(context.store, "compartment", Compartment)
        self._first = Compartment(
            id=self._ids.compartment_id, compartment_id=self._ids.tenancy_id, name="ocidist"
        )

    def routes(self) -> list[Route]:
        return [
            Route("GET", f"{BASE}/tenancies/{{id}}", self.get_tenancy),
            Route("GET", f"{BASE}/tenancies/{{id}}/regionSubscriptions", self.list_regions),
            Route("GET", f"{BASE}/availabilityDomains", self.list_domains),
            Route("GET", f"{BASE}/compartments", self.list_compartments),
            Route("POST", f"{BASE}/compartments", self.create_compartment),
            Route("GET", f"{BASE}/compartments/{{id}}", self.get_compartment),
            Route("GET", f"{BASE}/subnets/{{id}}", self.get_subnet),
        ]

    def check_compartment(self, compartment_id: str) -> None:
        """Raise 404 unless the compartment (or tenancy) exists."""
        if compartment_id != self._ids.tenancy_id and compartment_id not in self._compartments():
            raise not_found()

    def check_subnet(self, subnet_id: str) -> None:
        if subnet_id != self._ids.subnet_id:
            raise not_found()

    def reset(self) -> None:
        self._created.clear()

    def _compartments(self) -> dict[str, Compartment]:
        return {self._first.id: self._first, **dict(self._created.items())}

    async def get_tenancy(self, call: Call) -> Response:
        if call.params["id"] != self._ids.tenancy_id:
            raise not_found()
        return answer(
            {
                "id": self._ids.tenancy_id,
                "name": "ocidist-emulator",
                "description": "Local emulator",
                "homeRegionKey": REGION_KEY.upper(),
                "freeformTags": {},
                "definedTags": {},
            }
        )

    async def list_regions(self, call: Call) -> Response:
        if call.params["id"] != self._ids.tenancy_id:
            raise not_found()
        region = {"regionKey": REGION_KEY.upper(), "regionName": self._ids.region, "status": "READY"}
        return answer([{**region, "isHomeRegion": True}])

    async def list_domains(self, call: Call) -> Response:
        compartment_id = call.required_query("compartmentId")
        self.check_compartment(compartment_id)
        domain = {
            "name": self._domain(),
            "id": "ocid1.availabilitydomain.oc1..local",
            "compartmentId": compartment_id,
        }
        return answer([domain])

    def _domain(self) -> str:
        return f"Uocm:{self._ids.region.upper()}-AD-1"

    async def list_compartments(self, call: Call) -> Response:
        parent = call.required_query("compartmentId")
        self.check_compartment(parent)
        found = [each for each in self._compartments().values() if each.compartment_id == parent]
        chosen, headers = page(call, found, lambda each: (each.name, each.id), default="ASC")
        return answer([_compartment_body(each) for each in chosen], headers=headers)

    async def create_compartment(self, call: Call) -> Response:
        details = await call.json()
        for name in ("compartmentId", "name", "description"):
            if not details.get(name):
                raise missing(name)
        self.check_compartment(details["compartmentId"])
        compartment = Compartment(
            id=new_ocid("compartment"),
            compartment_id=details["compartmentId"],
            name=details["name"],
            description=details["description"],
            freeform_tags=details.get("freeformTags") or {},
        )
        self._created.put(compartment.id, compartment)
        return answer(_compartment_body(compartment))

    async def get_compartment(self, call: Call) -> Response:
        compartment = self._compartments().get(call.params["id"])
        if call.params["id"] == self._ids.tenancy_id:
            compartment = Compartment(id=self._ids.tenancy_id, compartment_id="", name="ocidist-emulator")
        if compartment is None:
            raise not_found()
        return answer(_compartment_body(compartment))

    async def get_subnet(self, call: Call) -> Response:
        self.check_subnet(call.params["id"])
        return answer(
            {
                "id": self._ids.subnet_id,
                "compartmentId": self._ids.compartment_id,
                "vcnId": self._ids.vcn_id,
                "displayName": "ocidist",
                "cidrBlock": SUBNET_CIDR,
                "availabilityDomain": self._domain(),
                "lifecycleState": "AVAILABLE",
                "timeCreated": self._first.time_created,
            }
        )


def _compartment_body(compartment: Compartment) -> dict[str, Any]:
    return {
        "id": compartment.id,
        "compartmentId": compartment.compartment_id,
        "name": compartment.name,
        "description": compartment.description,
        "timeCreated": compartment.time_created,
        "lifecycleState": "ACTIVE",
        "isAccessible": True,
        "freeformTags": compartment.freeform_tags,
        "definedTags": {},
    }
