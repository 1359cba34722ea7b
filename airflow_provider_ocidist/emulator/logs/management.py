"""Logging: log groups and logs are made, shown, changed and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import conflict, invalid, missing
from airflow_provider_ocidist.emulator.fields import changes, required_text
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.logs.catalog import RETENTION_DAYS, Log, LogCatalog, LogGroup
from airflow_provider_ocidist.emulator.logs.work_requests import LoggingWorkRequests
from airflow_provider_ocidist.emulator.retry_tokens import RetryTokens
from airflow_provider_ocidist.emulator.wire import (
    Call,
    Route,
    answer,
    check_if_match,
    matching,
    new_etag,
    now,
    page,
)

GROUPS = "/20200531/logGroups"
LOG_TYPES = ("CUSTOM", "SERVICE")
GROUP_FIELDS = {
    "displayName": "display_name",
    "description": "description",
    "freeformTags": "freeform_tags",
    "definedTags": "defined_tags",
}
LOG_FIELDS = {
    "displayName": "display_name",
    "isEnabled": "is_enabled",
    "configuration": "configuration",
    "retentionDuration": "retention_days",
    "freeformTags": "freeform_tags",
    "definedTags": "defined_tags",
}


class LogManagement:
    """Answers /logGroups. Every change is a work request that does not name what it made."""

    def __init__(
        self,
        catalog: LogCatalog,
        requests: LoggingWorkRequests,
        identity: Identity,
        retries: RetryTokens,
        forget_lines: Callable[[str], None],
    ) -> None:
        """`forget_lines` removes what was written to a log that is being deleted."""
        self._catalog = catalog
        self._requests = requests
        self._identity = identity
        self._retries = retries
        self._forget_lines = forget_lines

    def routes(self) -> list[Route]:
        group, log = f"{GROUPS}/{{group}}", f"{GROUPS}/{{group}}/logs/{{log}}"
        return [
            Route("GET", GROUPS, self.list_groups),
            Route("POST", GROUPS, self.create_group),
            Route("GET", group, self.get_group),
            Route("PUT", group, self.update_group),
            Route("DELETE", group, self.delete_group),
            Route("POST", f"{group}/actions/changeCompartment", self.move_group),
            Route("GET", f"{group}/logs", self.list_logs),
            Route("POST", f"{group}/logs", self.create_log),
            Route("GET", log, self.get_log),
            Route("PUT", log, self.update_log),
            Route("DELETE", log, self.delete_log),
            Route("POST", f"{log}/actions/changeLogGroup", self.move_log),
        ]

    def _group(self, call: Call) -> LogGroup:
        return self._catalog.group(call.params["group"])

    def _log(self, call: Call) -> Log:
        return self._catalog.log(call.params["group"], call.params["log"])

    # Log groups

    async def list_groups(self, call: Call) -> Response:
        compartment_id = self._identity.compartment_in(call)
        inside = {compartment_id}
        if call.query.get("isCompartmentIdInSubtree") == "true":
            inside |= self._identity.subtree(compartment_id)
        bodies = [
            _group_body(group) for group in self._catalog.groups.values() if group.compartment_id in inside
        ]
        return _listing(call, matching(call, bodies, ("displayName",)))

    async def create_group(self, call: Call) -> Response:
        details = await call.json()
        compartment_id = required_text(details, "compartmentId")
        name = required_text(details, "displayName")
        self._identity.check_compartment(compartment_id)
        made = self._retries.find(call, details)
        if made is None:
            self._catalog.check_group_name(compartment_id, name)
            made = new_ocid("loggroup")
            given = changes(details, GROUP_FIELDS)
            self._catalog.groups.put(made, LogGroup(id=made, compartment_id=compartment_id, **given))
            self._retries.remember(call, details, made)
        return self._requests.accepted("CREATE_LOG_GROUP", compartment_id, made)

    async def get_group(self, call: Call) -> Response:
        group = self._group(call)
        return answer(_group_body(group), etag=group.etag)

    async def update_group(self, call: Call) -> Response:
        given = changes(await call.json(), GROUP_FIELDS)
        group = self._group(call)
        check_if_match(call, group.etag)
        if given.get("display_name", group.display_name) != group.display_name:
            self._catalog.check_group_name(group.compartment_id, given["display_name"])
        return self._put_group(replace(group, **given), "UPDATE_LOG_GROUP")

    async def move_group(self, call: Call) -> Response:
        target = required_text(await call.json(), "compartmentId")
        group = self._group(call)
        check_if_match(call, group.etag)
        self._identity.check_compartment(target)
        self._catalog.check_group_name(target, group.display_name)
        return self._put_group(replace(group, compartment_id=target), "MOVE_LOG_GROUP")

    def _put_group(self, group: LogGroup, operation: str) -> Response:
        changed = replace(group, time_modified=now(), etag=new_etag())
        self._catalog.groups.put(group.id, changed)
        return self._requests.accepted(operation, group.compartment_id, group.id)

    async def delete_group(self, call: Call) -> Response:
        group = self._group(call)
        check_if_match(call, group.etag)
        if self._catalog.logs_of(group.id):
            raise conflict("The log group is not empty: delete or move its logs first.")
        self._catalog.groups.delete(group.id)
        return self._requests.accepted("DELETE_LOG_GROUP", group.compartment_id, group.id)

    # Logs

    async def list_logs(self, call: Call) -> Response:
        bodies = [self._log_body(log) for log in self._catalog.logs_of(self._group(call).id)]
        found = matching(call, bodies, ("displayName", "logType", "lifecycleState"))
        service, resource = call.query.get("sourceService"), call.query.get("sourceResource")
        sources = [((body["configuration"] or {}).get("source") or {}, body) for body in found]
        chosen = [
            body
            for source, body in sources
            if service in (None, source.get("service")) and resource in (None, source.get("resource"))
        ]
        return _listing(call, chosen)

    async def create_log(self, call: Call) -> Response:
        details = await call.json()
        group = self._group(call)
        required_text(details, "displayName")
        log_type = required_text(details, "logType")
        if log_type not in LOG_TYPES:
            raise invalid(f"logType must be one of {', '.join(LOG_TYPES)}.")
        if log_type == "SERVICE" and not details.get("configuration"):
            raise missing("configuration")
        made = self._retries.find(call, details)
        if made is None:
            given = _log_changes(details)
            made = self._catalog.add_log(group.id, given.pop("display_name"), log_type=log_type, **given).id
            self._retries.remember(call, details, made)
        return self._requests.accepted("CREATE_LOG", group.compartment_id, made)

    async def get_log(self, call: Call) -> Response:
        log = self._log(call)
        return answer(self._log_body(log), etag=log.etag)

    async def update_log(self, call: Call) -> Response:
        given = _log_changes(await call.json())
        log = self._log(call)
        check_if_match(call, log.etag)
        if given.get("display_name", log.display_name) != log.display_name:
            self._catalog.check_log_name(log.log_group_id, given["display_name"])
        return self._put_log(replace(log, **given), "UPDATE_LOG")

    async def move_log(self, call: Call) -> Response:
        target = self._catalog.group(required_text(await call.json(), "targetLogGroupId"))
        log = self._log(call)
        check_if_match(call, log.etag)
        self._catalog.check_log_name(target.id, log.display_name)
        return self._put_log(replace(log, log_group_id=target.id), "MOVE_LOG")

    def _put_log(self, log: Log, operation: str) -> Response:
        self._catalog.logs.put(log.id, replace(log, time_modified=now(), etag=new_etag()))
        return self._requests.accepted(operation, self._catalog.compartment_of(log), log.id)

    async def delete_log(self, call: Call) -> Response:
        log = self._log(call)
        check_if_match(call, log.etag)
        self._forget_lines(log.id)
        self._catalog.logs.delete(log.id)
        return self._requests.accepted("DELETE_LOG", self._catalog.compartment_of(log), log.id)

    def _log_body(self, log: Log) -> dict[str, Any]:
        return {
            "id": log.id,
            "logGroupId": log.log_group_id,
            "tenancyId": self._identity.tenancy_id,
            "compartmentId": self._catalog.compartment_of(log),
            "displayName": log.display_name,
            "logType": log.log_type,
            "isEnabled": log.is_enabled,
            "lifecycleState": "ACTIVE" if log.is_enabled else "INACTIVE",
            "configuration": log.configuration,
            "retentionDuration": log.retention_days,
            "timeCreated": log.time_created,
            "timeLastModified": log.time_modified,
            "freeformTags": log.freeform_tags,
            "definedTags": log.defined_tags,
        }


def _group_body(group: LogGroup) -> dict[str, Any]:
    return {
        "id": group.id,
        "compartmentId": group.compartment_id,
        "displayName": group.display_name,
        "description": group.description,
        "lifecycleState": "ACTIVE",
        "timeCreated": group.time_created,
        "timeLastModified": group.time_modified,
        "freeformTags": group.freeform_tags,
        "definedTags": group.defined_tags,
    }


def _log_changes(details: Mapping[str, Any]) -> dict[str, Any]:
    given = changes(details, LOG_FIELDS)
    if given.get("retention_days", RETENTION_DAYS[0]) not in RETENTION_DAYS:
        raise invalid("retentionDuration must be 30 to 180 days, in steps of 30.")
    return given


def _listing(call: Call, bodies: list[dict[str, Any]]) -> Response:
    name = call.query.get("sortBy", "timeCreated")
    if name not in ("timeCreated", "displayName"):
        raise invalid("sortBy must be timeCreated or displayName.")
    default = "ASC" if name == "displayName" else "DESC"
    chosen, headers = page(call, bodies, lambda body: (body[name], body["id"]), default=default)
    return answer(chosen, headers=headers)
