"""Identity: the tenancy, its one region and its compartments. There are no policies: every signer may do everything."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, invalid, not_found
from airflow_provider_ocidist.emulator.fields import require
from airflow_provider_ocidist.emulator.installation import REGION_KEY, new_ocid
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import (
    Call,
    Route,
    answer,
    check_if_match,
    new_etag,
    now,
    page,
)

BASE = "/20160918"
TENANCY_NAME = "ocidist-emulator"
REGIONS = {
    "AMS": "eu-amsterdam-1",
    "BOM": "ap-mumbai-1",
    "FRA": "eu-frankfurt-1",
    "GRU": "sa-saopaulo-1",
    "IAD": "us-ashburn-1",
    "LHR": "uk-london-1",
    "NRT": "ap-tokyo-1",
    "PHX": "us-phoenix-1",
    "SYD": "ap-sydney-1",
    "YYZ": "ca-toronto-1",
    "ZRH": "eu-zurich-1",
}
"""Regions that the list of all shows; the tenancy is subscribed to one."""
FAULT_DOMAINS = ("FAULT-DOMAIN-1", "FAULT-DOMAIN-2", "FAULT-DOMAIN-3")
NAME = re.compile(r"[\w.-]{1,100}", re.ASCII)
ACCESS_LEVELS = ("ANY", "ACCESSIBLE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compartment:
    """A compartment, as stored; the tenancy itself is not."""

    id: str
    compartment_id: str
    name: str
    description: str = ""
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    time_created: str = field(default_factory=now)
    etag: str = field(default_factory=new_etag)


class Identity:
    """Answers for tenancy and regions; other services ask it whether a compartment or subnet exists."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        self.tenancy_id = context.ids.tenancy_id
        self._root = Compartment(id=self.tenancy_id, compartment_id="", name=TENANCY_NAME)
        self._all: Table[Compartment] = Table(context.store, "compartment", Compartment)
        self._seed()

    def _seed(self) -> None:
        if self._all.get(self._ids.compartment_id) is None:
            first = Compartment(id=self._ids.compartment_id, compartment_id=self.tenancy_id, name="ocidist")
            self._all.put(first.id, first)

    def routes(self) -> list[Route]:
        tenancy, compartment = f"{BASE}/tenancies/{{id}}", f"{BASE}/compartments/{{id}}"
        return [
            Route("GET", f"{BASE}/regions", self.list_all_regions),
            Route("GET", tenancy, self.get_tenancy),
            Route("GET", f"{tenancy}/regionSubscriptions", self.list_regions),
            Route("GET", f"{BASE}/availabilityDomains", self.list_domains),
            Route("GET", f"{BASE}/faultDomains", self.list_fault_domains),
            Route("GET", f"{BASE}/compartments", self.list_compartments),
            Route("POST", f"{BASE}/compartments", self.create_compartment),
            Route("GET", compartment, self.get_compartment),
            Route("PUT", compartment, self.update_compartment),
        ]

    def check_compartment(self, compartment_id: str) -> None:
        """Raise 404 unless the compartment (or tenancy) exists."""
        if compartment_id != self.tenancy_id and self._all.get(compartment_id) is None:
            raise not_found()

    def compartment_in(self, call: Call) -> str:
        """Return the compartment that a list is asked for. Raises 404 where there is none, 400 without a name."""
        compartment_id = call.required_query("compartmentId")
        self.check_compartment(compartment_id)
        return compartment_id

    def check_subnet(self, subnet_id: str) -> None:
        if subnet_id != self._ids.subnet_id:
            raise not_found()

    def subtree(self, compartment_id: str) -> set[str]:
        """Return the compartments inside one, at any depth."""
        found: set[str] = set()
        level = {compartment_id}
        while level:
            level = {each.id for each in self._all.values() if each.compartment_id in level}
            found |= level
        return found

    def resources(self) -> Iterator[FoundResource]:
        """Yield what Resource Search finds of this service."""
        for each in self._all.values():
            yield FoundResource(
                kind="Compartment",
                id=each.id,
                compartment_id=each.compartment_id,
                name=each.name,
                time_created=each.time_created,
                freeform_tags=each.freeform_tags,
            )

    def reset(self) -> None:
        self._all.clear()
        self._seed()

    def _check_tenancy(self, call: Call) -> None:
        if call.params["id"] != self.tenancy_id:
            raise not_found()

    async def list_all_regions(self, _: Call) -> Response:
        return answer([{"key": key, "name": name} for key, name in REGIONS.items()])

    async def get_tenancy(self, call: Call) -> Response:
        self._check_tenancy(call)
        return answer(
            {
                "id": self.tenancy_id,
                "name": TENANCY_NAME,
                "description": "Local emulator",
                "homeRegionKey": REGION_KEY.upper(),
                "freeformTags": {},
                "definedTags": {},
            }
        )

    async def list_regions(self, call: Call) -> Response:
        self._check_tenancy(call)
        region = {"regionKey": REGION_KEY.upper(), "regionName": self._ids.region, "status": "READY"}
        return answer([{**region, "isHomeRegion": True}])

    async def list_domains(self, call: Call) -> Response:
        compartment_id = self.compartment_in(call)
        domain = {
            "name": availability_domain(self._ids.region),
            "id": "ocid1.availabilitydomain.oc1..local",
            "compartmentId": compartment_id,
        }
        return answer([domain])

    async def list_fault_domains(self, call: Call) -> Response:
        compartment_id = self.compartment_in(call)
        domain = call.required_query("availabilityDomain")
        if domain != availability_domain(self._ids.region):
            raise not_found()
        bodies = [
            {
                "name": name,
                "id": f"ocid1.faultdomain.oc1..{name.lower()}",
                "compartmentId": compartment_id,
                "availabilityDomain": domain,
            }
            for name in FAULT_DOMAINS
        ]
        return answer(bodies)

    async def list_compartments(self, call: Call) -> Response:
        """`accessLevel` changes nothing: without policies all compartments are accessible."""
        parent = self.compartment_in(call)
        if call.query.get("accessLevel", "ANY") not in ACCESS_LEVELS:
            raise invalid(f"accessLevel must be one of {', '.join(ACCESS_LEVELS)}.")
        in_subtree = call.query.get("compartmentIdInSubtree") == "true"
        if in_subtree and parent != self.tenancy_id:
            raise invalid("compartmentIdInSubtree is for the tenancy only.")
        inside = self.subtree(parent)
        name, state = call.query.get("name"), call.query.get("lifecycleState", "ACTIVE")
        found = [
            each
            for each in self._all.values()
            if each.id in inside
            and (in_subtree or each.compartment_id == parent)
            and name in (None, each.name)
            and state == "ACTIVE"
        ]
        by_name = call.query.get("sortBy", "NAME") == "NAME"
        chosen, headers = page(
            call,
            found,
            lambda each: (each.name.lower() if by_name else each.time_created, each.id),
            default="ASC" if by_name else "DESC",
        )
        return answer([_body(each) for each in chosen], headers=headers)

    async def create_compartment(self, call: Call) -> Response:
        details = await call.json()
        require(details, "compartmentId", "name", "description")
        self.check_compartment(details["compartmentId"])
        self._check_name(details["compartmentId"], details["name"])
        compartment = Compartment(
            id=new_ocid("compartment"),
            compartment_id=details["compartmentId"],
            name=details["name"],
            description=details["description"],
            freeform_tags=details.get("freeformTags") or {},
        )
        self._all.put(compartment.id, compartment)
        return answer(_body(compartment), etag=compartment.etag)

    def _check_name(self, parent: str, name: Any) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise invalid("name must have 1 to 100 letters, digits, periods, hyphens or underscores.")
        for each in self._all.values():
            if each.compartment_id == parent and each.name.lower() == name.lower():
                raise ApiError(409, "CompartmentAlreadyExists", f"There is a compartment {name!r} already.")

    def _find(self, call: Call) -> Compartment:
        compartment = self._all.get(call.params["id"])
        if compartment is None:
            raise not_found()
        return compartment

    async def get_compartment(self, call: Call) -> Response:
        if call.params["id"] == self.tenancy_id:
            return answer({**_body(self._root), "compartmentId": None}, etag=self._root.etag)
        compartment = self._find(call)
        return answer(_body(compartment), etag=compartment.etag)

    async def update_compartment(self, call: Call) -> Response:
        details = await call.json()
        compartment = self._find(call)
        check_if_match(call, compartment.etag)
        name = details.get("name") or compartment.name
        if name != compartment.name:
            self._check_name(compartment.compartment_id, name)
        changed = replace(
            compartment,
            name=name,
            description=details.get("description") or compartment.description,
            freeform_tags=details.get("freeformTags") or compartment.freeform_tags,
            etag=new_etag(),
        )
        self._all.put(changed.id, changed)
        return answer(_body(changed), etag=changed.etag)


def availability_domain(region: str) -> str:
    return f"Uocm:{region.upper()}-AD-1"


def _body(compartment: Compartment) -> dict[str, Any]:
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
