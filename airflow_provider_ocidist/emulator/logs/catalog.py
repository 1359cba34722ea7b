"""Which log groups and logs there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import conflict, not_found
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import new_etag, now

RETENTION_DAYS = range(30, 181, 30)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogGroup:
    """A folder of logs."""

    id: str
    compartment_id: str
    display_name: str
    description: str | None = None
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    defined_tags: Mapping[str, Any] = field(default_factory=dict)
    time_created: str = field(default_factory=now)
    time_modified: str = field(default_factory=now)
    etag: str = field(default_factory=new_etag)


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A log: job runs write to it, and so may clients."""

    id: str
    log_group_id: str
    display_name: str
    log_type: str = "CUSTOM"
    is_enabled: bool = True
    configuration: Mapping[str, Any] | None = None
    retention_days: int = RETENTION_DAYS[0]
    freeform_tags: Mapping[str, str] = field(default_factory=dict)
    defined_tags: Mapping[str, Any] = field(default_factory=dict)
    time_created: str = field(default_factory=now)
    time_modified: str = field(default_factory=now)
    etag: str = field(default_factory=new_etag)


class LogCatalog:
    """All log groups and logs."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        self.groups: Table[LogGroup] = Table(context.store, "log_group", LogGroup)
        self.logs: Table[Log] = Table(context.store, "log", Log)
        self._seed()

    def _seed(self) -> None:
        ids = self._ids
        if not self.groups.values():
            group = LogGroup(id=ids.log_group_id, compartment_id=ids.compartment_id, display_name="ocidist")
            self.groups.put(group.id, group)
            log = Log(id=ids.log_id, log_group_id=group.id, display_name="ocidist")
            self.logs.put(log.id, log)

    def reset(self) -> None:
        self.groups.clear()
        self.logs.clear()
        self._seed()

    def group(self, group_id: str) -> LogGroup:
        """Return a log group. Raises 404."""
        group = self.groups.get(group_id)
        if group is None:
            raise not_found()
        return group

    def log(self, group_id: str, log_id: str) -> Log:
        """Return a log. Raises 404, also for a log of another group."""
        log = self.logs.get(log_id)
        if log is None or log.log_group_id != self.group(group_id).id:
            raise not_found()
        return log

    def logs_of(self, group_id: str) -> list[Log]:
        return [log for log in self.logs.values() if log.log_group_id == group_id]

    def compartment_of(self, log: Log) -> str:
        return self.group(log.log_group_id).compartment_id

    def add_log(self, log_group_id: str, display_name: str, **more: Any) -> Log:
        """Create a log. Raises 404 without the group, and 409 when it has a log of that name."""
        self.group(log_group_id)
        self.check_log_name(log_group_id, display_name)
        log = Log(id=new_ocid("log"), log_group_id=log_group_id, display_name=display_name, **more)
        self.logs.put(log.id, log)
        return log

    def check_log_name(self, log_group_id: str, name: str) -> None:
        if any(log.display_name == name for log in self.logs_of(log_group_id)):
            raise conflict(f"The log group has a log {name!r} already.")

    def check_group_name(self, compartment_id: str, name: str) -> None:
        for group in self.groups.values():
            if (group.compartment_id, group.display_name) == (compartment_id, name):
                raise conflict(f"The compartment has a log group {name!r} already.")
