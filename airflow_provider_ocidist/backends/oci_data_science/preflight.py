"""Preflight: what the service says beforehand of a job's place, machine, data and rights, each with the fix."""

from __future__ import annotations

import difflib
import ipaddress
import json
import posixpath
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_ocidist import oci_clients
from airflow_provider_ocidist.backends.base import Finding, Mark
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.backends.oci_data_science.options import Defaults, OciDataScienceOptions
from airflow_provider_ocidist.backends.oci_data_science.plans import resolved
from airflow_provider_ocidist.errors import BackendError, OcidistError, StorageError
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.launchers.base import MASTER_PORT
from airflow_provider_ocidist.oci_clients import OciAccess, oci_errors
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores import open_store

PATIENCE = 20.0
"""Seconds that all checks together may take; what has not answered then counts as failed."""
ATTEMPTS = 2
SERVICE_CONDA = "oci://service-conda-packs@id19sfcrra6z/service_pack"
"""Where Oracle lists the service conda environments (Oracle ADS: `ads.config.CONDA_BUCKET_NS`, `env_info`)."""
IMAGE = re.compile(r"(?P<region>[a-z0-9-]+)\.ocir\.io/(?P<namespace>[^/]+)/(?P<name>[^:@]+)(?P<tag>[:@].+)?")
OTHER_REGISTRY = re.compile(r"(?P<host>[^/]+\.[^/]+|localhost)(:\d+)?/")
ALL_PROTOCOLS, TCP = "all", "6"


@dataclass(frozen=True, slots=True)
class Target:
    """A job and the place that it is for, everything filled in."""

    job: TrainingJob
    options: OciDataScienceOptions
    access: OciAccess

    def client(self, service: oci_clients.Service) -> Any:
        return oci_clients.client(self.access, service)


Check = Callable[[Target], Iterable[Finding]]


def preflight(job: TrainingJob, access: OciAccess, defaults: Defaults) -> list[Finding]:
    """Return what every check has found, in the order of the checks; without a sign-in only that.

    Raises JobFileError when job and connection together do not say enough.
    """
    job, options = resolved(job, defaults)
    target = Target(job, options, replace(access, max_attempts=ATTEMPTS))
    signed_in = _findings("sign-in", _sign_in, target)
    if any(finding.mark is Mark.FAIL for finding in signed_in):
        return signed_in
    return [*signed_in, *_side_by_side(CHECKS, target)]


def _side_by_side(checks: Sequence[tuple[str, Check]], target: Target) -> Iterator[Finding]:
    found: dict[str, list[Finding]] = {}

    def run(subject: str, check: Check) -> None:
        found[subject] = _findings(subject, check, target)

    # Daemons: what hangs must not keep the command from ending.
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in checks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for subject, _ in checks:
        late = _failed(subject, f"no answer within {PATIENCE:g} s", "check region, endpoint and network")
        yield from found.get(subject, [late])


def _findings(subject: str, check: Check, target: Target) -> list[Finding]:
    try:
        return list(check(target))
    except OcidistError as error:
        return [_failed(subject, str(error), _fix_of(subject, error))]
    except Exception as error:  # noqa: BLE001 - an answer that nobody expected must not hide the other findings
        return [
            _failed(subject, f"{type(error).__name__}: {error}", "look at it by hand; the check has failed")
        ]


def _fix_of(subject: str, error: OcidistError) -> str:
    """Return what to do where a check could not even be made."""
    status = getattr(error, "status_code", None) or getattr(error.__cause__, "status_code", None)
    if subject == "sign-in" or status == 401:
        return "correct the credentials: `oci setup config`, or the connection's auth fields (docs/connection.md)"
    if status == 404:
        return FIXES.get(subject, "correct the OCID, or allow it by policy")
    return "try again; if it stays so, check region, endpoint and network"


