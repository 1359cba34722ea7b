"""The metric query language, as far as dashboards of a training need it: name[interval]{dimensions}.statistic()."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import partial
from typing import NamedTuple

from airflow_provider_ocidist.emulator.errors import invalid

QUERY = re.compile(
    r"""\s*(?P<name>[A-Za-z][\w.$-]*)\s*
    \[\s*(?P<size>[0-9]{1,9})(?P<unit>[mhd])\s*\]\s*
    (?:\{(?P<dimensions>.*)\})?\s*
    (?:\.\s*(?P<grouping>grouping\(\s*\)|groupBy\((?P<keys>[^()]*)\)))?\s*
    \.\s*(?P<statistic>\w+)\(\s*\)\s*""",
    re.VERBOSE,
)
DIMENSION = re.compile(r'\s*(?P<key>[^\s=!,"]+)\s*(?P<sign>=~|!=|=)\s*"(?P<value>(?:[^"\\]|\\.)*)"\s*(?:,|$)')
UNIT_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
MAX_INTERVAL_MS = UNIT_MS["d"]
MAX_CHARS = 2_000


class Point(NamedTuple):
    """What was measured, at `time_ms`, so many times."""

    time_ms: int
    value: float
    times: int = 1


Statistic = Callable[[Sequence[Point]], float]


def _sum(points: Sequence[Point]) -> float:
    return sum(point.value * point.times for point in points)


def _count(points: Sequence[Point]) -> float:
    return sum(point.times for point in points)


def _mean(points: Sequence[Point]) -> float:
    return _sum(points) / _count(points)


STATISTICS: dict[str, Statistic] = {
    "sum": _sum,
    "count": _count,
    "mean": _mean,
    "avg": _mean,
    "min": lambda points: min(point.value for point in points),
    "max": lambda points: max(point.value for point in points),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricQuery:
    """A query, understood."""

    name: str
    interval: str
    interval_ms: int
    matches: Callable[[Mapping[str, str]], bool]
    """Function that returns whether a stream of these dimensions is requested."""
    group: Callable[[Mapping[str, str]], Mapping[str, str]]
    """Function that returns the dimensions of the result that a stream goes into."""
    statistic: Statistic


def parse(text: str) -> MetricQuery:
    """Understand a query. Raises 400 with what was not understood."""
    match = QUERY.fullmatch(text) if len(text) <= MAX_CHARS else None
    if match is None:
        raise invalid(f"query {text[:200]!r} is not name[interval]{{dimensions}}.statistic().")
    interval_ms = int(match["size"]) * UNIT_MS[match["unit"]]
    if not 0 < interval_ms <= MAX_INTERVAL_MS:
        raise invalid("The interval of a query must be 1m to 1d.")
    if match["statistic"] not in STATISTICS:
        raise invalid(f"The statistic {match['statistic']!r} is not one of {', '.join(STATISTICS)}.")
    keys = None
    if match["grouping"]:
        keys = [key.strip() for key in (match["keys"] or "").split(",") if key.strip()]
    return MetricQuery(
        name=match["name"],
        interval=match["size"] + match["unit"],
        interval_ms=interval_ms,
        matches=partial(_all_match, list(_dimensions(match["dimensions"] or ""))),
        group=partial(_group, keys),
        statistic=STATISTICS[match["statistic"]],
    )


def _dimensions(text: str) -> Iterable[tuple[str, str, re.Pattern[str]]]:
    place = 0
    while text[place:].strip():
        match = DIMENSION.match(text, place)
        if match is None:
            raise invalid(f'The dimensions cannot be read at {text[place:]!r}; write key = "value", ...')
        place = match.end()
        value = re.sub(r"\\(.)", r"\1", match["value"])
        choices = value.split("|") if match["sign"] == "=~" else [value]
        yield match["key"], match["sign"], re.compile("|".join(map(_wildcard, choices)))


def _wildcard(text: str) -> str:
    """Only `*` is special. The expression from `translate` never backtracks."""
    return translate(re.sub(r"([\[?])", r"[\1]", text))


def _all_match(wanted: Sequence[tuple[str, str, re.Pattern[str]]], dimensions: Mapping[str, str]) -> bool:
    return all(
        (pattern.fullmatch(dimensions.get(key, "")) is None) is (sign == "!=")
        for key, sign, pattern in wanted
    )


def _group(keys: Sequence[str] | None, dimensions: Mapping[str, str]) -> Mapping[str, str]:
    """Without a grouping each stream is a result of its own."""
    if keys is None:
        return dimensions
    return {key: dimensions[key] for key in keys if key in dimensions}


def summarise(query: MetricQuery, points: Iterable[Point], start_ms: int, end_ms: int) -> list[Point]:
    """Return one value for each interval that has any, under the interval's start."""
    intervals: dict[int, list[Point]] = {}
    for point in points:
        if start_ms <= point.time_ms < end_ms:
            intervals.setdefault(point.time_ms // query.interval_ms, []).append(point)
    return [
        Point(number * query.interval_ms, query.statistic(found))
        for number, found in sorted(intervals.items())
    ]
