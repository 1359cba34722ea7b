"""ServiceClients: the SDK clients of one connection, each made when it is needed first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.backports import cached_property
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.clients import Service
from airflow_provider_ocidist.oci_client.credentials import OciAccess


class ServiceClients:
    """The clients for one set of credentials; a connection that is read again gets others."""

    def __init__(self, access: OciAccess, clock: ServiceClock) -> None:
        """`clock` is set by the answers to jobs and job runs."""
        self._access = access
        self._clock = clock
        self._made: list[Any] = []

    @cached_property
    def jobs(self) -> Any:
        return self._heard("data_science")

    @cached_property
    def runs(self) -> Any:
        return self._heard("data_science_runs")

    @cached_property
    def logs(self) -> Any:
        return self._make(self._access, "logging_search")

    @cached_property
    def log_groups(self) -> Any:
        """The client that looks where log groups are: it waits seconds at most, since a look at gangs waits for it."""
        return self._make(urgent(self._access), "logging")

    @cached_property
    def cancels(self) -> Any:
        """The client of cancels: they have connections of their own, and wait seconds at most."""
        return self._make(urgent(self._access), "data_science_runs")

    @property
    def region(self) -> str | None:
        """The region that the clients reach, as the profile names it; None: none was made yet."""
        return next((client.base_client.config.get("region") for client in self._made), None)

    def _heard(self, service: Service) -> Any:
        """Return a client whose answers set the clock."""
        client = self._make(self._access, service)
        client.base_client.session.hooks["response"].append(self._clock.take)
        return client

    def _make(self, access: OciAccess, service: Service) -> Any:
        made = clients.client(access, service)
        self._made.append(made)
        return made


def urgent(access: OciAccess) -> OciAccess:
    """Return credentials for requests that must not wait long when the service throttles."""
    return replace(access, urgent=True)
