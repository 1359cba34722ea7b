"""Log ingestion: clients push entries of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.errors import invalid, not_found
from airflow_provider_ocidist.emulator.fields import required_text
from airflow_provider_ocidist.emulator.logs.catalog import LogCatalog
from airflow_provider_ocidist.emulator.logs.entries import SPEC_VERSION
from airflow_provider_ocidist.emulator.logs.files import MAX_MESSAGE_CHARS, Line
from airflow_provider_ocidist.emulator.logs.streams import Streams
from airflow_provider_ocidist.emulator.times import read_time
from airflow_provider_ocidist.emulator.wire import Call, Route, answer

MAX_ENTRY_BYTES = 1_000_000


class Ingestion:
    """Answers pushes of entries."""

    def __init__(self, catalog: LogCatalog, streams: Streams) -> None:
        self._catalog = catalog
        self._streams = streams

    def routes(self) -> list[Route]:
        return [Route("POST", "/20200831/logs/{id}/actions/push", self.push)]

    async def push(self, call: Call) -> Response:
        """Store all entries or, when any of them is wrong, none."""
        details = await call.json()
        log = self._catalog.logs.get(call.params["id"])
        if log is None:
            raise not_found()
        if not log.is_enabled:
            raise invalid("The log is not enabled.")
        if details.get("specversion") != SPEC_VERSION:
            raise invalid(f"specversion must be {SPEC_VERSION!r}.")
        lines = [line for batch in _list(details, "logEntryBatches") for line in _lines(batch)]
        self._streams.push(log.id, lines)
        return answer({})


def _lines(batch: Mapping[str, Any]) -> Iterator[Line]:
    source, kind = required_text(batch, "source"), required_text(batch, "type")
    default = _logged_at(batch, "defaultlogentrytime")
    for entry in _list(batch, "entries"):
        data = required_text(entry, "data")
        if len(data.encode(errors="surrogatepass")) >= MAX_ENTRY_BYTES:
            raise invalid(f"An entry must be smaller than {MAX_ENTRY_BYTES} bytes.")
        said = {
            "id": required_text(entry, "id"),
            "source": source,
            "type": kind,
            "subject": batch.get("subject") or "",
            "data": _data(data),
        }
        moment = _logged_at(entry, "time") if entry.get("time") else default
        yield Line(moment, 0, json.dumps(said, separators=(",", ":")).encode())


def _data(text: str) -> dict[str, Any]:
    """Return an entry's data: the object that the text is, or the text as its message; fields cut as OCI cuts them."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    fields = value if isinstance(value, dict) else {"message": text}
    return {
        name: each[:MAX_MESSAGE_CHARS] if isinstance(each, str) else each for name, each in fields.items()
    }


def _list(details: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = details.get(name)
    if not value or not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise invalid(f"{name} must be a list with at least one object.")
    return value


def _logged_at(details: Mapping[str, Any], name: str) -> int:
    time_ms = read_time(required_text(details, name), name)
    if not 0 <= time_ms <= (time.time() + 24 * 3600) * 1000:
        raise invalid(f"{name} {details[name]} is not a time at which anything was logged.")
    return time_ms
