"""What the service's answers mean for a job, and what to do about it. Pure."""

from __future__ import annotations

import difflib
import ipaddress
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.launchers.base import MASTER_PORT

INSPECT_COMPARTMENTS = "allow group <yours> to inspect compartments in tenancy"
FIXES = {
    "compartment": f"correct compartment_id, or: {INSPECT_COMPARTMENTS}",
    "project": "correct project_id, or: allow group <yours> to manage data-science-family in compartment <it>",
    "jobs": "allow group <yours> to manage data-science-family in compartment <it>",
    "shape": "allow group <yours> to use data-science-family in compartment <it>",
    "subnet": "correct subnet_id, or: allow group <yours> and service datascience to use virtual-network-family "
    "in compartment <it>",
    "log group": "correct log_group_id, or: allow group <yours> to use log-groups in compartment <it>",
    "log": "correct log_id: it must lie in the log group",
}
IMAGE = re.compile(r"(?P<region>[a-z0-9-]+)\.ocir\.io/(?P<namespace>[^/]+)/(?P<name>[^:@]+)(?P<tag>[:@].+)?")
OTHER_REGISTRY = re.compile(r"(?P<host>[^/]+\.[^/]+|localhost)(:\d+)?/")
ALL_PROTOCOLS, TCP = "all", "6"


def fix_of(subject: str, error: OcidistError) -> str:
    """Return what to do where a check could not even be made."""
    status = getattr(error, "status_code", None) or getattr(error.__cause__, "status_code", None)
    if subject == "sign-in" or status == 401:
        return "correct the credentials: `oci setup config`, or the connection's auth fields (docs/connection.md)"
    if status == 404:
        return FIXES.get(subject, "correct the OCID, or allow it by policy")
    return "try again; if it stays so, check region, endpoint and network"


# where


def compartment_finding(found: Any) -> Finding:
    if found.lifecycle_state != "ACTIVE":
        return Finding.failed(
            "compartment", f"{found.name} is {found.lifecycle_state}", "name one that is ACTIVE"
        )
    return Finding.passed("compartment", found.name)


def unseen_compartment_finding(error: OcidistError) -> Finding:
    """Return what a compartment means in which these credentials may list jobs, and which they may not read."""
    message = f"there is one, since jobs can be listed in it; a training needs no more: {error}"
    return Finding.warned("compartment", message, INSPECT_COMPARTMENTS)


def project_finding(found: Any, compartment_id: str | None) -> Finding:
    if found.lifecycle_state != "ACTIVE":
        message = f"{found.display_name} is {found.lifecycle_state}"
        return Finding.failed("project", message, "name one that is ACTIVE")
    if found.compartment_id != compartment_id:
        message = f"{found.display_name} lies in another compartment"
        return Finding.warned("project", message, "that may be meant so; else name the job's compartment")
    return Finding.passed("project", found.display_name)


def log_finding(log: Any) -> Finding:
    if log.lifecycle_state != "ACTIVE" or log.is_enabled is False:
        return Finding.failed("log", f"{log.display_name} takes no lines", "enable it, or leave log_id out")
    return Finding.passed("log", log.display_name)


# network


def room_finding(subnet: Any, nodes: int) -> Finding:
    # The service keeps three addresses of each subnet for itself (Oracle's documentation, subnets overview).
    room = ipaddress.ip_network(subnet.cidr_block).num_addresses - 3
    if room < nodes:
        message = f"{subnet.cidr_block} has room for {room} nodes of {nodes}"
        return Finding.failed("subnet", message, "name a larger one")
    return Finding.passed("subnet", f"{subnet.display_name}, {subnet.cidr_block}")


def traffic_finding(cidr: str, lists: Sequence[Any]) -> Finding:
    """Return whether a subnet's security lists let the nodes talk to one another."""
    if not lists:
        return Finding.warned(
            "subnet traffic",
            "the subnet has no security lists, so nothing can be said of traffic within it",
            "see that its network security groups let all TCP pass within the subnet",
        )
    if any(lets_nodes_talk(rule, cidr) for each in lists for rule in each.ingress_security_rules):
        return Finding.passed("subnet traffic", "a security list lets the nodes talk to one another")
    return Finding.failed(
        "subnet traffic",
        f"no security list lets all TCP pass within {cidr}",
        f"add an ingress rule: source {cidr}, all TCP ports (the rendezvous is at {MASTER_PORT})",
    )


