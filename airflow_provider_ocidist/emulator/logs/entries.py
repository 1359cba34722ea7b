"""One entry of a log: its fields, for conditions, and its JSON, for answers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.emulator.logs.files import StoredLog
from airflow_provider_ocidist.emulator.logs.query import UNKNOWN
from airflow_provider_ocidist.emulator.logs.streams import Stream
from airflow_provider_ocidist.emulator.times import rfc3339

OUTPUT_TYPES = (
    "com.oraclecloud.datascience.jobrun.stdout",
    "com.oraclecloud.datascience.jobrun.stderr",
)
SPEC_VERSION = "1.0"


class Entries:
    """The entries of one stream. `place` is the location in their `oracle` part.

    Answers of a thousand entries are common: their JSON is put together from text, not from dicts.
    """

    def __init__(self, stream: Stream, file: StoredLog, place: Mapping[str, str]) -> None:
        self.file = file
        self._stream = stream
        self._place = place
        # An id of a line that stays the same, shaped as a UUID: a stem for the stream, then the number.
        self._id_stem = str(uuid.uuid5(uuid.NAMESPACE_OID, stream.id))[:24]
        self._tail = f'"oracle":{{{json.dumps(place)[1:-1]},"ingestedtime":"'
        self._parsed: tuple[int, Mapping[str, Any]] = (-1, {})

    def json(self, number: int) -> str:
        """Return the entry as a search returns it."""
        time_ms = self.file.time_of(number)
        said = self.file.read(number)[1:-1] if self._stream.pushed else self._output_json(number)
        return (
            f'{{"data":{{"datetime":{time_ms},"logContent":{{{said},"specversion":"{SPEC_VERSION}",'
            f'"time":"{rfc3339(time_ms)}",{self._tail}{rfc3339(self.file.written_at(number))}"}}}}}}}}'
        )

    def _output_json(self, number: int) -> str:
        kind = OUTPUT_TYPES[self.file.stream_of(number)]
        message = json.dumps(self.file.read(number), ensure_ascii=False)
        return (
            f'"id":"{self._id_of(number)}","source":"{self._stream.source}","type":"{kind}",'
            f'"subject":"{self._stream.subject}","data":{{"message":{message}}}'
        )

    def _id_of(self, number: int) -> str:
        return f"{self._id_stem}{number:012x}"

    def field(self, number: int, name: str) -> Any:
        """Return a field of an entry; None when it has none of that name."""
        if name == "datetime":
            return self.file.time_of(number)
        if name == "oracle.ingestedtime":
            return rfc3339(self.file.written_at(number))
        known = field_of_all(self._stream, self._place, name)
        if known is not UNKNOWN:
            return known
        return self._pushed_field(number, name) if self._stream.pushed else self._output_field(number, name)

    def _output_field(self, number: int, name: str) -> Any:
        if name == "type":
            return OUTPUT_TYPES[self.file.stream_of(number)]
        if name == "data.message":
            return self.file.read(number)
        return self._id_of(number) if name == "id" else None

    def _pushed_field(self, number: int, name: str) -> Any:
        if self._parsed[0] != number:
            self._parsed = (number, json.loads(self.file.read(number)))
        value: Any = self._parsed[1]
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def field_of_all(stream: Stream, place: Mapping[str, str], name: str) -> Any:
    """Return what is the same for all entries of a stream; UNKNOWN for other fields."""
    if name == "specversion":
        return SPEC_VERSION
    if name.startswith("oracle."):
        return place.get(name.removeprefix("oracle."), UNKNOWN)
    if stream.pushed:
        return UNKNOWN
    return {"source": stream.source, "subject": stream.subject}.get(name, UNKNOWN)
