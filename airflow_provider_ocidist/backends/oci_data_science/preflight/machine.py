"""Checks of what the nodes are: shape, limits, image and conda environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.backends.oci_data_science.preflight.judgements import (
    by_hand,
    conda_finding,
    image_finding,
    limit_fits,
    quota_finding,
    shape_finding,
)
from airflow_provider_ocidist.backends.oci_data_science.preflight.target import PreflightTarget
from airflow_provider_ocidist.errors import BackendError, StorageError
from airflow_provider_ocidist.oci_client import credentials
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.errors import oci_errors
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.opening import open_store

SERVICE_CONDA = "oci://service-conda-packs@id19sfcrra6z/service_pack"
"""Place where Oracle lists the service conda environments (Oracle ADS: `ads.config.CONDA_BUCKET_NS`, `env_info`)."""


def shape(target: PreflightTarget) -> Iterator[Finding]:
    options, client = target.options, target.client("data_science")
    with oci_errors("listing the shapes"):
        shapes = {item.name: item for item in pages(client.list_job_shapes, options.compartment_id)}
    yield shape_finding(str(options.shape), options.ocpus, options.memory_gb, shapes)


def quota(target: PreflightTarget) -> Iterator[Finding]:
    """Report what is left of the limits whose names fit the shape; the service does not name the one that counts."""
    name, nodes = target.options.shape, target.job.nodes
    try:
        left = _left(target)
    except BackendError as error:
        what = "the limits cannot be read here" if error.status_code in (401, 404) else str(error)
        fix = f"allow group <yours> to inspect limits in tenancy, or {by_hand(name, nodes)}"
        yield Finding.warned("quota", what, fix)
        return
    yield quota_finding(left, name, nodes)


def _left(target: PreflightTarget) -> dict[str, float]:
    """Return what is left of each limit that fits the shape."""
    client, tenancy = target.client("limits"), _tenancy(target.access)
    with oci_errors("reading the limits"):
        found = pages(client.list_limit_definitions, tenancy, service_name="data-science")
        names = [item.name for item in found if limit_fits(item.name, str(target.options.shape))]
        return {name: _available(client, name, tenancy) for name in names}


def _tenancy(access: OciAccess) -> str:
    config, signer = credentials.credentials(access)
    return str(config.get("tenancy") or getattr(signer, "tenancy_id", ""))


def _available(client: Any, name: str, tenancy: str) -> float:
    answer = client.get_resource_availability("data-science", name, tenancy).data
    return float(answer.available or 0)


def image(target: PreflightTarget) -> Iterator[Finding]:
    if target.job.image is None:
        return
    region = target.access.region or credentials.credentials(target.access)[0].get("region")
    yield image_finding(target.job.image, region)


def conda(target: PreflightTarget) -> Iterator[Finding]:
    uri, slug = target.options.conda_uri, target.options.conda_slug
    if uri is not None:
        access = replace(target.access, region=target.options.conda_region or target.access.region)
        place = locations.parse(uri)
        if open_store(place.parent, access).exists(place.name):
            yield Finding.passed("conda", uri)
        else:
            yield Finding.failed("conda", f"{uri} is not there", "correct backend.conda_uri")
    elif slug is not None:
        yield conda_finding(slug, _service_environments(target.access))
    elif target.job.image is None and target.access.endpoint is None:
        nothing = "the job names neither an image nor a conda environment, and the service's own Python has no torch"
        yield Finding.warned(
            "conda", nothing, "set backend.conda_slug to one with Python 3.9 or later, or image"
        )


def _service_environments(access: OciAccess) -> set[str] | None:
    """Return the names of Oracle's environments, None where the list cannot be read."""
    try:
        index = json.loads(open_store(SERVICE_CONDA, access).read("index.json"))
        return {str(pack.get("slug")) for pack in index["service_packs"]}
    except (StorageError, OSError, ValueError, LookupError, AttributeError, TypeError):
        return None
