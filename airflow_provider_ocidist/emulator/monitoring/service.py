"""Monitoring: clients post metrics, and query them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import ApiError, invalid, missing
from airflow_provider_ocidist.emulator.fields import required_text
from airflow_provider_ocidist.emulator.identity import Identity
from airflow_provider_ocidist.emulator.monitoring.metrics import Metrics, MetricStream, read_metric
from airflow_provider_ocidist.emulator.monitoring.query import MetricQuery, Point, parse, summarise
from airflow_provider_ocidist.emulator.times import read_time, rfc3339
from airflow_provider_ocidist.emulator.wire import Call, Route, answer, page

BASE = "/20180401/metrics"
MAX_STREAMS = 50
DEFAULT_RANGE_MS = 3 * 3600 * 1000
GROUP_FIELDS = ("namespace", "name", "resourceGroup")
SORT_FIELDS = {"NAMESPACE": "namespace", "NAME": "name", "RESOURCEGROUP": "resourceGroup"}


class Monitoring:
    """Answers /metrics. Only what was posted is there: nodes of job runs are not measured."""

    def __init__(self, context: Context, identity: Identity) -> None:
        self._identity = identity
        self._metrics = Metrics(context.store)

    def routes(self) -> list[Route]:
        return [
            Route("POST", BASE, self.post),
            Route("POST", f"{BASE}/actions/listMetrics", self.list_metrics),
            Route("POST", f"{BASE}/actions/summarizeMetricsData", self.summarize),
        ]

    def reset(self) -> None:
        self._metrics.reset()

    async def post(self, call: Call) -> Response:
        """Store valid streams and report invalid ones; ATOMIC: all or nothing."""
        details = await call.json()
        posted = details.get("metricData")
        if not isinstance(posted, list) or not posted:
            raise missing("metricData")
        if len(posted) > MAX_STREAMS:
            raise invalid(f"A call may post at most {MAX_STREAMS} metric streams.")
        atomic = details.get("batchAtomicity") == "ATOMIC"
        right, failed = [], []
        for each in posted:
            try:
                right.append(self._read(each))
            except ApiError as error:
                if atomic:
                    raise
                failed.append({"message": error.message, "metricData": each})
        for stream, points in right:
            self._metrics.add(stream, points)
        return answer({"failedMetricsCount": len(failed), "failedMetrics": failed})

    def _read(self, details: Any) -> tuple[MetricStream, list[Point]]:
        stream, points = read_metric(details)
        self._identity.check_compartment(stream.compartment_id)
        return stream, points

    def _compartments(self, call: Call) -> set[str]:
        compartment_id = self._identity.compartment_in(call)
        if call.query.get("compartmentIdInSubtree") != "true":
            return {compartment_id}
        if compartment_id != self._identity.tenancy_id:
            raise invalid("compartmentIdInSubtree is for the tenancy only.")
        return {compartment_id, *self._identity.subtree(compartment_id)}

    async def list_metrics(self, call: Call) -> Response:
        details = await call.json()
        streams = self._metrics.streams(
            self._compartments(call),
            namespace=details.get("namespace"),
            name=details.get("name"),
            resource_group=details.get("resourceGroup"),
        )
        bodies = _grouped(streams, details) if details.get("groupBy") else _listed(streams, details)
        name = SORT_FIELDS.get(details.get("sortBy") or "NAMESPACE")
        if name is None:
            raise invalid(f"sortBy must be one of {', '.join(SORT_FIELDS)}.")
        chosen, headers = page(
            call,
            bodies,
            lambda body: (body.get(name) or "", json.dumps(body, sort_keys=True)),
            default=details.get("sortOrder") or "ASC",
        )
        return answer(chosen, headers=headers)

    async def summarize(self, call: Call) -> Response:
        details = await call.json()
        namespace = required_text(details, "namespace")
        query = parse(required_text(details, "query"))
        streams = self._metrics.streams(
            self._compartments(call),
            namespace=namespace,
            name=query.name,
            resource_group=details.get("resourceGroup"),
        )
        start_ms, end_ms = _range(details)
        return answer([_summary(query, group, start_ms, end_ms) for group in self._groups(query, streams)])

    def _groups(
        self, query: MetricQuery, streams: list[MetricStream]
    ) -> list[tuple[MetricStream, Mapping[str, str], list[Point]]]:
        """Return, for each result, one of its streams, its dimensions and its points."""
        groups: dict[str, tuple[MetricStream, Mapping[str, str], list[Point]]] = {}
        for stream in streams:
            if query.matches(stream.dimensions):
                dimensions = query.group(stream.dimensions)
                key = json.dumps([stream.compartment_id, stream.resource_group, dimensions], sort_keys=True)
                groups.setdefault(key, (stream, dimensions, []))[2].extend(self._metrics.points(stream))
        return list(groups.values())


def _range(details: Mapping[str, Any]) -> tuple[int, int]:
    end = details.get("endTime")
    end_ms = read_time(end, "endTime") if end else round(time.time() * 1000)
    start = details.get("startTime")
    start_ms = read_time(start, "startTime") if start else end_ms - DEFAULT_RANGE_MS
    if start_ms >= end_ms:
        raise invalid("endTime must be later than startTime.")
    return start_ms, end_ms


def _summary(
    query: MetricQuery,
    group: tuple[MetricStream, Mapping[str, str], list[Point]],
    start_ms: int,
    end_ms: int,
) -> dict[str, Any]:
    stream, dimensions, points = group
    return {
        **_body(stream),
        "dimensions": dimensions,
        "metadata": stream.metadata,
        "resolution": query.interval,
        "aggregatedDatapoints": [
            {"timestamp": rfc3339(each.time_ms), "value": each.value}
            for each in summarise(query, points, start_ms, end_ms)
        ],
    }


def _listed(streams: list[MetricStream], details: Mapping[str, Any]) -> list[dict[str, Any]]:
    wanted = (details.get("dimensionFilters") or {}).items()
    return [_body(stream) for stream in streams if wanted <= dict(stream.dimensions).items()]


def _grouped(streams: list[MetricStream], details: Mapping[str, Any]) -> list[dict[str, Any]]:
    fields = details["groupBy"]
    if not isinstance(fields, list) or not set(fields) <= set(GROUP_FIELDS):
        raise invalid(f"groupBy may have {', '.join(GROUP_FIELDS)}.")
    bodies = [{name: _body(stream)[name] for name in fields} for stream in streams]
    return list({json.dumps(body, sort_keys=True): body for body in bodies}.values())


def _body(stream: MetricStream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "namespace": stream.namespace,
        "resourceGroup": stream.resource_group,
        "compartmentId": stream.compartment_id,
        "dimensions": stream.dimensions,
    }