FIXES = {
    "compartment": "correct compartment_id, or: allow group <yours> to inspect compartments in tenancy",
    "project": "correct project_id, or: allow group <yours> to manage data-science-family in compartment <it>",
    "jobs": "allow group <yours> to manage data-science-family in compartment <it>",
    "shape": "allow group <yours> to use data-science-family in compartment <it>",
    "subnet": "correct subnet_id, or: allow group <yours> and service datascience to use virtual-network-family "
    "in compartment <it>",
    "log group": "correct log_group_id, or: allow group <yours> to use log-groups in compartment <it>",
    "log": "correct log_id: it must lie in the log group",
}
WRITE_POLICY = (
    "create the bucket, or: allow group <yours>, and the dynamic group of job runs, to manage objects in "
    "compartment <it> where target.bucket.name='<it>'"
)
READ_POLICY = (
    "correct the URI, or: allow group <yours>, and the dynamic group of job runs, to read objects in "
    "compartment <it>"
)


# who


def _sign_in(target: Target) -> Iterator[Finding]:
    client = target.client("object_storage")
    with oci_errors("signing in"):
        namespace = client.get_namespace().data
    yield Finding("sign-in", Mark.PASS, f"{_principal(target.access)}, namespace {namespace}")


def _principal(access: OciAccess) -> str:
    """Return who signs, as far as this side knows."""
    if access.auth == "api_key":
        return f"API key of {access.user}"
    if access.auth in ("config_file", "session_token"):
        config, signer = oci_clients.credentials(access)
        kind = "session token" if "Token" in type(signer).__name__ else "API key"
        return f"{kind} of {config.get('user', 'a user')} (profile {access.profile})"
    return access.auth.replace("_", " ")


# where


def _compartment(target: Target) -> Iterator[Finding]:
    client = target.client("identity")
    with oci_errors("reading the compartment"):
        found = client.get_compartment(target.options.compartment_id).data
    if found.lifecycle_state != "ACTIVE":
        yield _failed("compartment", f"{found.name} is {found.lifecycle_state}", "name one that is ACTIVE")
    else:
        yield Finding("compartment", Mark.PASS, found.name)


def _project(target: Target) -> Iterator[Finding]:
    client = target.client("data_science")
    with oci_errors("reading the project"):
        found = client.get_project(target.options.project_id).data
    if found.lifecycle_state != "ACTIVE":
        yield _failed(
            "project", f"{found.display_name} is {found.lifecycle_state}", "name one that is ACTIVE"
        )
    elif found.compartment_id != target.options.compartment_id:
        yield Finding(
            "project",
            Mark.WARN,
            f"{found.display_name} lies in another compartment",
            "that may be meant so; else name the job's compartment",
        )
    else:
        yield Finding("project", Mark.PASS, found.display_name)


def _jobs(target: Target) -> Iterator[Finding]:
    client = target.client("data_science")
    with oci_errors("listing jobs"):
        client.list_jobs(target.options.compartment_id, limit=1)
    yield Finding("jobs", Mark.PASS, "these credentials may list jobs here")


# network


def _subnet(target: Target) -> Iterator[Finding]:
    if target.options.subnet_id is None:
        yield Finding("subnet", Mark.PASS, "none is asked for: the service makes the network")
        return
    client = target.client("network")
    with oci_errors("reading the subnet"):
        subnet = client.get_subnet(target.options.subnet_id).data
    if subnet.lifecycle_state != "AVAILABLE":
        yield _failed(
            "subnet", f"{subnet.display_name} is {subnet.lifecycle_state}", "name one that is AVAILABLE"
        )
        return
    yield from _room(subnet, target.job.nodes)
    if target.job.nodes > 1:
        yield _traffic(client, subnet)


def _room(subnet: Any, nodes: int) -> Iterator[Finding]:
    # The service keeps three addresses of each subnet for itself (Oracle's documentation, subnets overview).
    room = ipaddress.ip_network(subnet.cidr_block).num_addresses - 3
    if room < nodes:
        yield _failed(
            "subnet", f"{subnet.cidr_block} has room for {room} nodes of {nodes}", "name a larger one"
        )
    else:
        yield Finding("subnet", Mark.PASS, f"{subnet.display_name}, {subnet.cidr_block}")


