"""Metrics: streams of points, each with a name and dimensions."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.emulator.errors import invalid
from airflow_provider_ocidist.emulator.monitoring.query import Point
from airflow_provider_ocidist.emulator.store import RecordStore, Table
from airflow_provider_ocidist.emulator.times import read_time

NAMESPACE = re.compile(r"[A-Za-z]\w{0,255}", re.ASCII)
NAME = re.compile(r"[A-Za-z][\w.$-]{0,255}", re.ASCII)
DIMENSION_KEY = re.compile(r"[!-~]{1,256}")
RESERVED = ("oci_", "oracle_")
MAX_DIMENSIONS = 20
MAX_VALUE_CHARS = 512
PAST_MS, FUTURE_MS = 2 * 3600 * 1000, 10 * 60 * 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricStream:
    """The source and name of a metric."""

    compartment_id: str
    namespace: str
    name: str
    resource_group: str | None = None
    dimensions: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The id of the stream; what is in `metadata` does not change it."""
        parts = [self.compartment_id, self.namespace, self.resource_group, self.name, self.dimensions]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Posted:
    """Points of one stream that came together."""

    stream_id: str
    points: Sequence[tuple[int, float, int]]


class Metrics:
    """All streams and their points."""

    def __init__(self, store: RecordStore) -> None:
        self._streams: Table[MetricStream] = Table(store, "metric_stream", MetricStream)
        self._posted: Table[Posted] = Table(store, "metric_points", Posted)
        self._points: dict[str, list[Point]] = {}
        for posted in self._posted.values():
            self._take(posted)

    def _take(self, posted: Posted) -> None:
        points = self._points.setdefault(posted.stream_id, [])
        points.extend(Point(*each) for each in posted.points)

    def add(self, stream: MetricStream, points: Iterable[Point]) -> None:
        if self._streams.get(stream.id) != stream:
            self._streams.put(stream.id, stream)
        posted = Posted(stream_id=stream.id, points=list(points))
        self._posted.put(uuid.uuid4().hex, posted)
        self._take(posted)

    def streams(self, compartments: set[str], **wanted: str | None) -> list[MetricStream]:
        """Return the streams of some compartments that have the given fields; None stands for any."""
        return [
            stream
            for stream in self._streams.values()
            if stream.compartment_id in compartments
            and all(value in (None, getattr(stream, name)) for name, value in wanted.items())
        ]

    def points(self, stream: MetricStream) -> list[Point]:
        return self._points.get(stream.id, [])

    def reset(self) -> None:
        self._streams.clear()
        self._posted.clear()
        self._points.clear()


def read_metric(details: Any) -> tuple[MetricStream, list[Point]]:
    """Understand one posted metric. Raises 400 with what is wrong with it."""
    if not isinstance(details, dict):
        raise invalid("metricData must be a list of objects.")
    for name, shape in (("namespace", NAMESPACE), ("name", NAME)):
        if not isinstance(details.get(name), str) or not shape.fullmatch(details[name]):
            raise invalid(f"{name} must begin with a letter and have letters, digits and underscores.")
    if details["namespace"].startswith(RESERVED):
        raise invalid(f"namespace may not begin with {' or '.join(RESERVED)}: those are the service's own.")
    resource_group = details.get("resourceGroup")
    if resource_group is not None and not NAME.fullmatch(str(resource_group)):
        raise invalid("resourceGroup must begin with a letter and have letters, digits and . _ - $.")
    stream = MetricStream(
        compartment_id=str(details.get("compartmentId") or ""),
        namespace=details["namespace"],
        name=details["name"],
        resource_group=resource_group,
        dimensions=_dimensions(details.get("dimensions")),
        metadata=details.get("metadata") or {},
    )
    points = details.get("datapoints")
    if not isinstance(points, list) or not points:
        raise invalid("datapoints must be a list with at least one point.")
    return stream, [_point(each) for each in points]


def _dimensions(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_DIMENSIONS:
        raise invalid(f"dimensions must have 1 to {MAX_DIMENSIONS} entries.")
    for key, text in value.items():
        if not DIMENSION_KEY.fullmatch(key):
            raise invalid(f"The dimension {key!r} must have 1 to 256 printable ASCII characters, no spaces.")
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_VALUE_CHARS:
            raise invalid(f"The dimension {key!r} must have a value of 1 to {MAX_VALUE_CHARS} characters.")
    return value


def _point(details: Any) -> Point:
    if not isinstance(details, dict):
        raise invalid("datapoints must be a list of objects.")
    value, count = details.get("value"), details.get("count")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid("The value of a datapoint must be a number.")
    count = 1 if count is None else count
    if not isinstance(count, int) or count < 1:
        raise invalid("The count of a datapoint must be a positive number.")
    time_ms = read_time(details.get("timestamp"), "timestamp")
    if not -PAST_MS <= time_ms - time.time() * 1000 <= FUTURE_MS:
        raise invalid("The timestamp of a datapoint must be of the past 2 hours or the next 10 minutes.")
    return Point(time_ms, float(value), count)
