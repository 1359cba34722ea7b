"""Calls to the service, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_RUN
from airflow_provider_ocidist.errors import RunNotFound
from airflow_provider_ocidist.oci_client.errors import oci_errors

PAGE = 100
"""Most resources on one page of a list."""


def pages(call: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Yield everything that a list operation of the SDK returns."""
    page = None
    while True:
        answer = call(*args, limit=PAGE, **kwargs, **({"page": page} if page else {}))
        yield from answer.data
        page = answer.headers.get("opc-next-page")
        if not page:
            return


def read_job(client: Any, job_id: str) -> Any:
    """Return a job. Raises BackendError; RunNotFound where the service does not show it."""
    with oci_errors("reading the job"):
        return client.get_job(job_id).data


def read_run(client: Any, run_id: str) -> Any:
    """Return a job run. Raises as `read_job`."""
    with oci_errors("reading the job run"):
        return client.get_job_run(run_id).data


def or_none(read: Callable[[Any, str], Any], client: Any, ocid: str) -> Any | None:
    """Return what is read; None where the service does not show it. Raises BackendError."""
    try:
        return read(client, ocid)
    except RunNotFound:
        return None


def list_runs(client: Callable[[], Any], compartment_id: str | None, **filters: str) -> list[Any]:
    """Return the job runs of gangs that the service has not deleted. Raises BackendError."""
    with oci_errors("listing the job runs"):
        runs = list(pages(client().list_job_runs, compartment_id, **filters))
    return [run for run in runs if TAG_RUN in (run.freeform_tags or {}) and run.lifecycle_state != "DELETED"]