def _traffic(client: Any, subnet: Any) -> Finding:
    """Return whether the security lists let the nodes talk to one another."""
    rules: list[Any] = []
    for list_id in subnet.security_list_ids or ():
        with oci_errors("reading the subnet's security lists"):
            rules += client.get_security_list(list_id).data.ingress_security_rules
    if not subnet.security_list_ids:
        return Finding(
            "subnet traffic",
            Mark.WARN,
            "the subnet has no security lists, so nothing can be said of traffic within it",
            "see that its network security groups let all TCP pass within the subnet",
        )
    if any(lets_nodes_talk(rule, subnet.cidr_block) for rule in rules):
        return Finding("subnet traffic", Mark.PASS, "a security list lets the nodes talk to one another")
    return _failed(
        "subnet traffic",
        f"no security list lets all TCP pass within {subnet.cidr_block}",
        f"add an ingress rule: source {subnet.cidr_block}, all TCP ports (the rendezvous is at {MASTER_PORT})",
    )


def lets_nodes_talk(rule: Any, cidr: str) -> bool:
    """Return whether one ingress rule lets TCP on every port in from a whole subnet: NCCL and Gloo take any port."""
    if str(rule.protocol) not in (ALL_PROTOCOLS, TCP) or rule.source_type not in (None, "CIDR_BLOCK"):
        return False
    try:
        covers = ipaddress.ip_network(cidr).subnet_of(ipaddress.ip_network(rule.source))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return False
    ports = rule.tcp_options and rule.tcp_options.destination_port_range
    return covers and (ports is None or (ports.min <= 1024 and ports.max >= 65535))


# machine


def _shape(target: Target) -> Iterator[Finding]:
    options, client = target.options, target.client("data_science")
    with oci_errors("listing the shapes"):
        shapes = {item.name: item for item in pages(client.list_job_shapes, options.compartment_id)}
    yield shape_finding(str(options.shape), options.ocpus, options.memory_gb, shapes)


def shape_finding(name: str, ocpus: float | None, memory_gb: float | None, shapes: dict[str, Any]) -> Finding:
    """Return whether the service offers a shape of this size."""
    shape = shapes.get(name)
    if shape is None:
        near = ", ".join(sorted(shapes, key=lambda other: -_alike(name, other))[:3])
        return _failed("shape", f"{name} is not offered here", f"take one that is, as {near}")
    for asked, most, unit in ((ocpus, shape.core_count, "OCPUs"), (memory_gb, shape.memory_in_gbs, "GB")):
        if asked is not None and most is not None and asked > most:
            return _failed(
                "shape", f"{name} has at most {most:g} {unit}", f"ask for {most:g} {unit} or fewer"
            )
    return Finding("shape", Mark.PASS, f"{name} is offered")


def _alike(name: str, other: str) -> int:
    return len(posixpath.commonprefix([name.casefold(), other.casefold()]))


def _quota(target: Target) -> Iterator[Finding]:
    """Say what is left of the limits whose names fit the shape; the service does not say which limit counts."""
    options = target.options
    manual = f"see Limits, Quotas and Usage in the console: {target.job.nodes} x {options.shape}"
    try:
        client = target.client("limits")
        with oci_errors("reading the limits"):
            tenancy = _tenancy(target.access)
            found = pages(client.list_limit_definitions, tenancy, service_name="data-science")
            names = [item.name for item in found if limit_fits(item.name, str(options.shape))]
            left = {name: _left(client, name, tenancy) for name in names}
    except BackendError as error:
        what = "the limits cannot be read here" if error.status_code in (401, 404) else str(error)
        yield Finding(
            "quota", Mark.WARN, what, f"allow group <yours> to inspect limits in tenancy, or {manual}"
        )
        return
    shown = ", ".join(f"{name}: {count:g} left" for name, count in left.items())
    if not left:
        yield Finding("quota", Mark.WARN, f"no limit is named after {options.shape}", manual)
    elif any(count < target.job.nodes for count in left.values()):
        yield Finding(
            "quota", Mark.WARN, shown, f"ask for an increase in the console, or take fewer nodes; {manual}"
        )
    else:
        yield Finding("quota", Mark.PASS, shown)


