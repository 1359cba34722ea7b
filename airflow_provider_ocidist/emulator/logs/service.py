"""Logging, all of it: what other services and the server need of it."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.logs.catalog import Log, LogCatalog, LogGroup
from airflow_provider_ocidist.emulator.logs.ingestion import Ingestion
from airflow_provider_ocidist.emulator.logs.management import LogManagement
from airflow_provider_ocidist.emulator.logs.search import Search
from airflow_provider_ocidist.emulator.logs.streams import RunOutput, Streams
from airflow_provider_ocidist.emulator.logs.work_requests import LoggingWorkRequests
from airflow_provider_ocidist.emulator.resource_search import FoundResource
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import Route


class Logs:
    """Log groups, logs, and what was written to them."""

    def __init__(self, context: Context, identity: Identity, retries: RetryTokens) -> None:
        self._catalog = LogCatalog(context)
        self._streams = Streams(context)
        self._requests = LoggingWorkRequests(context.store)
        self._management = LogManagement(
            self._catalog, self._requests, identity, retries, self._streams.forget
        )
        self._search = Search(self._catalog, self._streams, context.ids.tenancy_id)
        self._ingestion = Ingestion(self._catalog, self._streams)

    def routes(self) -> list[Route]:
        parts = (self._management, self._requests, self._search, self._ingestion)
        return [route for part in parts for route in part.routes()]

    def check_log(self, log_group_id: str, log_id: str | None) -> None:
        """Raise 404 unless the group, and the log in it, exist."""
        self._catalog.group(log_group_id)
        if log_id:
            self._catalog.log(log_group_id, log_id)

    def add_log(self, log_group_id: str, display_name: str) -> str:
        """Create a log and return its OCID."""
        return self._catalog.add_log(log_group_id, display_name).id

    def output(self, run_id: str, log_id: str, rank: int | None) -> RunOutput:
        """Open a run's part of a log for writing; once for each of its nodes."""
        return self._streams.output(run_id, log_id, rank)

    def resources(self) -> Iterator[FoundResource]:
        """Yield what Resource Search finds of this service."""
        for group in self._catalog.groups.values():
            yield _found("LogGroup", group, group.compartment_id)
        for log in self._catalog.logs.values():
            yield _found("Log", log, self._catalog.compartment_of(log))

    def reset(self) -> None:
        self._catalog.reset()
        self._requests.reset()
        self._streams.reset()

    def close(self) -> None:
        self._streams.close()


def _found(kind: str, item: LogGroup | Log, compartment_id: str) -> FoundResource:
    return FoundResource(
        kind=kind,
        id=item.id,
        compartment_id=compartment_id,
        name=item.display_name,
        time_created=item.time_created,
        freeform_tags=item.freeform_tags,
        defined_tags=item.defined_tags,
    )
