"""Target: a job and the place that it is for, as the checks ask about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.backends.capabilities import Finding
from airflow_provider_ocidist.backends.oci_data_science.options import OciDataScienceOptions
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess


@dataclass(frozen=True, slots=True)
class PreflightTarget:
    """Everything is filled in, from the job and from the connection."""

    job: TrainingJob
    options: OciDataScienceOptions
    access: OciAccess
    storage: OciAccess
    """Credentials that open the job's buckets."""

    def client(self, service: clients.Service) -> Any:
        return clients.client(self.access, service)


Check = Callable[[PreflightTarget], Iterable[Finding]]
"""Function that asks the service; it may raise OcidistError if it could not even ask."""