def _tenancy(access: OciAccess) -> str:
    config, signer = oci_clients.credentials(access)
    return str(config.get("tenancy") or getattr(signer, "tenancy_id", ""))


def _left(client: Any, name: str, tenancy: str) -> float:
    answer = client.get_resource_availability("data-science", name, tenancy).data
    return float(answer.available or 0)


def limit_fits(limit: str, shape: str) -> bool:
    """Return whether a limit's name holds the family of a shape: `ds-gpu-a10-count` for `VM.GPU.A10.1`."""
    family = [part.casefold() for part in re.split(r"[.\-]", shape)][1:3]
    parts = limit.casefold().split("-")
    return bool(family) and all(part in parts for part in family)


def _image(target: Target) -> Iterator[Finding]:
    image = target.job.image
    if image is None:
        return
    region = target.access.region or oci_clients.credentials(target.access)[0].get("region")
    yield image_finding(image, region)


def image_finding(image: str, region: str | None) -> Finding:
    """Return whether an image's name is one that the service can pull."""
    from oci.regions import REGIONS_SHORT_NAMES

    found = IMAGE.fullmatch(image)
    if found is None:
        where = OTHER_REGISTRY.match(image)
        what = f"it lies at {where['host']}" if where else "its name begins with no registry"
        fix = "push it to <region key>.ocir.io/<namespace>/<name>:<tag>: the service pulls from there only"
        return _failed("image", f"{image}: {what}", fix)
    if not found["tag"]:
        return Finding(
            "image", Mark.WARN, f"{image} has no tag", "name a tag or a digest, so that it stays the same"
        )
    home = REGIONS_SHORT_NAMES.get(found["region"], found["region"])
    if region is not None and home != region:
        return Finding(
            "image",
            Mark.WARN,
            f"{image} lies in {home}, the job runs in {region}",
            "push it to the region of the job: pulling across regions is slow, or refused",
        )
    return Finding("image", Mark.PASS, f"{image} (that it is there, only a run can tell)")


def _conda(target: Target) -> Iterator[Finding]:
    uri = target.options.conda_uri
    if uri is not None:
        access = replace(target.access, region=target.options.conda_region or target.access.region)
        place = locations.parse(uri)
        if not open_store(place.parent, access).exists(place.name):
            yield _failed("conda", f"{uri} is not there", "correct backend.conda_uri")
        else:
            yield Finding("conda", Mark.PASS, uri)
    elif target.options.conda_slug is not None:
        yield _service_conda(target.options.conda_slug, target.access)


def _service_conda(slug: str, access: OciAccess) -> Finding:
    by_hand = "compare it with the environment explorer in the console"
    try:
        index = json.loads(open_store(SERVICE_CONDA, access).read("index.json"))
        slugs = {str(pack.get("slug")) for pack in index["service_packs"]}
    except (StorageError, OSError, ValueError, LookupError, AttributeError, TypeError):
        return Finding("conda", Mark.WARN, f"{slug}: Oracle's list of environments cannot be read", by_hand)
    if slug not in slugs:
        near = difflib.get_close_matches(slug, slugs, n=1)
        return _failed(
            "conda", f"there is no service environment {slug}", f"take {near[0]}" if near else by_hand
        )
    return Finding("conda", Mark.PASS, f"service environment {slug}")


# data


def _work_dir(target: Target) -> Iterator[Finding]:
    return _writable("work_dir", str(target.job.work_dir), target.access)