def lets_nodes_talk(rule: Any, cidr: str) -> bool:
    """Return whether one ingress rule lets TCP on every port in from a whole subnet: NCCL and Gloo take any port."""
    if str(rule.protocol) not in (ALL_PROTOCOLS, TCP) or rule.source_type not in (None, "CIDR_BLOCK"):
        return False
    try:
        covers = ipaddress.ip_network(cidr).subnet_of(ipaddress.ip_network(rule.source))  # type: ignore[arg-type]  # IPv4 within IPv6 is a TypeError
    except (ValueError, TypeError):
        return False
    ports = rule.tcp_options and rule.tcp_options.destination_port_range
    return covers and (ports is None or (ports.min <= 1024 and ports.max >= 65535))


# machine


def shape_finding(
    name: str, ocpus: float | None, memory_gb: float | None, shapes: Mapping[str, Any]
) -> Finding:
    """Return whether the service offers a shape of this size."""
    shape = shapes.get(name)
    if shape is None:
        near = ", ".join(sorted(shapes, key=lambda other: -_alike(name, other))[:3])
        return Finding.failed("shape", f"{name} is not offered here", f"take one that is, as {near}")
    for asked, most, unit in ((ocpus, shape.core_count, "OCPUs"), (memory_gb, shape.memory_in_gbs, "GB")):
        if asked is not None and most is not None and asked > most:
            message = f"{name} has at most {most:g} {unit}"
            return Finding.failed("shape", message, f"ask for {most:g} {unit} or fewer")
    return Finding.passed("shape", f"{name} is offered")


def _alike(name: str, other: str) -> int:
    return len(posixpath.commonprefix([name.casefold(), other.casefold()]))


def limit_fits(limit: str, shape: str) -> bool:
    """Return whether a limit's name holds the family of a shape: `ds-gpu-a10-count` for `VM.GPU.A10.1`."""
    family = [part.casefold() for part in re.split(r"[.\-]", shape)][1:3]
    parts = limit.casefold().split("-")
    return bool(family) and all(part in parts for part in family)


def quota_finding(left: Mapping[str, float], shape: str | None, nodes: int) -> Finding:
    """Return whether what is left of the limits that fit a shape is enough."""
    manual = by_hand(shape, nodes)
    if not left:
        return Finding.warned("quota", f"no limit is named after {shape}", manual)
    shown = ", ".join(f"{name}: {count:g} left" for name, count in left.items())
    if any(count < nodes for count in left.values()):
        fix = f"ask for an increase in the console, or take fewer nodes; {manual}"
        return Finding.warned("quota", shown, fix)
    return Finding.passed("quota", shown)


def by_hand(shape: str | None, nodes: int) -> str:
    """Return where a person sees what is left of the limits."""
    return f"see Limits, Quotas and Usage in the console: {nodes} x {shape}"


def image_finding(image: str, region: str | None) -> Finding:
    """Return whether an image's name is one that the service can pull."""
    from oci.regions import REGIONS_SHORT_NAMES

    found = IMAGE.fullmatch(image)
    if found is None:
        where = OTHER_REGISTRY.match(image)
        what = f"it lies at {where['host']}" if where else "its name begins with no registry"
        fix = "push it to <region key>.ocir.io/<namespace>/<name>:<tag>: the service pulls from there only"
        return Finding.failed("image", f"{image}: {what}", fix)
    if not found["tag"]:
        fix = "name a tag or a digest, so that it stays the same"
        return Finding.warned("image", f"{image} has no tag", fix)
    home = REGIONS_SHORT_NAMES.get(found["region"], found["region"])
    if region is not None and home != region:
        fix = "push it to the region of the job: pulling across regions is slow, or refused"
        return Finding.warned("image", f"{image} lies in {home}, the job runs in {region}", fix)
    return Finding.passed("image", f"{image} (only a run can show that it exists)")


def conda_finding(slug: str, known: Collection[str] | None) -> Finding:
    """Return whether a service environment is among those that Oracle lists; None: the list cannot be read."""
    compare = "compare it with the environment explorer in the console"
    if known is None:
        return Finding.warned("conda", f"{slug}: Oracle's list of environments cannot be read", compare)
    if slug not in known:
        near = difflib.get_close_matches(slug, known, n=1)
        fix = f"take {near[0]}" if near else compare
        return Finding.failed("conda", f"there is no service environment {slug}", fix)
    return Finding.passed("conda", f"service environment {slug}")
