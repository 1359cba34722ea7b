"""Logging: log groups and logs, the output of job runs, and log search."""

from __future__ import annotations

import heapq
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import invalid, missing, not_found
from airflow_provider_ocidist.emulator.installation import new_ocid
from airflow_provider_ocidist.emulator.logs.files import LineSplitter, LogFile
from airflow_provider_ocidist.emulator.logs.query import Condition, Fields, LogQuery, Scope, parse
from airflow_provider_ocidist.emulator.nodes.processes import STDERR, STDOUT
from airflow_provider_ocidist.emulator.store import Table
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, now, page, page_token, read_page_token

BASE = "/20200531"
DAY_MS = 24 * 3600 * 1000
MAX_OPEN_FILES = 64
MAX_RANGE_MS = 14 * DAY_MS
STREAM_TYPES = {
    STDOUT: "com.oraclecloud.datascience.jobrun.stdout",
    STDERR: "com.oraclecloud.datascience.jobrun.stderr",
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogGroup:
    """A folder of logs."""

    id: str
    compartment_id: str
    display_name: str
    time_created: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Log:
    """A log that job runs write to."""

    id: str
    log_group_id: str
    display_name: str
    time_created: str = field(default_factory=now)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One job run's part of a log."""

    run_id: str
    log_id: str


class Hit(NamedTuple):
    """A line that a search found, not read yet, and the run that wrote it."""

    source: Source
    number: int
    time_ms: int


class Place(NamedTuple):
    """How far the pages of a search have come: to a millisecond, of which so many entries were sent."""

    time_ms: int | None
    sent: int


class RunOutput:
    """Takes the output of one run, as it comes, into its log."""

    def __init__(self, file: LogFile, on_close: Callable[[], None]) -> None:
        self._file = file
        self._on_close = on_close
        self._failed = False
        self._splitters = {STDOUT: LineSplitter(), STDERR: LineSplitter()}

    def write(self, stream: int, data: bytes) -> None:
        lines = self._splitters[stream].feed(data)
        if lines and not self._failed:
            self._append(stream, lines)

    def _append(self, stream: int, lines: Sequence[bytes]) -> None:
        try:
            self._file.append(stream, lines, time.time_ns() // 1_000_000)
        except OSError as error:
            # A full disk must not end the node; nor may a half-written line be followed by others.
            self._failed = True
            logger.error("the log of a job run ends here: %s", error)

    def close(self) -> None:
        self._on_close()


def discard(stream: int, data: bytes) -> None:
    """Take the output of a run whose job does not log: the service drops it as well."""


class Logs:
    """Log groups, logs, and what was written to them."""

    def __init__(self, context: Context) -> None:
        self._ids = context.ids
        self._folder = context.folder / "logs"
        self._folder.mkdir(exist_ok=True)
        self._groups: Table[LogGroup] = Table(context.store, "log_group", LogGroup)
        self._logs: Table[Log] = Table(context.store, "log", Log)
        self._sources: Table[Source] = Table(context.store, "log_source", Source)
        self._written: dict[str, LogFile] = {}
        self._read: dict[str, LogFile] = {}
        self._seed()

    def _seed(self) -> None:
        ids = self._ids
        if self._groups.get(ids.log_group_id) is None:
            group = LogGroup(id=ids.log_group_id, compartment_id=ids.compartment_id, display_name="ocidist")
            self._groups.put(group.id, group)
            log = Log(id=ids.log_id, log_group_id=group.id, display_name="ocidist")
            self._logs.put(log.id, log)

    def routes(self) -> list[Route]:
        group, log = f"{BASE}/logGroups/{{group}}", f"{BASE}/logGroups/{{group}}/logs/{{log}}"
        return [
            Route("GET", f"{BASE}/logGroups", self.list_groups),
            Route("POST", f"{BASE}/logGroups", self.create_group),
            Route("GET", group, self.get_group),
            Route("GET", f"{group}/logs", self.list_logs),
            Route("POST", f"{group}/logs", self.create_log),
            Route("GET", log, self.get_log),
            Route("GET", f"{BASE}/workRequests/{{id}}", self.get_work_request),
            Route("POST", "/20190909/search", self.search),
        ]

    def check_log(self, log_group_id: str, log_id: str | None) -> None:
        """Raise 404 unless the group, and the log in it, exist."""
        log = self._logs.get(log_id) if log_id else None
        if self._groups.get(log_group_id) is None or (log_id and not log):
            raise not_found()
        if log and log.log_group_id != log_group_id:
            raise not_found()

    def add_log(self, log_group_id: str, display_name: str) -> str:
        """Create a log and return its OCID."""
        log = Log(id=new_ocid("log"), log_group_id=log_group_id, display_name=display_name)
        self._logs.put(log.id, log)
        return log.id

    def output(self, run_id: str, log_id: str) -> RunOutput:
        """Open a run's part of a log for writing."""
        self._sources.put(run_id, Source(run_id=run_id, log_id=log_id))
        self._written[run_id] = LogFile(self._path(run_id))
        return RunOutput(self._written[run_id], lambda: self._close_written(run_id))

    def _close_written(self, run_id: str) -> None:
        file = self._written.pop(run_id, None)
        if file is not None:
            file.close()

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id.rpartition('.')[2]}.log"

    def _file(self, run_id: str) -> LogFile:
        """Return a run's file for reading. Those of ended runs are closed again, the oldest first."""
        file = self._written.get(run_id, self._read.get(run_id))
        if file is None:
            if len(self._read) >= MAX_OPEN_FILES:
                self._read.pop(next(iter(self._read))).close()
            file = self._read[run_id] = LogFile(self._path(run_id))
        return file

    def reset(self) -> None:
        self.close()
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        for table in (self._groups, self._logs, self._sources):
            table.clear()
        self._seed()

    def close(self) -> None:
        for files in (self._written, self._read):
            for file in files.values():
                file.close()
            files.clear()

    async def list_groups(self, call: Call) -> Response:
        compartment_id = call.required_query("compartmentId")
        name = call.query.get("displayName")
        found = [
            group
            for group in self._groups.values()
            if group.compartment_id == compartment_id and name in (None, group.display_name)
        ]
        chosen, headers = page(call, found, lambda group: (group.time_created, group.id), default="DESC")
        return answer([_group_body(group) for group in chosen], headers=headers)

    async def create_group(self, call: Call) -> Response:
        """The service answers with a work request only; who created must look for the name."""
        details = await call.json()
        group = LogGroup(
            id=new_ocid("loggroup"),
            compartment_id=_required(details, "compartmentId"),
            display_name=_required(details, "displayName"),
        )
        self._groups.put(group.id, group)
        return answer(status=202, headers={"opc-work-request-id": f"ocid1.logworkrequest.{group.id}"})

    async def get_group(self, call: Call) -> Response:
        return answer(_group_body(self._group(call)))

    def _group(self, call: Call) -> LogGroup:
        group = self._groups.get(call.params["group"])
        if group is None:
            raise not_found()
        return group

    async def list_logs(self, call: Call) -> Response:
        group = self._group(call)
        name = call.query.get("displayName")
        found = [
            log
            for log in self._logs.values()
            if log.log_group_id == group.id and name in (None, log.display_name)
        ]
        chosen, headers = page(call, found, lambda log: (log.time_created, log.id), default="DESC")
        return answer([self._log_body(log) for log in chosen], headers=headers)

    async def create_log(self, call: Call) -> Response:
        group = self._group(call)
        details = await call.json()
        log_id = self.add_log(group.id, _required(details, "displayName"))
        return answer(status=202, headers={"opc-work-request-id": f"ocid1.logworkrequest.{log_id}"})

    async def get_log(self, call: Call) -> Response:
        self.check_log(call.params["group"], call.params["log"])
        log = self._logs.get(call.params["log"])
        assert log is not None
        return answer(self._log_body(log))

    async def get_work_request(self, call: Call) -> Response:
        made = call.params["id"].removeprefix("ocid1.logworkrequest.")
        if self._groups.get(made) is None and self._logs.get(made) is None:
            raise not_found()
        resource = {"actionType": "CREATED", "entityType": "log", "identifier": made}
        return answer(
            {
                "id": call.params["id"],
                "operationType": "CREATE_LOG",
                "status": "SUCCEEDED",
                "compartmentId": self._ids.compartment_id,
                "resources": [resource],
                "percentComplete": 100.0,
            }
        )

    def _log_body(self, log: Log) -> dict[str, Any]:
        return {
            "id": log.id,
            "logGroupId": log.log_group_id,
            "tenancyId": self._ids.tenancy_id,
            "compartmentId": self._compartment_of(log),
            "displayName": log.display_name,
            "logType": "CUSTOM",
            "isEnabled": True,
            "lifecycleState": "ACTIVE",
            "retentionDuration": 30,
            "timeCreated": log.time_created,
            "timeLastModified": log.time_created,
        }

    def _compartment_of(self, log: Log) -> str:
        group = self._groups.get(log.log_group_id)
        return group.compartment_id if group else ""

    async def search(self, call: Call) -> Response:
        details = await call.json()
        query = parse(_required(details, "searchQuery"))
        start, end = _time(details, "timeStart"), _time(details, "timeEnd")
        _check_range(start, end)
        limit = call.number("limit", 500, 1, 1000)
        place = _place(call.query.get("page"))
        found = islice(self._hits(query, *_rest(start, end, place, query)), place.sent, None)
        hits = list(islice(found, limit + 1))
        headers = _next_page(hits, limit, place)
        results = [{"data": self._entry(hit)} for hit in hits[:limit]]
        summary = {"resultCount": len(results), "fieldCount": 0}
        return answer({"results": results, "fields": [], "summary": summary}, headers=headers)

    def _hits(self, query: LogQuery, start: int, end: int) -> Iterator[Hit]:
        """Yield what the query finds, in its order."""
        found = [
            self._hits_of(source, query, start, end)
            for source in self._sources.values()
            if self._in_scope(source, query.scopes)
        ]
        return heapq.merge(*found, key=lambda hit: hit.time_ms, reverse=query.descending)

    def _in_scope(self, source: Source, scopes: Iterable[Scope]) -> bool:
        log = self._logs.get(source.log_id)
        if log is None:
            return False
        place = Scope(self._compartment_of(log), log.log_group_id, log.id)
        return any(
            scope.compartment_id == place.compartment_id
            and scope.log_group_id in (None, place.log_group_id)
            and scope.log_id in (None, place.log_id)
            for scope in scopes
        )

    def _hits_of(self, source: Source, query: LogQuery, start: int, end: int) -> Iterator[Hit]:
        """Yield one run's hits. Most searches name the run: then no line is looked at to be rejected."""
        verdict = query.condition({"source": source.run_id, "subject": ""})
        if verdict is False:
            return
        file = self._file(source.run_id)
        numbers = file.between(start, end)
        for number in reversed(numbers) if query.descending else numbers:
            if verdict or _matches(query.condition, source, file, number):
                yield Hit(source, number, file.time_of(number))

    def _entry(self, hit: Hit) -> dict[str, Any]:
        log = self._logs.get(hit.source.log_id)
        assert log is not None
        line = self._file(hit.source.run_id).read(hit.number)
        written = datetime.fromtimestamp(line.time_ms / 1000, UTC)
        when = written.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        place = {
            "compartmentid": self._compartment_of(log),
            "ingestedtime": when,
            "loggroupid": log.log_group_id,
            "logid": log.id,
            "tenantid": self._ids.tenancy_id,
        }
        content = {
            **_content(hit.source, line.number, line.stream),
            "specversion": "1.0",
            "time": when,
            "data": {"message": line.message},
            "oracle": place,
        }
        return {"datetime": line.time_ms, "logContent": content}


def _matches(condition: Condition, source: Source, file: LogFile, number: int) -> bool:
    fields: Fields = {
        **_content(source, number, file.stream_of(number)),
        "datetime": file.time_of(number),
    }
    verdict = condition(fields)
    if verdict is None:
        verdict = condition({**fields, "message": file.read(number).message})
    return verdict is True


def _content(source: Source, number: int, stream: int) -> dict[str, str]:
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{source.run_id}/{number}")),
        "source": source.run_id,
        "type": STREAM_TYPES[stream],
        "subject": "",
    }