def _checkpoints(target: Target) -> Iterator[Finding]:
    kept = target.job.checkpoints
    if kept is not None and kept.uri is not None:
        yield from _writable("checkpoints", kept.uri, target.access)


def _outputs(target: Target) -> Iterator[Finding]:
    for output in target.job.outputs:
        if "${" not in output.uri:
            yield from _writable("output", output.uri, target.access)


def _writable(subject: str, uri: str, access: OciAccess) -> Iterator[Finding]:
    """Write a small file, read it back and remove it."""
    name, content = f"ocidist-preflight-{secrets.token_hex(8)}", b"ocidist preflight"
    try:
        store = open_store(uri, access)
        store.write(name, content)
        try:
            found = store.read(name)
        finally:
            store.delete(name)
    except (StorageError, OSError) as error:
        yield _failed(subject, str(error), WRITE_POLICY)
        return
    if found != content:
        yield _failed(subject, f"{uri}: what was written is not what is read", "name another place")
    else:
        yield Finding(subject, Mark.PASS, f"{uri} can be written, read and cleaned")


def _inputs(target: Target) -> Iterator[Finding]:
    for source in target.job.inputs:
        place = locations.parse(source.source)
        try:
            there = (
                bool(open_store(place.uri, target.access).list())
                if place.is_folder
                else open_store(place.parent + place.query, target.access).exists(place.name)
            )
        except (StorageError, OSError) as error:
            yield _failed("input", str(error), READ_POLICY)
            continue
        if there:
            yield Finding("input", Mark.PASS, f"{place.uri} is there")
        else:
            yield _failed("input", f"{place.uri}: nothing is there", READ_POLICY)


# logs


def _log_group(target: Target) -> Iterator[Finding]:
    if target.options.log_group_id is None:
        yield Finding(
            "log group",
            Mark.WARN,
            "there is none: no line that the nodes print will be seen, here or in Airflow",
            "set log_group_id in the job or the connection",
        )
        return
    client = target.client("logging")
    with oci_errors("reading the log group"):
        yield Finding(
            "log group", Mark.PASS, client.get_log_group(target.options.log_group_id).data.display_name
        )


def _log(target: Target) -> Iterator[Finding]:
    if target.options.log_id is None or target.options.log_group_id is None:
        return
    client = target.client("logging")
    with oci_errors("reading the log"):
        log = client.get_log(target.options.log_group_id, target.options.log_id).data
    if log.lifecycle_state != "ACTIVE" or log.is_enabled is False:
        yield _failed("log", f"{log.display_name} takes no lines", "enable it, or leave log_id out")
    else:
        yield Finding("log", Mark.PASS, log.display_name)


def _secret(target: Target) -> Iterator[Finding]:
    secret = target.job.program.source_secret
    if secret is not None:
        client = target.client("secrets")
        with oci_errors("reading the secret's versions"):
            client.list_secret_bundle_versions(secret, limit=1)
        yield Finding("secret", Mark.PASS, "it is there; whether the nodes may read it, only a run can tell")


def _nodes_rights(_: Target) -> Iterator[Finding]:
    yield Finding(
        "rights of nodes",
        Mark.WARN,
        "nodes sign in as themselves, which nobody else can try",
        "see that a dynamic group holds resource.type='datasciencejobrun', and may manage objects in work_dir's bucket "
        "and use log-content",
    )


def _failed(subject: str, message: str, fix: str) -> Finding:
    return Finding(subject, Mark.FAIL, message, fix)


CHECKS: tuple[tuple[str, Check], ...] = (
    ("compartment", _compartment),
    ("project", _project),
    ("jobs", _jobs),
    ("subnet", _subnet),
    ("shape", _shape),
    ("quota", _quota),
    ("image", _image),
    ("conda", _conda),
    ("work_dir", _work_dir),
    ("input", _inputs),
    ("checkpoints", _checkpoints),
    ("output", _outputs),
    ("log group", _log_group),
    ("log", _log),
    ("secret", _secret),
    ("rights of nodes", _nodes_rights),
)
