"""Operator links: from a task to its main job run, its logs and its checkpoint, in the OCI console or the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink

from airflow_provider_ocidist.model.homes import words_of

if TYPE_CHECKING:
    from airflow_provider_ocidist.model.run import RunRef
    from airflow_provider_ocidist.oci_client.credentials import OciAccess

CONSOLE = "https://cloud.oracle.com"
"""Console of the commercial realm, OC1; every other realm has one in each of its regions."""
MOST_SOURCES = 8
"""Most runs in a query to the log explorer; the length of an address is limited."""


class PushedLink(BaseOperatorLink):
    """A link whose address the task pushes under `xcom_key`; empty until then, or if there is none."""

    xcom_key: ClassVar[str]

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ARG002 - Airflow's signature
        from airflow.providers.common.compat.sdk import XCom

        return str(XCom.get_value(key=self.xcom_key, ti_key=ti_key) or "")


class JobRunLink(PushedLink):
    """The main job run; set as soon as the run exists."""

    name = "OCI job run"
    xcom_key = "oci_job_run_link"


class LogsLink(PushedLink):
    """The nodes' output in the console's log explorer; set as soon as the run exists."""

    name = "OCI logs"
    xcom_key = "oci_logs_link"


class CheckpointLink(PushedLink):
    """The folder of the newest checkpoint; set when the task has ended, also after a failure."""

    name = "Checkpoint"
    xcom_key = "oci_checkpoint_link"


def links_of_run(
    ref: RunRef, access: OciAccess, log_place: Callable[[], str | None] = lambda: None
) -> dict[str, str]:
    """Return the address of each link to a run, by its key in XCom; links without an address are left out.

    An emulator's runs are on its own status page, where a job's page has the logs as well. `log_place`: returns what a
    search for its lines names; None: as if its log group lay in the compartment of the run.
    """
    if not words_of(ref.backend).has_console:
        return {}
    if access.endpoint:
        page = f"{access.endpoint.rstrip('/')}/#/jobs/{quote(ref.job_id, safe='')}"
        return {JobRunLink.xcom_key: page, LogsLink.xcom_key: page}
    logs = logs_url(ref, access, log_place() if ref.log_group_id else None)
    found = {JobRunLink.xcom_key: job_run_url(ref, access), LogsLink.xcom_key: logs}
    return {key: url for key, url in found.items() if url}


def job_run_url(ref: RunRef, access: OciAccess) -> str | None:
    """Return the console's page of the main job run; None where no region is known."""
    region = _region(ref, access)
    if region is None:
        return None
    return f"{console(region)}/data-science/job-runs/{ref.main_run_id}?region={region}"


def logs_url(ref: RunRef, access: OciAccess, place: str | None = None) -> str | None:
    """Return the log explorer with the query for the lines of the run; None without a log group or a known region.

    `place`: compartment of the log group, group and log; None: the group lies in the compartment of the run.
    """
    region = _region(ref, access)
    if region is None or ref.log_group_id is None:
        return None
    beside_run = "/".join(part for part in (ref.compartment_id, ref.log_group_id, ref.log_id) if part)
    runs = list(dict.fromkeys(run_id for run_id in ref.run_ids if run_id))
    sources = " or ".join(f"source = '*{run_id}'" for run_id in runs[:MOST_SOURCES])
    query = f'search "{place or beside_run}" | where {sources} | sort by datetime desc'
    return f"{console(region)}/logging/search?searchQuery={quote(query, safe='')}&regions={region}"


def checkpoint_url(uri: str, ref: RunRef, access: OciAccess) -> str | None:
    """Return the page of the bucket at a checkpoint's folder.

    None if that is no bucket of OCI, or its region or namespace is not known.
    """
    from airflow_provider_ocidist.storage.locations import parse

    if not uri.startswith("oci://"):
        return None
    place = parse(uri)
    folder = quote(f"{place.path.strip('/')}/", safe="")
    if access.endpoint:
        return f"{access.endpoint.rstrip('/')}/#/objects/{quote(place.bucket, safe='')}/{folder}"
    region = access.region or _region(ref, access)
    if region is None or not place.namespace:
        return None
    bucket = f"{quote(place.namespace)}/{quote(place.bucket, safe='')}"
    return f"{console(region)}/object-storage/buckets/{bucket}/objects?region={region}&prefix={folder}"


def console(region: str) -> str:
    """Return the address of a region's console."""
    from oci.regions import REALMS, REGION_REALMS

    domain = REALMS.get(REGION_REALMS.get(region, "oc1"), REALMS["oc1"])
    return CONSOLE if domain == REALMS["oc1"] else f"https://console.{region}.{domain}"


def _region(ref: RunRef, access: OciAccess) -> str | None:
    """Return the run's region: the fourth part of its OCID, or a short name of it (`iad`), else the connection's."""
    from oci.regions import REGIONS_SHORT_NAMES

    key = ref.main_run_id.split(".")[3] if ref.main_run_id.count(".") >= 4 else ""
    return REGIONS_SHORT_NAMES.get(key, key) or access.region