def _group_body(group: LogGroup) -> dict[str, Any]:
    return {
        "id": group.id,
        "compartmentId": group.compartment_id,
        "displayName": group.display_name,
        "lifecycleState": "ACTIVE",
        "timeCreated": group.time_created,
        "timeLastModified": group.time_created,
        "freeformTags": {},
        "definedTags": {},
    }


def _required(details: dict[str, Any], name: str) -> str:
    value = details.get(name)
    if not value or not isinstance(value, str):
        raise missing(name)
    return value


def _time(details: dict[str, Any], name: str) -> int:
    try:
        moment = datetime.fromisoformat(_required(details, name))
    except ValueError as error:
        raise invalid(f"{name} must be an RFC 3339 time.") from error
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)


def _check_range(start: int, end: int) -> None:
    if end <= start:
        raise invalid("timeEnd must be later than timeStart, by 1 ms at least.")
    if end - start > MAX_RANGE_MS:
        raise invalid("The time range of a search may not exceed 14 days.")


def _place(token: str | None) -> Place:
    if token is None:
        return Place(None, 0)
    found = read_page_token(token)
    if not isinstance(found, list) or [type(each) for each in found] != [int, int]:
        raise invalid("page is not a token of this service.")
    return Place(*found)


def _rest(start: int, end: int, place: Place, query: LogQuery) -> tuple[int, int]:
    """Return the part of the time range that is still to be looked at."""
    if place.time_ms is None:
        return start, end
    return (start, place.time_ms + 1) if query.descending else (place.time_ms, end)


def _next_page(hits: Sequence[Hit], limit: int, place: Place) -> dict[str, str]:
    """Return the header that leads to the next page, if there is one."""
    if len(hits) <= limit:
        return {}
    last = hits[limit - 1].time_ms
    sent = sum(hit.time_ms == last for hit in hits[:limit])
    return {"opc-next-page": page_token(Place(last, sent + (place.sent if last == place.time_ms else 0)))}
